"""Slots: only commit lasts, invalid nodes write nowhere, views move on their own, memory stays."""

import gc
import resource

import pytest
import torch

from paceline.core.cache import SlotCache
from tests import tiny
from tests.harness import decoder_for, request, tiny_drafter


def storage(rows=3, capacity=8):
    return SlotCache(
        num_layers=2, rows=rows, capacity=capacity, num_kv_heads=1, head_dim=1, dtype=torch.float64, device="cpu"
    )


def put(view, slots, values, valid=None):
    slots, values = torch.tensor(slots), torch.tensor(values, dtype=torch.float64)
    valid = torch.ones_like(slots, dtype=torch.bool) if valid is None else torch.tensor(valid)
    for layer in range(len(view.layers)):
        data = values[..., None, None] + 100 * layer
        view.write(layer, view.target_rows(valid), slots, data, -data)


def test_commit_gathers_the_path_to_the_front_of_each_row():
    cache = storage()
    view = cache.view()
    view.truncate(torch.tensor([0, 1, 2]))
    put(view, [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]], [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])
    view.commit(torch.tensor([3, 1, 0]), torch.tensor([[2, 3], [3, -1], [-1, -1]]))
    assert view.length.tolist() == [3, 2, 2]
    for layer in range(2):
        keys, values = view.read(layer)
        assert (keys[0, :3, 0, 0] - 100 * layer).tolist() == [10, 12, 13]
        assert keys[1, 1, 0, 0] == 20 + 100 * layer
        assert torch.equal(keys, -values)


def test_invalid_nodes_change_nothing():
    cache = storage()
    before = cache.keys[:, :3].clone()
    put(cache.view(), [[0, 7], [0, 1], [3, 4]], [[1, 2], [3, 4], [5, 6]], [[False] * 2] * 3)
    assert torch.equal(cache.keys[:, :3], before)


def test_a_view_of_rows_commits_into_its_storage():
    cache = storage()
    view = cache.view(torch.tensor([2, 0]))
    put(view, [[0, 1], [0, 1]], [[1, 2], [3, 4]])
    view.commit(torch.tensor([2, 1]))
    assert cache.length.tolist() == [1, 0, 2]
    assert cache.view().read(0)[0][:, :2, 0, 0].tolist() == [[3, 4], [0, 0], [1, 2]]
    assert view.read(0)[0][:, :2, 0, 0].tolist() == [[1, 2], [3, 4]]


def test_a_view_apart_drafts_ahead_without_moving_the_storage():
    cache = storage()
    view = cache.view()
    view.truncate(2)
    apart = view.apart(layers=[1])
    apart.commit(torch.tensor([2, 1, 0]))
    assert apart.length.tolist() == [4, 3, 2] and view.length.tolist() == [2, 2, 2]
    assert apart.layers == (1,)
    put(apart, [[4], [3], [2]], [[7], [8], [9]])
    assert cache.keys[0].abs().sum() == 0 and cache.keys[1].abs().sum() > 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_memory_does_not_grow_with_steps(drafter):
    """250 tokens on 8 rows: the cache is allocated once and the process stays the size it had."""
    target = tiny.native(tiny.llama(1, torch.float32, max_position_embeddings=600))
    decoder = decoder_for(tiny_drafter(drafter, target), "coupled", target=target, k=3, rows=8, max_length=520)
    decoder.admit([request([5, row], max_tokens=251, temperature=1.0, seed=row) for row in range(8)], range(8))
    held = (
        decoder.cache.storage.keys.data_ptr(),
        decoder.cache.storage.values.data_ptr(),
        decoder.batch.tokens.data_ptr(),
    )

    def tensors():
        gc.collect()
        found = [x for x in gc.get_objects() if type(x) is torch.Tensor]  # isinstance would wake lazy modules
        return len(found), sum(x.numel() * x.element_size() for x in found)

    for _ in range(60):
        decoder.step()
    count, size = tensors()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while bool(decoder.batch.active.any()):
        decoder.step()
    assert tensors() == (count, size)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 32 * 1024  # KiB
    assert held == (
        decoder.cache.storage.keys.data_ptr(),
        decoder.cache.storage.values.data_ptr(),
        decoder.batch.tokens.data_ptr(),
    )


def test_permute_moves_scratch_and_nothing_else():
    cache = storage()
    view = cache.view()
    view.truncate(torch.tensor([0, 1, 4]))
    put(view, [[0, 1, 2, 3], [1, 2, 3, 4], [4, 5, 6, 7]], [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])
    early = view.apart(layers=[0])
    early.permute(torch.tensor([[0, 3, 1, -1], [0, 2, -1, 1], [-1, -1, -1, 0]]))
    keys, values = view.read(0)
    assert keys[0, :4, 0, 0].tolist() == [10, 13, 11, 13] and keys[1, :5, 0, 0].tolist() == [0, 20, 22, 22, 21]
    assert keys[2, 4:, 0, 0].tolist() == [30, 31, 32, 30]
    assert torch.equal(keys, -values)
    assert view.read(1)[0][0, :4, 0, 0].tolist() == [110, 111, 112, 113], "layers outside the view stay"
    assert view.length.tolist() == [0, 1, 4]
