"""Trees of a draft model: what each node was scored with, how siblings came about, and what the cache keeps."""

import math
from functools import cache

import pytest
import torch

from paceline.core.noise import Philox, Stream
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.prefill import prefill
from tests import tiny as models
from tests.harness import Alternating, decoder_for, expected, request, run

PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6])
MEDUSA = Topology(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1)))
STATIC = {
    "chain": Topology.chain(3),
    "paths": Topology.parallel(3, 3),
    "binary": Topology.branching((2, 2, 2)),
    "narrowing": Topology.branching((3, 2, 1)),
    "flat": Topology.branching((4,)),
    "medusa": MEDUSA,
}
CONFIDENT = {
    "confident": Confident(num_drafted=9, depth=3, width=3),
    "all": Confident(num_drafted=99, depth=2, width=2),
}
SHAPES = {**STATIC, **CONFIDENT}
CASES = [(name, draw) for name, shape in SHAPES.items() for draw in Draw if draw in shape.draws]
every_case = pytest.mark.parametrize(("name", "draw"), CASES, ids=lambda value: getattr(value, "name", value))


@cache
def draft():
    """The target with noise on its weights, right often but not always."""
    return models.noisy(models.target()[1], 0.12)


def noisy(name, draw, lm=None):
    return ModelDrafter(lm=lm or draft(), shape=SHAPES[name], draws=frozenset({draw}))


def requests(temperature=0.0, max_tokens=30, **options):
    return [
        request(p, max_tokens=max_tokens - i, temperature=temperature, seed=50 + i, **options)
        for i, p in enumerate(PROMPTS)
    ]


def watch(decoder, look):
    """Call ``look(tree)`` with every tree that is proposed, before it is verified."""
    drafter = decoder.drafter
    propose = drafter.propose

    def proposing(batch, plan):
        tree = propose(batch, plan)
        look(tree)
        return tree

    drafter.propose = proposing


def paths_of(tree, row):
    """Tokens from the root to each node, the root less."""
    found = []
    for node in range(tree.num_nodes):
        path = []
        while node > 0:
            path.append(int(tree.tokens[row, node]))
            node = int(tree.parents[row, node])
        found.append(path[::-1])
    return found


def naive_scores(decoder, paths):
    """The draft's scores [N, V] per row after its sequence and each of its ``paths``, by forwards that cache
    nothing.
    """
    batch, lm = decoder.batch, decoder.drafter.lm
    found = []
    for row, own in enumerate(paths):
        sequences = [[*batch.tokens[row, : batch.length[row]].tolist(), *path] for path in own]
        longest = max(len(sequence) for sequence in sequences)
        with torch.no_grad():
            logits = lm.causal(
                torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences])
            ).logits
        last = torch.stack([logits[i, len(sequence) - 1] for i, sequence in enumerate(sequences)])
        temperature = batch.sampling.temperature[row]
        found.append(last / temperature if temperature > 0 else last)
    return found


def race(batch, row, position, stream, node):
    """Logarithms of the exponentials [V] of one race of ``row``."""
    words = Philox().bits(batch.key(torch.full((batch.rows, 1), position), stream, node=node), models.VOCAB)[row, 0]
    return (-torch.log1p(-(words.double() + 0.5) * 2.0**-32)).log()


def check_tree(decoder, tree, draw):
    """Every valid node against a naive forward of its path."""
    batch = decoder.batch
    paths = [paths_of(tree, row) for row in range(batch.rows)]
    scores = naive_scores(decoder, paths)
    for row in range(batch.rows):
        sampled = bool(batch.sampling.temperature[row] > 0)
        children = {}
        for node, parent in enumerate(tree.parents[row].tolist()):
            children.setdefault(parent, []).append(node)
        for parent, own in children.items():
            for rank, node in enumerate(own if parent >= 0 else ()):
                distribution = scores[row][parent]
                position = int(batch.length[row]) + len(paths[row][parent])
                assert parent < node and (tree.valid[row, parent] or not tree.valid[row, node])
                if draw is Draw.FIXED or not sampled:
                    best = distribution
                elif draw is Draw.SHARED:
                    best = distribution - race(batch, row, position, Stream.TARGET, 0)
                else:
                    keyed = node if draw is Draw.IID else own[0]
                    best = distribution - race(batch, row, position, Stream.DRAFT, keyed)
                among = 0 if draw is Draw.IID else rank
                assert int(tree.tokens[row, node]) == int(best.argsort(descending=True)[among])
                if draw is Draw.IID or (draw is Draw.NO_REPLACEMENT and sampled):
                    assert tree.draw[row, node] == draw
                    wanted = (
                        distribution.softmax(-1)
                        if sampled
                        else torch.nn.functional.one_hot(distribution.argmax(), len(distribution)).double()
                    )
                    torch.testing.assert_close(tree.probs[row, int(tree.source[row, node])], wanted)
                else:
                    assert tree.source[row, node] == -1
                    assert tree.draw[row, node] == (Draw.FIXED if draw is Draw.NO_REPLACEMENT else draw)


