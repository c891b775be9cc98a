"""What tests of drafters over pairs share: the drafter against its head unrolled over whole sequences."""

import math

import torch

from paceline.core.admission import Prefix
from paceline.core.step import StepPlan
from paceline.drafters.tree.shapes import Confident, Topology
from tests import tiny as models
from tests.drafters.last_states import overfitted
from tests.harness import Alternating, decoder_for, expected, planned_step, request, run

PROMPTS = ([5], [9, 2], [3, 1, 4, 1, 5, 9, 2, 6, 5], [60, 0, 7])
LENGTHS = (3, 3, 0, 0, 5, 2)  # of drafts, in turn
DEEPEST = 6
SHAPES = {
    "chain": None,
    "bushy": Topology(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (0, 0, 0))),
    "confident": Confident(num_drafted=7, depth=3, width=2),
}


def randomised(head, scale=0.3, seed=5):
    """``head`` with noise on all its own weights, norms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, part in head.own_state().items():
            if name != "draft_ids":
                part.add_(scale * torch.randn(part.shape, generator=generator))
    return head


def feed_forwards_alone(head, target, *, noise, seed=5):
    """Own weights for ``head``: zeros, but for the feed-forwards of its layers, which are the target's with noise."""
    own = {name: torch.zeros_like(tensor) for name, tensor in head.own_state().items()}
    generator = torch.Generator().manual_seed(seed)
    for index, block in enumerate(target.blocks):
        for name, tensor in block.named_parameters():
            if name.startswith("ffn"):
                drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
                own[f"blocks.{index}.{name}"] = tensor + noise * tensor.std() * drawn
    return own


@torch.no_grad()
def unrolled(target, head, sequence, drafted):
    """What training says after ``sequence`` and the tokens ``drafted`` behind it, the sequence being verified: [V]."""
    tokens = torch.tensor([[*sequence, *drafted]])
    hidden = target.causal(tokens, taps=head.taps).hidden
    anchor, depth = len(sequence) - 2, len(drafted)  # of the pair whose token is the root
    found = head.unroll(tokens, hidden)
    assert found.position[0, anchor, depth] == tokens.shape[1] - 1 and found.weight[0, anchor, depth] > 0
    return found.logits[0, anchor, depth]


def recorded(drafter):
    """Lists of what ``drafter`` says from now on: the logits of roots, and of forests with these."""
    roots, forests = [], []
    read_root, score_nodes = drafter.read_root, drafter.score_nodes

    def root(batch):
        roots.append(read_root(batch))
        forests.append([])
        return roots[-1]

    def nodes(forest, start):
        forests[-1].append((forest, score_nodes(forest, start)))
        return forests[-1][-1][1]

    drafter.read_root, drafter.score_nodes = root, nodes
    return roots, forests


@torch.no_grad()
def check_parity(drafter, *, target=None, verifier="coupled", temperature=0.9, steps=9):
    """Logits of drafts equal those of training at every depth: after any accepted path, pauses and forks.

    Returns the depths that were compared.
    """
    target = target or models.target()[1]
    head, roots_and_forests = drafter.head, recorded(drafter)
    decoder = decoder_for(drafter, verifier, target=target, plan=Alternating(*LENGTHS), rows=len(PROMPTS) + 1)
    asked = [request(p, max_tokens=40, temperature=temperature, seed=i) for i, p in enumerate(PROMPTS)]
    decoder.admit(asked, range(len(PROMPTS)))
    rows, depths = range(len(PROMPTS)), set()
    for step in range(steps):
        plan = decoder.plan()
        if step in (4, 7):  # a prompt that begins as a sequence that was drafted: the whole, of which the head has not
            length = int(decoder.batch.length[3]) - (1 if step == 4 else 5)  # read all, or a part of what it has read
            prompt = [*decoder.batch.tokens[3, :length].tolist(), *[7] * (step - 3)]
            decoder.admit([request(prompt, max_tokens=20)], [4], [Prefix(row=3, length=length)])
            rows = range(len(PROMPTS) + 1)
        sequences = [decoder.batch.tokens[row, : decoder.batch.length[row]].tolist() for row in rows]
        planned_step(decoder, plan)
        if plan.num_draft_tokens == 0:
            continue
        roots, forests = roots_and_forests
        forest = forests[-1][-1][0] if forests[-1] else None
        said = torch.cat([logits for _, logits in forests[-1]], dim=1) if forests[-1] else None
        for row, sequence in zip(rows, sequences, strict=True):
            if len(sequence) < 2:
                continue
            wanted = unrolled(target, head, sequence, [])
            torch.testing.assert_close(roots[-1][row, 0], wanted, rtol=0, atol=1e-9)
            for node in range(0 if forest is None else forest.num_nodes):
                if not forest.valid[row, node]:
                    continue
                path, at = [], node
                while at >= 0:
                    path.insert(0, int(forest.tokens[row, at]))
                    at = int(forest.parents[row, at])
                wanted = unrolled(target, head, sequence, path)
                torch.testing.assert_close(said[row, node], wanted, rtol=1e-11, atol=1e-9)
                depths.add(len(path))
    return depths


