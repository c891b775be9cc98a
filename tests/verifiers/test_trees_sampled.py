"""Trees drawn from a table, through the real step: joint distributions by a G-test, greedy sequence, and the gates
of the step.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.core.noise import Stream
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.verifiers import VERIFIERS
from tests.harness import decoder_for, request
from tests.tables import TableLM, deviation, index_of, joint, random_table

ROWS = 20_000
LENGTH = 4
PROMPT = [2, 1]
BOUND = 5.0  # standard deviations
SHAPES = {
    "two by two": (0, 0, 1, 1, 2, 2),
    "three chains": (0, 0, 0, 1, 2, 3),
}


class TableTree(StatelessDrafter):
    """A tree of one shape, from a table that knows the two tokens before; siblings share their parent's
    distribution.
    """

    branches = True

    def __init__(self, table, parents, draw):
        self.table, self.parents = table, parents
        self.draws = frozenset({draw})
        self.draw = draw
        self.depths = [0]
        for parent in parents:
            self.depths.append(self.depths[parent] + 1)

    def max_nodes(self, num_draft_tokens):
        return len(self.parents) + 1

    def propose(self, batch, plan):
        before = batch.tokens.gather(1, (batch.length[:, None] - 2).clamp(min=0))[:, 0]
        known, current, scores = [before], [batch.root], {}
        for node, parent in enumerate(self.parents, 1):
            position = batch.length[:, None] + self.depths[parent]
            if parent not in scores:
                scores[parent] = batch.warp(self.table[known[parent], current[parent]][:, None])
            left = scores[parent]
            siblings = [i for i in range(1, node) if self.parents[i - 1] == parent]
            if self.draw is Draw.NO_REPLACEMENT:
                for i in siblings:
                    left = left.scatter(-1, current[i][:, None, None], -torch.inf)
            if self.draw is Draw.FIXED:
                token = left.topk(len(siblings) + 1, dim=-1).indices[:, 0, -1]
            else:
                token = batch.noise.choose(left, batch.key(position, Stream.DRAFT, node=node))[:, 0]
            known.append(current[parent])
            current.append(token)
        depth = torch.tensor(self.depths)
        tokens = torch.stack(current, dim=1)
        index = {parent: at for at, parent in enumerate(scores)}
        source = torch.tensor([-1, *(-1 if self.draw is Draw.FIXED else index[parent] for parent in self.parents)])
        return Tree.make(
            tokens,
            torch.tensor([-1, *self.parents]).expand_as(tokens),
            (depth <= batch.draft_room[:, None]) & batch.active[:, None],
            max_depth=max(self.depths),
            draw=self.draw,
            source=source.expand_as(tokens),
            probs=torch.cat(list(scores.values()), dim=1).softmax(-1),
        )


CASES = [
    (name, shape, draw)
    for name in VERIFIERS.builtin
    if VERIFIERS.find(name).branches
    for shape in SHAPES
    for draw in VERIFIERS.find(name).wants
    if draw is not Draw.SHARED and (name in ("recursive", "traversal", "spectr") or shape == "two by two")
]
every_case = pytest.mark.parametrize(
    ("verifier", "shape", "draw"), CASES, ids=lambda x: x.name.lower() if isinstance(x, Draw) else x
)


def drafter(shape, draw):
    return TableTree(random_table(2), SHAPES[shape], draw)


def decode(verifier, shape, draw, rows, table, **options):
    depth = max(drafter(shape, draw).depths)
    decoder = decoder_for(
        drafter(shape, draw), verifier, target=TableLM(table), k=depth, rows=rows, max_length=len(PROMPT) + LENGTH
    )
    decoder.admit([request(PROMPT, max_tokens=LENGTH, seed=row, **options) for row in range(rows)], range(rows))
    return decoder


@pytest.mark.slow  # the same distributions are enumerated, and sampled from real models, in tests/distributions
@every_case
def test_joint_distribution_over_several_steps_is_the_targets(verifier, shape, draw):
    if not VERIFIERS.find(verifier).lossless:
        pytest.skip("lossy")
    table = random_table(1)
    decoder = decode(verifier, shape, draw, ROWS, table, temperature=0.8)
    for _ in range(LENGTH):
        decoder.step()
    assert not bool(decoder.batch.active.any())
    counts = torch.bincount(index_of(decoder.batch.tokens[:, 2 : 2 + LENGTH], 3), minlength=3**LENGTH).double()
    assert abs(deviation(counts, joint((table / 0.8).softmax(-1), *PROMPT, LENGTH))) < BOUND
    summary = decoder.stats.summary()
    assert all(accepted > 0.2 * steps for accepted, steps in zip(summary.accepted[:1], [ROWS], strict=True))


@every_case
def test_greedy_output_is_the_targets(verifier, shape, draw):
    for seed in range(8):
        table = random_table(seed)
        decoder = decode(verifier, shape, draw, 3, table)
        for _ in range(LENGTH):
            decoder.step()
        wanted = list(PROMPT)
        for _ in range(LENGTH):
            wanted.append(int(table[wanted[-2], wanted[-1]].argmax()))
        assert decoder.batch.tokens[:, : len(wanted)].tolist() == [wanted] * 3


@every_case
def test_the_verifier_compiles_whole_and_runs_on_fake_tensors(verifier, shape, draw):
    decoder = decode(verifier, shape, draw, 4, random_table(1), temperature=1.0)
    verify, batch = decoder.verifier, decoder.batch
    tree = decoder.drafter.propose(batch, decoder.plan())
    logits = decoder.target.lm(tree, decoder.cache).logits

    def decide(logits):
        outcome = verify(tree, Scores.of(logits), batch)
        return outcome.path, outcome.num_committed, outcome.next

    torch._dynamo.reset()
    compiled = torch.compile(decide, fullgraph=True, backend="eager")
    for ours, eager in zip(compiled(logits), decide(logits), strict=True):
        assert torch.equal(ours, eager)
    with FakeTensorMode(allow_non_fake_inputs=True):
        path, num, last = decide(torch.empty(logits.shape, dtype=logits.dtype))
    assert path.shape == (4, tree.max_depth) and num.shape == last.shape == (4,)
