"""A token's numbers do not depend on what is computed beside it: bit for bit, in every precision."""

import pytest
import torch

from paceline.core.tree import Tree
from paceline.models.cpu.runtime import CpuDecoder
from tests.models.cpu.models import native
from tests.models.layouts import path_to, random_tree, texts

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
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
def test_a_text_read_at_once_equals_the_text_read_token_by_token(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    tokens = texts(1, 33)
    assert torch.equal(model(chain(tokens), model.new_cache(1, 64).view()).logits, one_by_one(model, tokens))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_of_a_batch_equals_the_row_alone(layout, dtype):
    model = CpuDecoder(native(layout, dtype))
    tokens = texts(7, 9)
    together = model(chain(tokens), model.new_cache(7, 16).view()).logits
    for row in range(7):
        alone = model(chain(tokens[row : row + 1]), model.new_cache(1, 32).view()).logits
        assert torch.equal(together[row], alone[0])


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_node_of_a_tree_equals_the_end_of_its_path(layout, dtype):
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
def test_threads_change_nothing(dtype):
    model = CpuDecoder(native("grouped", dtype))
    tokens, threads = texts(3, 20), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(model(chain(tokens), model.new_cache(3, 32).view()).logits)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
