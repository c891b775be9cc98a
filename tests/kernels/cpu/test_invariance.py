"""A token's numbers do not depend on what is computed beside it: bit for bit, in every precision."""

import pytest
import torch

from paceline.core.tree import Tree
from paceline.models.cpu.decoder import CpuDecoder
from tests.kernels.cpu.models import native
from tests.models.layouts import path_to, random_tree, texts

pytestmark = pytest.mark.one_in(2)

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
LAYOUTS = ("grouped", "multi-query", "gpt2", "qwen3", "gpt_neox", "olmo2", "wide-heads", "gpt2-odd-heads")


def chain(tokens):
    return Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))


def one_by_one(model, tokens, capacity=64):
    """Logits [B, T, V] of texts read token by token."""
    cache = model.new_cache(tokens.shape[0], capacity).view()
    pieces = []
    for at in range(tokens.shape[1]):
        pieces.append(model(chain(tokens[:, at : at + 1]), cache).logits)
        cache.commit(torch.ones(tokens.shape[0], dtype=torch.int64))
    return torch.cat(pieces, dim=1)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_prefill_equals_token_by_token(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    tokens = texts(1, 33)
    assert torch.equal(model(chain(tokens), model.new_cache(1, 64).view()).logits, one_by_one(model, tokens))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batched_row_matches_single_row(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    tokens = texts(7, 9)
    together = model(chain(tokens), model.new_cache(7, 16).view()).logits
    for row in range(7):
        alone = model(chain(tokens[row : row + 1]), model.new_cache(1, 32).view()).logits
        assert torch.equal(together[row], alone[0])


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tree_node_matches_its_path_as_a_chain(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    known = texts(1, 18)
    cache = model.new_cache(1, 64).view()
    model(chain(known), cache)
    cache.commit(torch.tensor([18]))
    tree = random_tree(1, 12, 2, all_valid=True)
    logits = model(tree, cache).logits[0]
    for node in range(12):
        path = tree.tokens[:, path_to(tree, 0, node)]
        assert torch.equal(logits[node], one_by_one(model, torch.cat((known, path), dim=1))[0, -1])


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ("grouped", "gpt2-odd-heads", "wide-heads"))
def test_long_prefill_equals_chunked_prefill(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    tokens = texts(1, 150)
    whole = model(chain(tokens), model.new_cache(1, 160).view()).logits
    cache, pieces = model.new_cache(1, 160).view(), []
    for piece in tokens.split((63, 1, 1, 2, 30, 31, 1, 21), dim=1):
        pieces.append(model(chain(piece), cache).logits)
        cache.commit(torch.tensor([piece.shape[1]]))
    assert torch.equal(whole, torch.cat(pieces, dim=1))


@torch.inference_mode()
@pytest.mark.parametrize("known", [1, 2, 31, 63, 64, 65, 100])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ("grouped", "gpt2-odd-heads", "wide-heads"))
def test_branch_matches_its_path_as_a_chain_at_any_length(layout, dtype, known):
    model = CpuDecoder(native(layout, dtype))
    text = texts(1, known)
    cache = model.new_cache(1, 160).view()
    model(chain(text), cache)
    cache.commit(torch.tensor([known]))
    tree = random_tree(1, 40, known, all_valid=True)
    logits = model(tree, cache).logits[0]
    for node in (0, 1, 2, 7, 23, 39):
        path = path_to(tree, 0, node)
        assert torch.equal(logits[node], model(chain(tree.tokens[:, path]), cache).logits[0, -1])


@torch.inference_mode()
@pytest.mark.parametrize("layout", ("grouped", "multi-query", "gpt2"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_do_not_depend_on_threads(dtype, layout):
    model = CpuDecoder(native(layout, dtype))
    tokens, threads = texts(3, 50), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(model(chain(tokens), model.new_cache(3, 64).view()).logits)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
