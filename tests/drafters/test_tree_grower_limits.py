"""Trees where rows reach limits, and the noise that siblings consume."""

import pytest
import torch

from paceline.core.step import Finish
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from tests import tiny as models
from tests.core.test_noise import Ledger
from tests.drafters.test_tree_growers import PROMPTS, SHAPES, every_case, itself, noisy, requests
from tests.harness import decoder_for, expected, finish, poison, request, run

every_shape = pytest.mark.parametrize(
    ("name", "draw"),
    [("medusa", Draw.SHARED), ("binary", Draw.SHARED), ("flat", Draw.SHARED), ("confident", Draw.FIXED)],
)


@every_shape
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_no_node_is_deeper_than_the_limit_allows(name, draw, max_tokens):
    wanted = [request(p, max_tokens=max_tokens) for p in PROMPTS]
    decoder = decoder_for(noisy(name, draw), "coupled", k=3, rows=len(PROMPTS))
    decoder.admit(wanted, range(len(PROMPTS)))
    with torch.inference_mode():
        tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    deepest = torch.where(tree.valid, tree.depth, 0).amax(-1)
    deepest_of = min(max_tokens - 1, SHAPES[name].depth)
    if name == "confident":  # which need not propose a node of every depth
        assert (
            int(deepest.max()) <= deepest_of
            and int(tree.valid.sum(-1).min()) == SHAPES[name].cut(deepest_of).num_drafted + 1
        )
    else:
        assert deepest.tolist() == [deepest_of] * len(PROMPTS)
    assert finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS).texts == [expected(r) for r in wanted]


@every_shape
def test_rows_keep_to_their_own_depth_and_empty_rows_draft_nothing(name, draw):
    decoder = decoder_for(noisy(name, draw), "coupled", k=3, rows=6)
    wanted = [request(p, max_tokens=30, num_draft_tokens=cap) for cap, p in enumerate(PROMPTS)]
    rows = [4, 0, 5, 2]
    decoder.admit(wanted, rows)
    with torch.inference_mode():
        tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    deepest = torch.where(tree.valid, tree.depth, -1).amax(-1).tolist()
    if name != "confident":
        assert [deepest[row] for row in rows] == [min(cap, SHAPES[name].depth) for cap in range(4)]
    assert (deepest[1], deepest[3]) == (-1, -1)
    assert finish(decoder, rows=rows, prompts=PROMPTS).texts == [expected(r) for r in wanted]


