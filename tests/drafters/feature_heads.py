"""What tests of heads without attention share: new heads, and heads that know what follows each token."""

import torch

from paceline.draft_heads import DRAFT_HEADS

STEPS, RIDGE = 40, 1e-3


def new_head(kind, target, *, seed=0, spread=0.0, **sizes):
    """A new head with noise on its own weights."""
    head_type = DRAFT_HEADS.find(kind)
    generator = torch.Generator().manual_seed(seed)
    head = head_type.make(head_type.Config(**sizes), target, generator=generator)
    for tensor in head.own_state().values() if spread else ():
        if tensor.is_floating_point():
            tensor.data.add_(spread * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor))
    return head


@torch.no_grad()
def fitted(kind, target, *, spread=0.1, noise=0.0, **sizes):
    """A head whose LM heads lead to what the target predicts, where a token alone decides the next.

    By least squares over what follows every token, so that tokens which sequences end in count the most. ``noise`` is
    added to the LM heads, relative to their own deviation.
    """
    head, generator = new_head(kind, target, spread=spread, **sizes), torch.Generator().manual_seed(2)
    tokens = torch.arange(target.vocab_size)
    output = target.causal(tokens[:, None], taps=head.taps)
    state, table = head.in_context(output.hidden[head.taps[0]], None)[:, 0], output.logits[:, 0]
    following, sequences = table.argmax(-1), [tokens]
    for _ in range(STEPS):
        sequences.append(following[sequences[-1]])
    before = torch.cat(sequences)
    states, token = head.begin(head.read_feature(state[before])), following[before]
    for depth in range(head.sizes.depth):
        states = head.advance(states, token, depth)
        read, lm_head = head.hidden_of(states, depth), head.lm_head_of(depth)
        square = read.T @ read + RIDGE * len(read) * torch.eye(read.shape[1], dtype=read.dtype)
        found = torch.linalg.solve(square, read.T @ table[token]).T
        added = torch.randn(found.shape, generator=generator, dtype=torch.float64).to(found)
        lm_head.weight.copy_(found + noise * found.std() * added)
        if lm_head.bias is not None:
            lm_head.bias.zero_()
        token = following[token]
    return head
