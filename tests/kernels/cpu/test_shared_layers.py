"""Fused drafting with shared layers equals drafting call by call, bitwise, caches included."""

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch

from paceline.core.cache import View
from paceline.core.tree import Resume, Tree
from paceline.models.base import LogitsFor, PendingInputs, SharedLayers
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import pack_linears
from tests.kernels.cpu.models import head_of, native
from tests.kernels.cpu.test_fused_drafting import COUNT, DTYPES, KNOWN, LENGTHS, NONE, PROCESSING, ROOM, asked

pytestmark = pytest.mark.one_in(2)

DEPTH, UNWRITTEN = 4, 7.0


@dataclass(frozen=True)
class Two:
    """The target after three texts of different lengths, and a head over its first layers that lacks some of them."""

    target: CpuDecoder
    head: CpuDecoder
    shared: SharedLayers
    cache: View  # the head's
    pending: PendingInputs
    whole: View  # the target's


def resumed(hidden, ready):
    return Resume(layer=0, hidden=hidden, ready=ready, first=0)


def two(target, head, *, layers, recycled=False):
    whole, cache = target.new_cache(3, 24).view(), head.new_cache(3, 24).view()
    known, lengths = KNOWN[:, : max(LENGTHS) - 1], torch.tensor(LENGTHS) - 1
    valid = torch.arange(known.shape[1]) < lengths[:, None]
    chain = Tree.make_chain(known, valid)
    hidden = target(chain, whole, taps=(layers,)).hidden[layers]
    head(chain, cache, resume=resumed(hidden, valid))
    read = lengths - torch.tensor(COUNT)
    whole.commit(lengths), cache.commit(read)
    last = (read[:, None] + torch.arange(2)).clamp(max=known.shape[1] - 1)
    size = target.lm.config.hidden_size
    added = torch.randn(3, 1, size, generator=torch.Generator().manual_seed(3)).to(target.dtype)
    shared = SharedLayers(
        lm=target,
        cache=whole.apart(layers=range(layers)),
        hidden=torch.full((3, 1 + DEPTH, size), UNWRITTEN, dtype=target.dtype),
        added=added.expand(-1, 1 + DEPTH, -1) if recycled else None,
    )
    states = hidden.gather(1, last[..., None].expand(-1, -1, size))
    return Two(target, head, shared, cache, PendingInputs(count=torch.tensor(COUNT), max_count=1, states=states), whole)


def one_by_one(both, batch, tokens, valid, greedy, vocab):
    shared, layers, states = both.shared, len(both.shared.cache.layers), both.pending.states
    for depth in range(tokens.shape[1] - 1):
        now, path = slice(depth, depth + 1), Tree.make_chain(tokens[:, : depth + 1], valid[:, : depth + 1])
        read = both.target(path, shared.cache, start=depth, taps=(layers,), logits_for=LogitsFor.NONE).hidden[layers]
        shared.hidden[:, now] = torch.where(valid[:, now, None], read, shared.hidden[:, now])
        if shared.added is not None:
            read = read + shared.added[:, now]
        if depth == 0:
            count = both.pending.count
            place = torch.arange(2) == count[:, None]
            states = torch.where((place & valid[:, :1])[..., None], read, states)
            there = (torch.arange(2) <= count[:, None]) & valid[:, :1]
            forest = Tree.make_chain(torch.zeros(3, 2, dtype=torch.int64), there)
            logits = both.head(forest, both.cache, logits_for=LogitsFor.LAST, resume=resumed(states, there)).logits
            both.cache.commit(there.sum(-1))
        else:
            forest = Tree.make_chain(tokens[:, 1 : depth + 1], valid[:, 1 : depth + 1])
            logits = both.head(forest, both.cache, start=depth - 1, resume=resumed(read, valid[:, now])).logits
        processed = batch.process(logits[:, -1:, :vocab], tokens[:, None, 1 : depth + 1])
        where = () if greedy else (batch.length[:, None] + depth,)
        picked = (batch.argmax if greedy else batch.pick)(processed, *where)[:, 0]
        tokens[:, depth + 1] = torch.where(valid[:, depth + 1], picked, tokens[:, depth + 1])


