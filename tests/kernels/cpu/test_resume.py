"""The kernel goes on from hidden states that it gave itself: bit for bit what the whole forward gives."""

from copy import deepcopy

import pytest
import torch

from paceline.core.tree import Resume, Tree
from paceline.models.base import LogitsFor
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import pack_linears
from paceline.models.native.quantization import SCHEMES
from paceline.models.prefill import prefill
from tests.kernels.cpu.models import head_of, native, quantised
from tests.models.layouts import first_nodes, random_tree, texts

pytestmark = pytest.mark.one_in(2)

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = ("grouped", "gpt2", "gemma", "gpt_neox", "olmo2", "smollm3", "gpt2-odd-heads", "wide-heads")
LAYERS, NODES, ROWS = 3, 9, 3
LENGTHS = torch.tensor([4, 11, 7])


def begun(model, capacity=32):
    view = model.new_cache(ROWS, capacity).view()
    prefill(model, view, texts(ROWS, 12), LENGTHS, 12, taps=())
    return view


def chain(nodes=NODES, rows=ROWS):
    valid = torch.arange(nodes) < torch.tensor([nodes, nodes - 2, 1])[:rows, None]
    return Tree.make_chain(texts(rows, nodes, seed=5), valid)


TREES = {"chain": chain(), "tree": random_tree(ROWS, NODES, 4)}


def some(seed, shape=(ROWS, NODES)):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def passed(model, tree, view, layer, ready):
    """The ready nodes of ``tree`` after ``layer`` layers; of the others nothing is left, in the cache or beside it."""
    hidden = model(tree, view.apart(layers=range(layer)), taps=(layer,), logits_for=LogitsFor.NONE).hidden[layer]
    hidden[~ready] = torch.nan
    rows, nodes = (~ready).nonzero().T
    for store in (view.storage.keys, view.storage.values):
        store[:, rows, LENGTHS[rows] + nodes] = torch.nan
    return Resume(layer=layer, hidden=hidden, ready=ready, first=0)


def assert_as_whole(model, tree, layers, masks):
    view = begun(model)
    for layer in layers:
        whole = model(tree, view, taps=(layer, LAYERS))
        kept = [store[:, :ROWS, :25].clone() for store in (view.storage.keys, view.storage.values)]
        for ready in masks:
            resume = passed(model, tree, view, layer, ready & tree.valid)
            output = model(tree, view, taps=(layer, LAYERS), resume=resume)
            assert torch.equal(output.logits, whole.logits)
            assert all(torch.equal(output.hidden[tap], whole.hidden[tap]) for tap in (layer, LAYERS))
            for store, before in zip((view.storage.keys, view.storage.values), kept, strict=True):
                for row, length in enumerate(LENGTHS.tolist()):
                    slots = [*range(length), *(length + tree.valid[row].nonzero()[:, 0]).tolist()]
                    assert torch.equal(store[:, row, slots], before[:, row, slots])


def masks(tree):
    leaves = ~(tree.parents[:, None, :] == torch.arange(NODES)[:, None]).any(-1)
    return (~leaves, torch.ones_like(leaves), torch.zeros_like(leaves), some(1), some(2))


@torch.inference_mode()
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_resumed_forward_is_bitwise_equal(layout, dtype, kind):
    tree = TREES[kind]
    assert_as_whole(CpuDecoder(native(layout, dtype)), tree, range(LAYERS + 1), masks(tree))


@torch.inference_mode()
@pytest.mark.parametrize("quantization", [None, *SCHEMES])
@pytest.mark.parametrize("layout", ["grouped", "gpt2"])
def test_resumed_forward_is_bitwise_equal_with_packed_weights(layout, quantization):
    if quantization is None:
        lm = deepcopy(native(layout, torch.bfloat16))
    else:
        lm = deepcopy(quantised(layout, torch.bfloat16, quantization))
    pack_linears(lm)
    for tree in TREES.values():
        assert_as_whole(CpuDecoder(lm), tree, (0, 2), (some(1), masks(tree)[0]))


@torch.inference_mode()
@pytest.mark.parametrize("quantization", SCHEMES)
def test_so_are_those_of_integers_row_by_row(quantization):
    model = CpuDecoder(quantised("grouped", torch.float32, quantization))
    assert_as_whole(model, TREES["tree"], (0, 2), (some(1),))


