"""The kernel's forward against the eager decoder's, for every layout, precision and kind of call."""

import copy

import pytest
import torch

from paceline.core.tree import Tree
from paceline.models.base import LogitsFor
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.sublayers import SkippedSublayers
from tests.kernels.cpu.models import native
from tests.models.layouts import LAYOUTS, first_nodes, random_tree, texts

pytestmark = pytest.mark.one_in(2)

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
ROWS, KNOWN, NODES = 3, 21, 7


def prompts():
    """Prompts of different lengths as one tree: tokens and validity."""
    valid = torch.arange(KNOWN) < torch.tensor([KNOWN, 1, 12])[:, None]
    return Tree.make_chain(texts(ROWS, KNOWN), valid), valid


def poison(cache, value):
    """Whatever was never written must not matter."""
    cache.storage.keys.fill_(value)
    cache.storage.values.fill_(value)


def calls(lm, lazy_zeros=1e4):
    """Logits and taps of a ragged prompt, a tree over it, and the same tree in two parts; only what is valid."""
    cache = lm.new_cache(ROWS, 64).view()
    poison(cache, lazy_zeros)
    taps = tuple({0, 1, lm.num_layers})
    seen = []

    def note(tree, output, start=0):
        valid = tree.valid[:, start:]
        seen.extend(tensor[valid] for tensor in (output.logits, *(output.hidden[tap] for tap in taps)))

    prompt, valid = prompts()
    note(prompt, lm(prompt, cache, taps=taps))
    cache.commit(valid.sum(-1))
    tree = random_tree(ROWS, NODES, 3)
    note(tree, lm(tree, cache, taps=taps))
    lm(first_nodes(tree, 4), cache, logits_for=LogitsFor.NONE)
    note(tree, lm(tree, cache, start=4, taps=taps), start=4)
    chain = Tree.make_chain(tree.tokens, torch.ones_like(tree.valid))
    lm(Tree.make_chain(tree.tokens[:, :3], torch.ones_like(tree.valid)[:, :3]), cache)
    note(chain, lm(chain, cache, start=3, taps=taps), start=3)
    last = lm(prompt, cache, logits_for=LogitsFor.LAST).logits
    return [*seen, last[:, 0]]


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_matches_eager(layout, dtype):
    lm = native(layout, dtype)
    for own, eager in zip(calls(CpuDecoder(lm)), calls(lm), strict=True):
        scale = max(1.0, float(eager.abs().max()))
        assert float((own - eager).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_error_is_at_most_that_of_eager(layout, dtype):
    exact, rounded = native(layout, torch.float64), native(layout, dtype)
    whole = [(own - ideal).norm() for own, ideal in zip(calls(CpuDecoder(rounded)), calls(exact), strict=True)]
    eager = [(own - ideal).norm() for own, ideal in zip(calls(rounded), calls(exact), strict=True)]
    assert float(torch.stack(whole).norm()) <= 1.25 * float(torch.stack(eager).norm())


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gpt_neox", "gpt2-odd-heads"])
def test_unwritten_slots_are_not_read(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    for clean, poisoned in zip(calls(model, 0.0), calls(model, torch.nan), strict=True):
        assert torch.equal(clean, poisoned)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [16, 64])
def test_attention_does_not_read_past_the_last_head(length, dtype):
    model = CpuDecoder(native("gpt2-odd-heads", dtype))
    found = []
    for lazy_zeros in (0.0, torch.nan):
        cache = model.new_cache(1, length + 8).view()
        poison(cache, lazy_zeros)
        tree = Tree.make_chain(texts(1, length), torch.ones(1, length, dtype=torch.bool))
        found.append(model(tree, cache).logits)
    assert torch.equal(*found)


@torch.inference_mode()
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gpt_neox"])
def test_view_selects_rows_and_layers(layout):
    lm = native(layout, torch.float64)
    found = []
    for model in (lm, CpuDecoder(lm)):
        storage = model.new_cache(4, 32)
        for rows, layers in (([2, 0], None), ([1], [2, 0]), ([3], [0])):
            view = storage.view(torch.tensor(rows), layers)
            tree = Tree.make_chain(texts(len(rows), 5), torch.ones(len(rows), 5, dtype=torch.bool))
            found.append(model(tree, view).logits)
            view.commit(torch.full((len(rows),), 5))
            found.append(model(random_tree(len(rows), 4, 1, all_valid=True), view).logits)
        found.append(storage.keys[:, :4].clone())
    half = len(found) // 2
    for own, eager in zip(found[half:], found[:half], strict=True):
        assert torch.allclose(own, eager, rtol=0, atol=1e-10)


@torch.inference_mode()
def test_invalid_nodes_write_nothing_and_give_zeros(monkeypatch):
    lm = native("grouped", torch.float32)
    own = CpuDecoder(lm)
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(shape, 7.0, **options))
    cache = own.new_cache(2, 32).view()
    poison(cache, torch.nan)
    tree = Tree.make_chain(texts(2, 4), torch.tensor([[True, True, False, False], [False] * 4]))
    output = own(tree, cache, taps=(1,))
    assert not output.logits[~tree.valid].any() and not output.hidden[1][~tree.valid].any()
    assert cache.storage.keys[:, 0, 2:].isnan().all() and cache.storage.keys[:, 1].isnan().all()


