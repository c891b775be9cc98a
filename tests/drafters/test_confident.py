"""Trees of the nodes that the draft is surest of, against sorting every path."""

import pytest
import torch

from paceline.core.tree import Draw, NoDraft
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.confident import ConfidentGrower
from paceline.drafters.tree.shapes import Confident
from tests import tiny as models
from tests.drafters.test_tree_growers import PROMPTS, draft, naive_scores, paths_of, requests, watch
from tests.harness import decoder_for


def naive_tree(decoder, row, shape):
    """Paths of the proposed nodes, by plain forwards and sorts."""

    def children(path):
        distribution = naive_scores(decoder, [[path] if other == row else [[]] for other in range(len(PROMPTS))])[row][
            0
        ]
        best = distribution.log_softmax(-1).sort(descending=True)
        return list(zip(best.values[: shape.width].tolist(), best.indices[: shape.width].tolist(), strict=True))

    scored, frontier = [], [(0.0, [])]
    for _ in range(shape.depth):
        found = [(worth + share, [*path, token]) for worth, path in frontier for share, token in children(path)]
        scored += found
        frontier = sorted(found, key=lambda node: -node[0])[: shape.width]
    return [path for _, path in sorted(scored, key=lambda node: -node[0])[: shape.num_drafted]]


@pytest.mark.parametrize(
    "shape", [Confident(num_drafted=7, depth=3, width=3), Confident(num_drafted=12, depth=4, width=2)]
)
def test_the_proposed_nodes_are_the_likeliest_of_all_scored(shape):
    drafter = ModelDrafter(lm=draft(), shape=shape)
    decoder = decoder_for(drafter, "coupled", k=shape.depth, rows=len(PROMPTS))
    decoder.admit(requests(0.0), range(len(PROMPTS)))
    topologies = set()

    def look(tree):
        assert tree.valid.all()
        for row in range(len(PROMPTS)):
            paths = paths_of(tree, row)[1:]
            assert sorted(paths) == sorted(naive_tree(decoder, row, shape))
            topologies.add(tuple(tree.parents[row].tolist()))

    watch(decoder, look)
    for _ in range(3):
        decoder.step()
    assert len(topologies) > 1, "the topology is data"


class Certain:
    """Logits that leave no doubt: token t is followed by t + 1 with probability 1, so that path nodes are worth 1."""

    def __init__(self, vocab):
        self.vocab = vocab

    def after(self, tokens):
        return 1e4 * torch.nn.functional.one_hot((tokens + 1) % self.vocab, self.vocab).double()

    def __call__(self, forest, start):
        return self.after(forest.tokens[:, start:])


@pytest.mark.parametrize("num_drafted", [2, 3, 5, 8])
@pytest.mark.parametrize("room", [5, 2, 0])
def test_among_equals_the_shallower_comes_first_so_no_node_lacks_its_parent(num_drafted, room):
    decoder = decoder_for(ModelDrafter(lm=models.draft()), "coupled", rows=2)
    decoder.admit(requests(0.0)[:2], range(2))
    batch, read = decoder.batch, Certain(models.VOCAB)
    grower = ConfidentGrower(Confident(num_drafted=num_drafted, depth=4, width=2))
    grown = grower.grow(batch, read.after(batch.root[:, None]), torch.tensor([room, 5]), read, NoDraft.CONTEXT)
    tree = grown.tree
    assert (tree.draw == Draw.FIXED).all() and (tree.source == -1).all()
    for row, depth in enumerate((room, 5)):
        for node in range(1, num_drafted + 1):
            parent = int(tree.parents[row, node])
            assert 0 <= parent < node
            assert tree.depth[row, node] == tree.depth[row, parent] + 1
            assert not tree.valid[row, node] or (tree.valid[row, parent] and tree.depth[row, node] <= depth)
        sure = [
            [(int(batch.root[row]) + i) % models.VOCAB for i in range(1, d + 1)] for d in range(1, min(depth, 4) + 1)
        ]
        proposed = [p for p, valid in zip(paths_of(tree, row)[1:], tree.valid[row, 1:], strict=True) if valid]
        assert all(path in proposed for path in sure[:num_drafted])
