"""Block heads draft a chain in one call of the kernel as they do call by call: texts, drafts, caches."""

from dataclasses import replace

import pytest
import torch

from paceline.core.step import StepPlan
from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.block_config import BlockConfig
from paceline.drafters.block import MAX_SKIPPED_STEPS, BlockDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.engine.runner import ops_for
from paceline.models.backend import pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from tests.drafters.fused import WAVES, check, check_ends_early, check_left_to_calls, native, with_draft_ids
from tests.drafters.pairs import randomised
from tests.drafters.test_block import LAYOUTS, guessable_target, tiny
from tests.harness import decoder_for, planned_step, request
from tests.kernels.cpu.test_fused_drafting import PROCESSING

CPU = torch.device("cpu")
SIZES = dict(block_size=6, mask_token_id=3, taps=(1, 2))
MARKOV = dict(markov_rank=5, anchor_first=True)
HEADS = {
    "plain": {},
    "of one's own mask": dict(mask_token_id=None, block_size=8),
    "anchor first": dict(anchor_first=True, block_size=5),
    "without norms, with biases": dict(qk_norm=False, attention_bias=True, num_layers=3),
    "of a draft vocabulary": dict(draft_vocab_size=40),
    "markov": MARKOV,
    "markov of a draft vocabulary": dict(**MARKOV, draft_vocab_size=40),
    "confident": dict(**MARKOV, confidence=True),
    "confident without the token before": dict(confidence=True),
}


def head_for(target, options, *, kernels=True):
    """A head of which every tensor is random."""
    head = BlockHead.make(BlockConfig(**{**SIZES, **options}), target, generator=torch.Generator().manual_seed(3))
    head = with_draft_ids(randomised(head), target)
    head.requires_grad_(False)
    if kernels:
        head.use_kernels()
    return head


def maker(head):
    return lambda: BlockDrafter(head=head, lm=CpuDecoder(head.decoder))


@pytest.mark.parametrize("sampled", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_those_of_single_calls(name, sampled):
    target = native()
    check(maker(head_for(target.lm, HEADS[name])), target, sampled=sampled, tolerance=1e-12)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "markov of a draft vocabulary", "confident"])
def test_drafts_of_packed_weights_are_those_of_single_calls(name, dtype):
    """Rows come and go meanwhile. PyTorch normalises keys and adds a Markov head's logits in other orders of sums."""
    target = native(dtype)
    pack_weights(target.lm)
    head = head_for(target.lm, HEADS[name])
    pack_weights(head.decoder, beside=target.lm)
    tolerance = 32 * torch.finfo(dtype).eps
    check(maker(head), target, tolerance=tolerance, sampled=0.8, waves=WAVES)


@pytest.mark.parametrize("processing", ["different", "one"])
@pytest.mark.parametrize("name", ["plain", "markov of a draft vocabulary"])
def test_logits_processors_are_of_the_target_s_tokens(name, processing):
    target = native()
    make = maker(head_for(target.lm, HEADS[name]))
    check(make, target, sampled=0.8, processing=PROCESSING[processing], tolerance=1e-12)


@pytest.mark.parametrize("name", ["plain", "markov", "confident", "confident without the token before"])
def test_chains_end_early_where_they_do_call_by_call(name):
    target = native()
    check_ends_early(maker(head_for(target.lm, HEADS[name])), target, tolerance=1e-12)


def both(head, target, **options):
    """Decoders that draft in one call, and call by call."""
    for fused in (True, False):
        drafter = maker(head)()
        decoder = decoder_for(drafter, "coupled", target=target, k=5, parts=dict(ops=ops_for(CPU)), **options)
        if not fused:
            drafter.growers = {depth: (grower, None) for depth, (grower, _) in drafter.growers.items()}
            drafter._prepare_grower = lambda depth: None
        yield decoder


@pytest.mark.parametrize("skipped", [2, MAX_SKIPPED_STEPS + 6])
def test_states_that_wait_are_read_before_the_next_draft(skipped):
    """Also if the queue was read because it was full."""
    target, found = native(), []
    head = head_for(target.lm, HEADS["markov"])
    for decoder in both(head, target, rows=2):
        decoder.admit([request([7, 3, 5], max_tokens=80), request([1], max_tokens=80)], range(2))
        for depth in [0] * skipped + [5, 5]:
            planned_step(decoder, StepPlan(depth))
        cache = decoder.drafter.cache
        keys = [cache.storage.keys[:, row, :size].clone() for row, size in enumerate(cache.length)]
        found.append((cache.length.tolist(), keys, decoder.stats.summary(), decoder.batch.tokens.clone()))
    (one, keys, summary, texts), (other, others, slow, same) = found
    assert one == other and min(one) > skipped and summary == slow and torch.equal(texts, same)
    for mine, its in zip(keys, others, strict=True):
        torch.testing.assert_close(mine, its, atol=1e-12, rtol=0)