@torch.inference_mode()
def test_the_kernel_resumes_as_the_eager_decoder_does():
    lm = native("grouped", torch.float64)
    found = []
    for model in (lm, CpuDecoder(lm)):
        view, tree, ready = begun(model), TREES["tree"], some(1)
        hidden = model(tree, view.apart(layers=range(2)), taps=(2,)).hidden[2]
        noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        resume = Resume(layer=2, hidden=hidden + noise, ready=ready, first=0)
        found.append(model(tree, view, resume=resume).logits[tree.valid])
    assert torch.allclose(*found, rtol=0, atol=1e-10)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_ready_does_not_pass_the_first_layers_again(dtype):
    model = CpuDecoder(native("grouped", dtype))
    tree, view = TREES["tree"], begun(model)
    whole = model(tree, view)
    resume = passed(model, tree, view, 2, tree.valid)
    slots = LENGTHS[:, None] + torch.arange(NODES)
    view.storage.keys[:2, torch.arange(ROWS)[:, None], slots] = torch.nan
    assert torch.equal(model(tree, view, resume=resume).logits, whole.logits)
    assert view.storage.keys[:2, torch.arange(ROWS)[:, None], slots].isnan().all()


@torch.inference_mode()
@pytest.mark.parametrize("logits_for", [LogitsFor.LAST, LogitsFor.NONE, LogitsFor.ALL])
@pytest.mark.parametrize("start", [0, 4])
def test_later_nodes_resume_with_any_logits_for(start, logits_for):
    model = CpuDecoder(native("grouped", torch.bfloat16))
    view, ready = begun(model), some(3)
    tree = random_tree(ROWS, NODES, 4, all_valid=True)
    before = first_nodes(tree, start or 1)
    model(before, view)
    whole = model(tree, view, start=start, taps=(LAYERS,), logits_for=logits_for)
    resume = passed(model, tree, view, 1, ready)
    model(before, view)
    wide = torch.full((ROWS, NODES, 64), torch.nan, dtype=torch.bfloat16)
    wide[..., :32] = resume.hidden  # not side by side in memory, as a part of what a drafter keeps
    given = Resume(layer=1, hidden=wide[:, start:, :32], ready=ready[:, start:], first=0)
    found = model(tree, view, start=start, taps=(LAYERS,), logits_for=logits_for, resume=given)
    assert torch.equal(found.hidden[LAYERS], whole.hidden[LAYERS])
    assert (found.logits is None and whole.logits is None) or torch.equal(found.logits, whole.logits)


@torch.inference_mode()
def test_more_nodes_than_fit_the_buffers_resume_with_any_number_of_threads():
    model = CpuDecoder(native("grouped", torch.float32))
    tree = Tree.make_chain(texts(10, 110), torch.ones(10, 110, dtype=torch.bool))
    ready = some(6, (10, 110))
    view = model.new_cache(10, 120).view()
    whole, threads = model(tree, view), torch.get_num_threads()
    hidden = model(tree, view.apart(layers=range(2)), taps=(2,)).hidden[2]
    hidden[~ready] = torch.nan
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            resume = Resume(layer=2, hidden=hidden, ready=ready, first=0)
            assert torch.equal(model(tree, view, resume=resume).logits, whole.logits)
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["grouped", "tied", "gpt2", "granite"])
@pytest.mark.parametrize("layers", [1, LAYERS])
def test_a_head_of_the_last_layers_or_of_none_ends_as_the_whole_does(layers, layout, dtype):
    lm = native(layout, dtype)
    model, head = CpuDecoder(lm), CpuDecoder(head_of(lm, layers))
    tree, view = chain(), model.new_cache(ROWS, 32).view()
    whole = model(tree, view, taps=(layers,))
    cache = head.new_cache(ROWS, 32).view()
    resume = Resume(layer=0, hidden=whole.hidden[layers], ready=tree.valid, first=0)
    assert head.num_layers == LAYERS - layers and len(cache.layers) == LAYERS - layers
    assert torch.equal(head(tree, cache, resume=resume).logits, whole.logits)