def drafted(both, *, processing=NONE, vocab=None, greedy=True, together=True):
    """Tokens of a draft and what is valid of it."""
    batch = asked(processing, vocab=vocab or both.target.vocab_size)
    valid, tokens = torch.tensor(ROOM).bool(), torch.zeros(3, 1 + DEPTH, dtype=torch.int64)
    tokens[:, 0] = batch.root
    if together:
        assert both.head.draft_fused(
            batch, both.cache, both.pending, tokens, valid, greedy=greedy, shared_layers=both.shared
        )
    else:
        one_by_one(both, batch, tokens, valid, greedy, vocab)
    return tokens, valid


def models(layout, dtype, layers):
    target = native(layout, dtype)
    return CpuDecoder(target), CpuDecoder(head_of(target, layers))


def assert_alike(target, head, layers, recycled=False, **options):
    made = []
    for together in (False, True):
        both = two(target, head, layers=layers, recycled=recycled)
        tokens, _ = drafted(both, together=together, **options)
        stores = [cache.storage for cache in (both.whole, both.cache)]
        made.append((tokens, both.shared.hidden, *(part[:, :3] for one in stores for part in (one.keys, one.values))))
    for alone, together in zip(*made, strict=True):
        assert torch.equal(alone, together)
    tokens, written = made[1][0], (made[1][1] != UNWRITTEN).any(-1)
    assert bool((tokens[0, 1:] != 0).any()) and not bool(tokens[1, 3:].any())
    assert written[0].tolist() == [True] * DEPTH + [False], "the last is not read"
    assert written[1].tolist() == [True] * 3 + [False] * 2, "nor what is not valid"


@torch.inference_mode()
@pytest.mark.parametrize("recycled", [False, True], ids=["plain", "recycled"])
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "olmo2", "tied"])
def test_tokens_hidden_states_and_caches_are_those_of_single_calls(layout, dtype, layers, recycled):
    assert_alike(*models(layout, dtype, layers), layers, recycled)


@torch.inference_mode()
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "as the batch"])
@pytest.mark.parametrize("vocab", [None, 11])
@pytest.mark.parametrize("processing", PROCESSING)
def test_whatever_is_asked_of_the_tokens(processing, vocab, greedy):
    target, head = models("grouped", torch.bfloat16, 2)
    assert_alike(target, head, 2, True, processing=PROCESSING[processing], vocab=vocab, greedy=greedy)


@torch.inference_mode()
@pytest.mark.parametrize("layout", ["grouped", "tied"])
def test_so_it_is_with_matrices_in_panels_some_of_them_shared(layout):
    target = deepcopy(native(layout, torch.bfloat16))
    pack_linears(target)
    head = head_of(target, 2)
    pack_linears(head, beside=target)
    assert_alike(CpuDecoder(target), CpuDecoder(head), 2)


@torch.inference_mode()
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_head_that_is_the_rest_of_the_target_drafts_what_the_target_says(dtype, layers):
    both = two(*models("grouped", dtype, layers), layers=layers)
    tokens, valid = drafted(both)
    tree = Tree.make_chain(tokens, valid)
    ready = valid & (torch.arange(1 + DEPTH) < DEPTH)
    resume = Resume(layer=layers, hidden=both.shared.hidden, ready=ready, first=0)
    found = both.target(tree, both.whole, resume=resume).logits
    batch = asked(vocab=both.target.vocab_size)
    said = batch.argmax(batch.process_tree(found, tree))[:, :-1]
    assert torch.equal(torch.where(valid[:, 1:], said, 0), torch.where(valid[:, 1:], tokens[:, 1:], 0))
    assert torch.equal(both.target(tree, both.whole).logits, found), (
        "and verifies it from where the shared layers ended"
    )


@torch.inference_mode()
def test_unsupported_shared_layers_are_declined():
    target, head = models("grouped", torch.float32, 2)
    both = two(target, head, layers=2)
    for other in (target.lm, CpuDecoder(native("grouped", torch.float64))):
        shared = SharedLayers(lm=other, cache=both.shared.cache, hidden=both.shared.hidden)
        valid, tokens = torch.tensor(ROOM).bool(), torch.zeros(3, 1 + DEPTH, dtype=torch.int64)
        assert not head.draft_fused(asked(), both.cache, both.pending, tokens, valid, greedy=True, shared_layers=shared)
        assert not bool(tokens.any())