@torch.inference_mode()
def test_long_prompts_exceed_one_chunk():
    lm = native("grouped", torch.float64)
    found = []
    for model in (lm, CpuDecoder(lm)):
        cache = model.new_cache(10, 120).view()
        tree = Tree.make_chain(texts(10, 100), torch.ones(10, 100, dtype=torch.bool))
        found.append(model(tree, cache).logits)  # 1000 nodes, more than the kernel's buffers hold at once
    assert torch.allclose(*found, rtol=0, atol=1e-10)


@torch.inference_mode()
@pytest.mark.parametrize(
    "skipped", [SkippedSublayers(), SkippedSublayers(attention=frozenset({2}), mlp=frozenset({1}))], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_and_values_do_not_depend_on_what_is_read_of_the_output(layout, skipped):
    """Of the last layer nothing else is computed then."""
    lm = native(layout, torch.float32)
    own, found = CpuDecoder(lm), []
    if skipped:
        own = own.without(skipped)
    for options in ({}, dict(logits_for=LogitsFor.NONE), dict(logits_for=LogitsFor.NONE, taps=(lm.num_layers,))):
        cache = own.new_cache(2, 32).view()
        tree = Tree.make_chain(texts(2, 4), torch.tensor([[True] * 4, [True, True, False, False]]))
        output = own(tree, cache, **options)
        cache.commit(tree.valid.sum(-1))
        found.append([cache.storage.keys[:, :, :4].clone(), cache.storage.values[:, :, :4].clone()])
        if "taps" in options:
            found[-1].append(output.hidden[lm.num_layers])
    for tensors in zip(*found, strict=False):
        assert all(torch.equal(tensors[0], other) for other in tensors[1:])
    assert found[2][2].abs().amax() > 0


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("skipped", [SkippedSublayers(), SkippedSublayers(attention=frozenset({2}))], ids=str)
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_last_nodes_are_those_of_all_nodes(layout, rows, skipped):
    """Of the others the last layer computes no output then; also of more nodes than the kernel holds at once."""
    lm = native(layout, torch.float32)
    own = CpuDecoder(lm, skipped if skipped else None)
    count = torch.tensor([12, 1, 7]).repeat(rows)[:rows]
    tree = Tree.make_chain(texts(rows, 12), torch.arange(12) < count[:, None])
    every = own(tree, own.new_cache(rows, 16).view()).logits
    last = own(tree, own.new_cache(rows, 16).view(), logits_for=LogitsFor.LAST).logits
    assert torch.equal(last[:, 0], every[torch.arange(rows), count - 1])


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("skipped", [SkippedSublayers(), SkippedSublayers(attention=frozenset({2}))], ids=str)
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("last_states", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_last_states_are_those_of_all_nodes(layout, last_states, rows, skipped):
    """Of other nodes the last layer computes nothing but keys and values; taps before it are of all nodes."""
    lm = native(layout, torch.float32)
    own = CpuDecoder(lm, skipped if skipped else None)
    count = torch.tensor([12, 1, 7]).repeat(rows)[:rows]
    tree = Tree.make_chain(texts(rows, 12), torch.arange(12) < count[:, None])
    stored, found = [], []
    for options in ({}, dict(last_states=last_states)):
        cache = own.new_cache(rows, 16).view()
        taps = (1, lm.num_layers)
        found.append(own(tree, cache, logits_for=LogitsFor.NONE, taps=taps, **options).hidden)
        stored.append([cache.storage.keys[:, :rows], cache.storage.values[:, :rows]])
    every, last = found
    kept = tree.valid & (torch.arange(12) >= (count - last_states)[:, None])
    assert torch.equal(last[1], every[1])
    assert torch.equal(last[lm.num_layers][kept], every[lm.num_layers][kept])
    assert not last[lm.num_layers][~kept].any()
    assert all(map(torch.equal, *stored))
    options = dict(logits_for=LogitsFor.LAST, taps=(lm.num_layers,), last_states=last_states)
    with_logits = own(tree, own.new_cache(rows, 16).view(), **options)
    assert torch.equal(with_logits.hidden[lm.num_layers], every[lm.num_layers])


@torch.inference_mode()
def test_moved_weights_are_recompiled():
    lm = copy.deepcopy(native("grouped", torch.float32))
    own = CpuDecoder(lm)
    lm.double()
    tree = Tree.make_chain(texts(1, 4), torch.ones(1, 4, dtype=torch.bool))
    assert torch.allclose(
        own(tree, own.new_cache(1, 8).view()).logits, lm(tree, lm.new_cache(1, 8).view()).logits, atol=1e-10
    )
