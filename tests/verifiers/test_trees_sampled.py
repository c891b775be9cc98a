"""Every verifier of trees over a table, through the real step: greedy outputs, and the gates of the step."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.core.scores import Scores
from paceline.core.tree import Draw
from paceline.verifiers import VERIFIERS
from tests.distributions.trees import TableTrees
from tests.harness import decoder_for, request
from tests.tables import TableLM, random_table

LENGTH = 4
PROMPT = [2, 1]
SHAPES = {"two by two": (0, 0, 1, 1, 2, 2), "three chains": (0, 0, 0, 1, 2, 3)}


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


def decode(verifier, shape, draw, rows, table, **options):
    drafter, max_length = TableTrees(random_table(2), SHAPES[shape], draw), len(PROMPT) + LENGTH
    decoder = decoder_for(drafter, verifier, target=TableLM(table), k=drafter.depth, rows=rows, max_length=max_length)
    decoder.admit([request(PROMPT, max_tokens=LENGTH, seed=row, **options) for row in range(rows)], range(rows))
    return decoder


@pytest.mark.one_in(3)
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


@pytest.mark.one_in(3)
@pytest.mark.each_value
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