# The longest sequence that a draft can be read after is 24 tokens for both; the binary tree's read nodes are 6, and its
# cache needs a slot more for the node that an accepted path may lack.
SHORT = {
    "context": lambda: models.native(models.llama(1, max_position_embeddings=24)),
    "window": lambda: models.native(models.causal("mistral", 1, sliding_window=24 + 7)),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("name", ["binary", "confident"])
def test_a_row_that_outgrows_the_drafts_reach_drafts_no_more(kind, name):
    drafter = noisy(name, Draw.FIXED, lm=SHORT[kind]())
    wanted = [request([7, 3, 5], max_tokens=60), request([4] * 10, max_tokens=20), request([6] * 40, max_tokens=9)]
    result = run(drafter, "coupled", wanted, k=3)
    assert result.texts == [expected(r) for r in wanted]
    lengths = [len(r.tokens) for r in wanted]
    for report in result.reports:
        for row in range(3):
            if len(report.tokens[row]):
                room = min(24 - lengths[row] + 1, wanted[row].max_tokens - lengths[row] + len(wanted[row].tokens) - 1)
                assert (report.num_drafted[row] > 0) == (room > 0)
                if name == "binary":
                    assert report.num_drafted[row] == 2 ** (max(0, min(3, room)) + 1) - 2
                lengths[row] += len(report.tokens[row])


def test_a_tree_that_no_window_or_vocabulary_holds_is_refused():
    small = models.native(models.causal("mistral", 1, sliding_window=7))
    with pytest.raises(ValueError, match=r"14 draft tokens leave no room in the 7 slots .*: lower num_draft_tokens"):
        decoder_for(noisy("binary", Draw.FIXED, lm=small), "coupled", k=3)
    wide = ModelDrafter(lm=small, shape=Topology.branching((models.VOCAB + 1,)))
    with pytest.raises(ValueError, match="a tree of 62 children per node and a vocabulary of 61: lower the width"):
        decoder_for(wide, "coupled", k=1)


@pytest.mark.one_in(6)
@every_shape
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_full_capacity_while_another_row_is_in_mid_generation(name, draw, family):
    model = getattr(models, family)(
        4, **{"llama": dict(max_position_embeddings=32), "gpt2": dict(n_positions=32)}[family]
    )
    target = models.native(model)
    wanted = [request([7, 3, 5], max_tokens=29), request([2] * 20, max_tokens=12), request([9], max_tokens=31)]
    result = run(noisy(name, draw, lm=target), "coupled", wanted, target=target, k=6, max_length=32)
    assert result.texts == [expected(r, model) for r in wanted]
    assert result.summary.mean_acceptance_length > 1.9


@every_shape
def test_stop_tokens_anywhere_in_a_tree_and_rows_used_again(name, draw):
    decoder = decoder_for(itself(name, draw), "coupled", k=3, rows=2)
    whole = {tuple(p): expected(request(p, max_tokens=20)) for p in PROMPTS}
    for last in range(5):
        for pair in (PROMPTS[:2], PROMPTS[2:]):
            wanted = [request(p, max_tokens=20, stop_tokens=[whole[tuple(p)][last]]) for p in pair]
            decoder.admit(wanted, range(2))
            result = finish(decoder, rows=[0, 1], prompts=pair)
            assert result.texts == [expected(r) for r in wanted]
            assert all(Finish.STOP in {report.finish[row] for report in result.reports} for row in range(2))


@every_shape
def test_scratch_is_never_read(name, draw):
    wanted = requests(0.9, max_tokens=20)
    clean = run(noisy(name, draw), "coupled", wanted, k=3)
    decoder = decoder_for(noisy(name, draw), "coupled", k=3, rows=len(PROMPTS))
    generator = torch.Generator().manual_seed(0)
    decoder.admit(wanted, range(len(PROMPTS)))
    steps = 0
    while bool(decoder.batch.active.any()):
        poison([decoder.cache, decoder.drafter.cache], generator)
        decoder.step()
        assert decoder.results().num_accepted == clean.reports[steps].num_accepted
        steps += 1
    assert steps == clean.steps


@pytest.mark.parametrize("vocab", [models.VOCAB - 40, models.VOCAB + 6])
@pytest.mark.parametrize("shape", [Topology.branching((25, 2)), Confident(num_drafted=40, depth=2, width=25)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_padded_vocabulary_is_cut_or_filled_though_it_be_narrower_than_the_tree(vocab, shape, temperature):
    model = models.llama(1)
    model.resize_token_embeddings(vocab, mean_resizing=False)
    wanted = requests(temperature, max_tokens=12)
    decoder = decoder_for(ModelDrafter(lm=models.native(model), shape=shape), "coupled", k=2, rows=len(PROMPTS))
    decoder.admit(wanted, range(len(PROMPTS)))
    with torch.inference_mode():
        tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    assert (tree.tokens[tree.valid] < vocab).all()
    assert not (tree.valid & ~tree.valid.gather(1, tree.parents.clamp(min=0))).any(), "no node without its parent"
    assert finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS).texts == [expected(r) for r in wanted]


@pytest.mark.one_in(6)
@every_case
def test_no_own_noise_is_consumed_twice(name, draw):
    noise = Ledger()
    decoder = decoder_for(noisy(name, draw), "coupled", k=3, rows=len(PROMPTS), parts=dict(noise=noise))
    decoder.admit(requests(1.0, max_tokens=16), range(len(PROMPTS)))
    finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS)
    own = [entry for entry in noise.used if entry[0] != 0]
    assert len(own) == len(set(own))
    assert bool(own) == (draw in (Draw.IID, Draw.NO_REPLACEMENT))