def test_rows_without_a_draft_are_read_as_the_others():
    """One row drafts nothing, and the queue of all is empty after a draft."""
    target, found = native(), []
    head = head_for(target.lm, {})
    for decoder in both(head, target, rows=3):
        asked = [request([7, 3, 5]), replace(request([1]), num_draft_tokens=0), request([9, 9, 2, 4])]
        decoder.admit(asked, range(3))
        decoder.step()
        tree = decoder.draft(StepPlan(5))
        assert tree.valid.sum(-1).tolist() == [6, 1, 6]
        assert not decoder.drafter.unread.count.any()
        found.append((tree.tokens * tree.valid, decoder.drafter.cache.length.clone()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_more_slots_than_the_kernel_reads_at_once():
    target, drafts = native(), []
    head = head_for(target.lm, HEADS["markov"])
    for decoder in both(head, target, rows=120):
        decoder.admit([request([7 + row % 50, 3, 5][: 1 + row % 3]) for row in range(120)], range(120))
        decoder.step()
        tree = decoder.draft(StepPlan(5))
        drafts.append(torch.where(tree.valid, tree.tokens, -1))
    assert torch.equal(*drafts) and len(drafts[0].unique()) > 20


@pytest.mark.parametrize("layout", [dict(LAYOUTS["mask token"], block_size=5), LAYOUTS["markov"]])
def test_a_head_that_knows_its_target_is_accepted_as_often(layout):
    """Drafts that are accepted leave states of several tokens to read at once."""
    target = CpuDecoder(guessable_target()[1])
    head = tiny(target.lm, **layout).head
    head.use_kernels()
    _, summary = check(maker(head), target, tolerance=1e-12)
    assert summary.mean_acceptance_length > 2


OTHERS = {
    "gated": dict(MARKOV, markov_head="gated"),
    "rnn": dict(MARKOV, markov_head="rnn", draft_vocab_size=40),
    "refiner": dict(markov_rank=5, markov_head="refiner"),
    "candidates": dict(MARKOV, candidates=4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_markov_heads_are_asked_token_by_token(name):
    target = native()
    check_left_to_calls(maker(head_for(target.lm, OTHERS[name]))(), target)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", [None, Topology.branching((2, 1, 2))])
@pytest.mark.parametrize("name", [*OTHERS, "plain", "confident"])
def test_one_call_reads_what_several_calls_read(name, shape):
    """States and a block: drafts by them, and the cache."""
    target, found = native(), []
    head = head_for(target.lm, OTHERS.get(name) or HEADS[name], kernels=False)
    for kernels in (False, True):
        if kernels:
            head.use_kernels()
        drafter = BlockDrafter(head=head, lm=CpuDecoder(head.decoder), shape=shape)
        decoder = decoder_for(drafter, "traversal", target=target, k=3, rows=3, parts=dict(ops=ops_for(CPU)))
        assert (drafter.block_input is not None) == kernels
        drafter.growers = {depth: (grower, None) for depth, (grower, _) in drafter.growers.items()}
        asked = [request([7, 3, 5], temperature=0.7, seed=1), request([1], max_tokens=2), request([9, 9, 2, 4])]
        decoder.admit(asked, range(3))
        trees = []
        while bool(decoder.batch.active.any()):
            decoder.look_for_copies()
            plan = decoder.plan()
            decoder.begin_step(plan)
            tree = decoder.draft(plan)
            trees.append(torch.where(tree.valid, tree.tokens, -1))
            scores = decoder.score(tree)
            decoder.observe(tree, decoder.decide(tree, scores), scores)
        keys, length = drafter.cache.storage.keys, drafter.cache.length.tolist()
        found.append((trees, length, [keys[:, row, :size].clone() for row, size in enumerate(length)]))
    (trees, length, keys), (others, same, its) = found
    assert length == same and len(trees) == len(others) > 3
    for one, other in zip(trees, others, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(keys, its, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