@torch.no_grad()
def check_cache(drafter, *, target=None, steps=9):
    """The cache and the queue hold every pair of what is verified once, with the target's own features."""
    target = target or models.target()[1]
    decoder = decoder_for(drafter, "coupled", target=target, plan=Alternating(*LENGTHS), rows=len(PROMPTS))
    asked = [request(p, max_tokens=40, temperature=0.9, seed=i) for i, p in enumerate(PROMPTS)]
    decoder.admit(asked, range(len(PROMPTS)))
    for _ in range(steps):
        planned_step(decoder, decoder.plan())
        for row in range(len(PROMPTS)):
            check_row(drafter, decoder, target, row)


def check_row(drafter, decoder, target, row):
    """The same of one row."""
    sequence = decoder.batch.tokens[row : row + 1, : decoder.batch.length[row]]
    features = drafter.head.feature(target.causal(sequence, taps=drafter.taps).hidden)[0]
    begun, count = int(drafter.cache.length[row]), int(drafter.unread.count[row])
    assert begun + count == sequence.shape[1] - 1
    torch.testing.assert_close(drafter.unread.states[row, :count], features[begun : begun + count])


def check_aborted(drafter):
    """What an aborted step's draft has read is read anew by the next one, after plain steps too."""
    target = models.target()[1]
    decoder = decoder_for(drafter, "coupled", target=target, k=3)
    decoder.admit([request([7, 3, 5, 1], max_tokens=40)], [0])
    decoder.step()
    with torch.no_grad():
        plan = decoder.plan()
        decoder.begin_step(plan)
        decoder.draft(plan)
    for depth in (0, 0, 3):
        planned_step(decoder, StepPlan(depth))
    check_row(drafter, decoder, target, 0)


def check_outputs(drafter):
    """The outputs are those of plain decoding, whatever the head says."""
    asked = [request([7, 3, 5, 1][: 1 + i], max_tokens=16, temperature=0.8 * (i % 2), seed=i) for i in range(4)]
    result = run(drafter, "coupled", asked, k=3)
    assert result.texts == [expected(one) for one in asked]


def check_overfitted(kind, head):
    """``head`` of depth 4, trained on an output, drafts it whole: ``kind`` drafts with it."""
    prompt, length, loss = overfitted(head, models.target()[1], steps=150, rate=0.005)
    assert loss < 0.1
    result = run(kind(head=head), "coupled", [request(prompt, max_tokens=length)], k=3)
    assert result.steps <= math.ceil(length / 4) + 1
    assert result.summary.acceptance_rate > 0.9


def check_trees(make, model, target):
    """Drafts of ``make``, which takes a shape, keep more in trees than in chains, and change no output."""
    asked = [request([7, 3, 5][: 1 + i], max_tokens=30) for i in range(3)]
    kept = []
    for shape in (None, Confident(num_drafted=10, depth=3, width=4)):
        result = run(make(shape), "coupled", asked, target=target, k=3)
        assert result.texts == [expected(one, model) for one in asked]
        kept.append(result.summary.mean_acceptance_length)
    assert kept[1] > kept[0] + 0.1