@pytest.mark.one_in(3)
@every_case
def test_every_node_is_what_a_naive_forward_of_its_path_gives(name, draw):
    """In ragged batches of greedy and sampled rows, after any accepted paths."""
    decoder = decoder_for(noisy(name, draw), "coupled", k=3, rows=len(PROMPTS))
    mixed = [r if i % 2 else s for i, (r, s) in enumerate(zip(requests(0.0), requests(0.8), strict=True))]
    decoder.admit(mixed, range(len(PROMPTS)))
    trees = []

    def look(tree):
        assert tree.valid.all(), "there is room, and no filter"
        check_tree(decoder, tree, draw)
        trees.append(tree)

    watch(decoder, look)
    for _ in range(4):
        decoder.step()
    assert len(trees) == 4


@pytest.mark.each_value
@every_case
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_equals_the_reference(name, draw, temperature):
    wanted = requests(temperature, max_tokens=40)
    result = run(noisy(name, draw), "coupled", wanted, k=3)
    assert result.texts == [expected(r) for r in wanted]
    reached = {accepted for report in result.reports for accepted in report.num_accepted}
    if temperature == 0 or draw is Draw.SHARED:
        assert reached == set(range(SHAPES[name].depth + 1)), "every accepted length occurs"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("draw", Draw)
@pytest.mark.parametrize("name", ["medusa"])
def test_output_equals_the_reference_under_filters(name, draw):
    """A filter may leave fewer tokens than siblings."""
    wanted = requests(1.2, top_k=2, top_p=0.8)
    result = run(noisy(name, draw), "coupled", wanted, k=3)
    assert result.texts == [expected(r) for r in wanted]


def itself(name, draw):
    return noisy(name, draw, lm=models.target()[1])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "draw", "temperature"),
    [(n, d, t) for n, d in CASES for t in (0.0, 1.0) if n != "confident" and (t == 0 or d is Draw.SHARED)],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_draft_equal_to_the_target_takes_the_fewest_steps(name, draw, temperature):
    """A stale cache would leave the sequence right and only cost acceptance."""
    depth = SHAPES[name].depth
    wanted = [request(p, max_tokens=24, temperature=temperature, seed=i) for i, p in enumerate(PROMPTS)]
    result = run(itself(name, draw), "coupled", wanted, k=3)
    assert result.texts == [expected(r) for r in wanted]
    assert result.steps == math.ceil(24 / (depth + 1))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("depths", [(3, 0), (0, 0, 0, 0, 5), (1, 5, 0, 2), (0,) * 12 + (2,)])
@pytest.mark.parametrize("name", ["medusa", "binary", "all"])
def test_a_tree_is_cut_to_the_depth_of_the_plan_and_catches_up_after_pauses(name, depths):
    wanted = [request(p, max_tokens=40) for p in PROMPTS]
    drafter = itself(name, Draw.FIXED)
    result = run(drafter, "coupled", wanted, plan=Alternating(*depths))
    assert result.texts == [expected(r) for r in wanted]
    for step, report in enumerate(result.reports[:5]):
        depth = min(depths[step % len(depths)], SHAPES[name].depth)
        assert report.num_accepted == [depth] * len(PROMPTS), "a stale draft cache costs acceptance"
        assert report.num_drafted == [drafter.max_nodes(depth) - 1] * len(PROMPTS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SHAPES)
def test_after_every_step_the_drafts_cache_equals_a_fresh_reading(name):
    draw = Draw.SHARED if name in STATIC else Draw.FIXED
    decoder = decoder_for(noisy(name, draw), "coupled", k=3, rows=len(PROMPTS))
    decoder.admit(requests(0.7, max_tokens=24), range(len(PROMPTS)))
    own, lm = decoder.drafter.cache, decoder.drafter.lm
    while bool(decoder.batch.active.any()):
        decoder.step()
        length = own.length
        missing = (decoder.batch.length - length)[decoder.batch.active]
        assert ((missing >= 1) & (missing <= 2)).all()
        fresh = lm.new_cache(len(PROMPTS), own.capacity).view()
        prefill(lm, fresh, decoder.batch.tokens, length, int(length.max()), ())
        for layer in range(lm.num_layers):
            for store, again in zip(own.read(layer), fresh.read(layer), strict=True):
                for row in range(len(PROMPTS)):
                    torch.testing.assert_close(store[row, : length[row]], again[row, : length[row]])
