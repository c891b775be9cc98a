"""What tests of drafters from a target's last hidden states share: what a head says of a whole sequence, and
training.
"""

import torch

from paceline.draft_heads.feature_head import FeatureHead
from tests import tiny as models
from tests.harness import decoder_for, expected, request

PROMPTS = ([5], [9, 2], [3, 1, 4, 1, 5, 9, 2, 6, 5], [60, 0, 7])


@torch.no_grad()
def whole(target, head, sequence):
    """What is kept of a sequence's states [T, H], and what the head says to it unrolled: logits [T, D, V]."""
    tokens = torch.tensor([sequence])
    hidden = target.causal(tokens, taps=head.taps).hidden
    kept = hidden[head.taps[0]]
    kept = head.in_context(kept, None) if isinstance(head, FeatureHead) else kept
    return kept[0], head.unroll(tokens, hidden).logits[0]


def check_steps(target, drafter, *, verifier, k=3, steps=8, **options):
    """Step by step, hold states and distributions of every row against those of its whole sequence; tokens accepted
    in each step.
    """
    decoder = decoder_for(drafter, verifier, target=target, k=k, rows=len(PROMPTS), max_length=64)
    decoder.admit([request(p, max_tokens=50, seed=i, **options) for i, p in enumerate(PROMPTS)], range(len(PROMPTS)))
    trees, propose = [], drafter.propose

    def recorded(batch, plan):
        trees.append(propose(batch, plan))
        return trees[-1]

    drafter.propose = recorded
    accepted = []
    for _ in range(steps):
        sequences = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in range(len(PROMPTS))]
        for row, sequence in enumerate(sequences):
            states, _ = whole(target, drafter.head, sequence)
            count = drafter.states.states.shape[1]
            padded = torch.cat((torch.zeros(count, states.shape[-1], dtype=states.dtype), states[:-1]))
            torch.testing.assert_close(drafter.states.states[row], padded[len(sequence) - 1 :])
        decoder.step()
        for row, sequence in enumerate(sequences):
            check_distributions(target, drafter.head, trees[-1], row, sequence)
        accepted.extend(decoder.results().num_accepted)
    return accepted


def check_distributions(target, head, tree, row, sequence):
    """Every node of ``row`` was drawn from the head's distribution given all the tokens before it."""
    for node in range(1, tree.num_nodes):
        if not tree.valid[row, node]:
            continue
        path = [n for n in range(1, tree.num_nodes) if tree.ancestors[row, node, n] and n != node]
        _, logits = whole(target, head, [*sequence, *(int(tree.tokens[row, n]) for n in path)])
        distribution = tree.probs[row, tree.source[row, node]]
        torch.testing.assert_close(distribution, logits[len(sequence) - 1, len(path)].softmax(-1))


def overfitted(head, target, *, steps, rate):
    """``head`` trained on one sequence of the target's own choosing: the prompt, the sequence, and the last loss."""
    prompt, length = [7, 3, 5], 24
    sequence = torch.tensor([[*prompt, *expected(request(prompt, max_tokens=length), models.target()[0])]])
    with torch.no_grad():
        output = target.causal(sequence, taps=head.taps)
    hidden = {tap: state.detach() for tap, state in output.hidden.items()}
    optimiser = torch.optim.Adam(head.own_state().values(), lr=rate)
    goal = output.logits.argmax(-1)
    for _ in range(steps):
        found = head.unroll(sequence, hidden)
        wanted = goal.gather(1, found.position.flatten(1)).view_as(found.position)
        each = torch.nn.functional.cross_entropy(found.logits.flatten(0, 2), wanted.flatten(), reduction="none")
        loss = (each * found.weight.flatten()).sum() / found.weight.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return prompt, length, float(loss.detach())
