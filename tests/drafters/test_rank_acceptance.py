"""Acceptance by rank, against what is seen of every step from outside."""

import pytest

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.optimal import best_topology, expected_length
from paceline.drafters.tree.rank_acceptance import RankAcceptanceDrafter, caterpillar
from paceline.drafters.tree.shapes import Topology
from tests.drafters.test_tree_growers import PROMPTS, draft, watch
from tests.harness import decoder_for, expected, finish, request


def test_a_comb_tries_every_rank_along_the_likeliest_path():
    assert caterpillar(2, 3).nodes == ((0,), (1,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 1))
    assert caterpillar(3, 1) == Topology.branching((3,))


def measured(shape, width, requests, draw=Draw.FIXED, k=3):
    drafter = RankAcceptanceDrafter(drafter=ModelDrafter(lm=draft(), shape=shape, draws=frozenset({draw})), width=width)
    decoder = decoder_for(drafter, "coupled", k=k, rows=len(requests))
    decoder.admit(requests, range(len(requests)))
    return drafter, decoder


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [caterpillar(4, 3), Topology.branching((3, 2, 2))])
@pytest.mark.parametrize("stops", [(), (15, 33, 40)])
def test_counts_are_those_of_the_outputs(shape, stops):
    """Each token that was decided below a node, looked up among the children of that node."""
    requests = [request(p, max_tokens=40 - i, stop_tokens=stops) for i, p in enumerate(PROMPTS)]
    drafter, decoder = measured(shape, 4, requests)
    futures = [[*r.tokens, *expected(r)] for r in requests]
    tried, kept = [0] * 4, [0] * 4

    def look(tree):
        for row, future in enumerate(futures):
            node, at = 0, int(decoder.batch.length[row])
            while bool(decoder.batch.active[row]) and at < len(future) and node is not None:
                own = [n for n in range(1, tree.num_nodes) if tree.parents[row, n] == node and tree.valid[row, n]]
                found = None
                for rank, child in enumerate(own):
                    tried[rank] += 1
                    if tree.tokens[row, child] == future[at]:
                        kept[rank] += 1
                        found = child
                node, at = found, at + 1

    watch(decoder, look)
    finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS)
    assert (drafter.tried.tolist(), drafter.accepted.tolist()) == (tried, kept)
    assert drafter.acceptance_by_rank() == [a / b if b else 0.0 for a, b in zip(kept, tried, strict=True)]
    assert kept[1] > 0


@pytest.mark.slow
def test_the_best_topology_for_what_was_measured_accepts_more_than_a_chain_of_its_size():
    requests = [request(p, max_tokens=60) for p in PROMPTS]
    drafter, decoder = measured(caterpillar(6, 3), 6, requests)
    finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS)
    best = best_topology(drafter.acceptance_by_rank(), 12, 6)
    lengths = {}
    for name, shape in (("best", best), ("chain", Topology.chain(12))):
        _, other = measured(shape, 6, requests, k=shape.depth)
        lengths[name] = finish(other, rows=list(range(len(PROMPTS))), prompts=PROMPTS).summary.mean_acceptance_length
    assert lengths["best"] > lengths["chain"]
    assert lengths["best"] == pytest.approx(expected_length(best, drafter.acceptance_by_rank()), rel=0.2)


def test_a_width_of_nothing_is_refused():
    with pytest.raises(ValueError, match="width=0: give at least 1"):
        RankAcceptanceDrafter(drafter=ModelDrafter(lm=draft()), width=0)
