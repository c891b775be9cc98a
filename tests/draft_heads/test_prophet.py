"""The training forward of the prophet heads: which states and tokens each draft attends to, and its labels."""

import pytest
import torch

from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.prophet import ProphetConfig, ProphetHead
from tests import tiny
from tests.models.layouts import pair, texts

KINDS = ("prophet", "linear_prophet", "medusa", "mlp_speculator", "hydra")
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, target, *, seed=0, spread=0.3, **sizes):
    """A head whose weights are all random, including norms and zeros."""
    generator = torch.Generator().manual_seed(seed)
    head = DRAFT_HEADS.find(kind).make(DRAFT_HEADS.find(kind).Config(**sizes), target, generator=generator)
    for tensor in filter(torch.is_floating_point, head.own_state().values()):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        tensor.data.add_(spread * noise.to(tensor.dtype))
    return head


def states(target, tokens, head):
    with torch.no_grad():
        return target.causal(tokens, taps=head.taps).hidden


@every_kind
def test_every_token_is_a_root_and_weights_are_zero_beyond_the_end(kind):
    _, target = tiny.target()
    head = make(kind, target, depth=3)
    tokens = texts(2, 5)
    found = head.unroll(tokens, states(target, tokens, head))
    assert found.logits.shape == (2, 5, 3, tiny.VOCAB)
    assert found.position[0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert found.weight[1].tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]


@every_kind
def test_packed_sequences_match_separate_ones(kind):
    _, target = tiny.target()
    head = make(kind, target, depth=3)
    tokens = texts(1, 9)
    lengths = (4, 1, 4)
    segment = torch.tensor([[3] * 4 + [7] + [8] * 4])
    parts = tokens.split(lengths, dim=1)
    apart = [states(target, part, head) for part in parts]
    hidden = {tap: torch.cat([one[tap] for one in apart], dim=1) for tap in head.taps}
    together = head.unroll(tokens, hidden, segment=segment)
    alone = [head.unroll(part, one) for part, one in zip(parts, apart, strict=True)]
    weight = torch.cat([one.weight for one in alone], dim=1)
    assert torch.equal(together.weight, weight)
    counted = weight.bool()
    logits = torch.cat([one.logits for one in alone], dim=1)
    torch.testing.assert_close(together.logits[counted], logits[counted], rtol=0, atol=1e-12)


def check_sampled_anchors(head, target, *, first):
    """Of all roots, the first of which is token ``first``, four in each row, which the generator's seed decides."""
    tokens = texts(3, 11)
    hidden = states(target, tokens, head)
    whole = head.unroll(tokens, hidden)
    assert whole.logits.shape[1] == 11 - first
    some, same, other = (
        head.unroll(tokens, hidden, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    roots = some.position[..., 0]
    assert roots.shape == (3, 4) and (roots.diff(dim=1) > 0).all() and (roots >= first).all()
    assert torch.equal(roots, same.position[..., 0]) and not torch.equal(roots, other.position[..., 0])
    for row in range(3):
        torch.testing.assert_close(some.logits[row], whole.logits[row, roots[row] - first], rtol=0, atol=1e-9)


@every_kind
def test_anchors_are_a_subset_sampled_by_the_generator(kind):
    _, target = tiny.target()
    check_sampled_anchors(make(kind, target, depth=2, anchors=4), target, first=0)


@every_kind
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gemma", "granite", "tied", "olmo2"])
def test_every_own_tensor_gets_a_gradient_and_none_is_the_targets(kind, layout):
    """For targets of every architecture, with detached hidden states."""
    _, target = pair(layout, torch.float64)
    head = make(kind, target, depth=3)
    own = head.own_state()
    shared = {parameter.data_ptr() for parameter in target.parameters()}
    assert own and not shared & {tensor.data_ptr() for tensor in own.values()}
    tokens = texts(2, 7)
    logits = head.unroll(tokens, states(target, tokens, head)).logits
    logits.log_softmax(-1)[..., 3].sum().backward()
    for name, tensor in own.items():
        assert tensor.grad is not None and tensor.grad.abs().max() > 0, name
    assert all(parameter.grad is None for parameter in target.parameters())


@every_kind
def test_gradients_reach_hidden_states_that_were_not_detached(kind):
    _, target = tiny.target()
    head = make(kind, target)
    tokens = texts(1, 6)
    hidden = {tap: state.requires_grad_() for tap, state in states(target, tokens, head).items()}
    head.unroll(tokens, hidden).logits.square().sum().backward()
    [state] = hidden.values()
    assert (state.grad[0, :-1].abs().amax(-1) > 0).all() and (state.grad[0, -1] == 0).all()


def test_prophet_depends_only_on_its_states_and_the_drafted_tokens():
    _, target = tiny.target()
    head = make("prophet", target, depth=3, num_states=2)
    tokens = texts(1, 9)
    hidden = states(target, tokens, head)
    before = head.unroll(tokens, hidden).logits[0, 5]
    [tap] = head.taps
    for index in range(9):
        changed = {tap: hidden[tap].clone()}
        changed[tap][:, index] += 1.0
        moved = (head.unroll(tokens, changed).logits[0, 5] - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [index in (3, 4)] * 3, index
        other = tokens.clone()
        other[0, index] = (tokens[0, index] + 1) % tiny.VOCAB
        moved = (head.unroll(other, hidden).logits[0, 5] - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [index in range(5, 6 + depth) for depth in range(3)], index


def test_new_linear_head_repeats_the_targets_last_logits():
    _, target = pair("granite", torch.float64)
    head = DRAFT_HEADS.find("linear_prophet").make(
        DRAFT_HEADS.find("linear_prophet").Config(depth=2), target, generator=torch.Generator()
    )
    tokens = texts(1, 6)
    with torch.no_grad():
        output = target.causal(tokens, taps=head.taps)
        found = head.unroll(tokens, output.hidden).logits
    for depth in range(2):
        torch.testing.assert_close(found[:, 1:, depth], output.logits[:, :-1])


def test_sizes_follow_from_the_target_and_the_width():
    _, target = tiny.target()  # 4 heads and 2 key-value heads of 8, 48 inner, 32 wide
    same = ProphetConfig().decoder(target.config)
    assert (same.num_heads, same.num_kv_heads, same.head_dim, same.ffn_size, same.tied_head) == (4, 2, 8, 48, False)
    half = ProphetConfig(width=16, num_blocks=2).decoder(target.config)
    assert (half.num_heads, half.num_kv_heads, half.head_dim, half.ffn_size, half.tied_head) == (2, 1, 8, 24, True)
    head = ProphetHead.make(ProphetConfig(width=16), target, generator=torch.Generator())
    assert "decoder.embed.weight" in head.own_state() and head.decoder.embed is not target.embed
    shared = ProphetHead.make(ProphetConfig(), target, generator=torch.Generator())
    assert shared.decoder.embed is target.embed and shared.decoder.head is target.head


def test_indivisible_kv_heads_are_refused():
    with pytest.raises(ValueError, match="num_heads=4 and num_kv_heads=3: give a divisor of the former"):
        ProphetHead.make(ProphetConfig(num_kv_heads=3), tiny.target()[1], generator=torch.Generator())
