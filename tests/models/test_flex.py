"""FlexAttention matches dense attention, and is used only where it works."""

import logging
import re

import pytest
import torch
from torch.nn.attention import flex_attention

from paceline.core.cache import SlotCache
from paceline.core.tree import Tree
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.native import flex_attention as flex
from paceline.models.native.attention import TreeAttention
from paceline.models.native.flex_attention import BLOCK, FlexAttention, select_attention
from tests import tiny
from tests.harness import request, run
from tests.models.layouts import pair, random_tree, texts

ROWS, HEADS = 3, 2
TREE = Topology.branching((2, 1, 1))
MOST = 10_000  # positions


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """FlexAttention without the compiler, as plain operations."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "_SERVES", {})
    flex._warn.cache_clear()


@pytest.fixture
def chosen(monkeypatch):
    """Treats the CPU as a device with kernels; the attentions that are called."""
    taken = []

    def attend_slots(self, query, keys, values):
        taken.append(type(self))
        return plain(self, query, keys, values)

    plain = FlexAttention.attend_slots
    monkeypatch.setattr(FlexAttention, "attend_slots", attend_slots)
    monkeypatch.setattr(flex, "DEVICES", {"cpu"})
    monkeypatch.setattr(flex, "_compiled", lambda: flex._attend)
    return taken


def filled(capacity, lengths, *, head_dim=16, num_layers=2, seed=0):
    """Storage with random values in every slot, attended or not."""
    torch.manual_seed(seed)
    cache = SlotCache(
        num_layers=num_layers,
        rows=ROWS,
        capacity=capacity,
        num_kv_heads=HEADS,
        head_dim=head_dim,
        dtype=torch.float64,
        device="cpu",
    )
    cache.keys.normal_()
    cache.values.normal_()
    cache.length.copy_(torch.tensor(lengths))
    return cache


def both(tree, view, start, group, *, head_dim=16):
    """The output of one layer's attention by FlexAttention and by dense attention."""
    query = torch.randn(tree.tokens.shape[0], tree.num_nodes - start, group * HEADS, head_dim, dtype=torch.float64)
    ways = (
        FlexAttention(tree, view, start, max_positions=MOST, compiled=False),
        TreeAttention(tree, view, start, max_positions=MOST, group=group),
    )
    return [way.attend_slots(query, *view.read(1)) for way in ways]


def chain(rows, nodes):
    return Tree.make_chain(torch.zeros(rows, nodes, dtype=torch.int64), torch.ones(rows, nodes, dtype=torch.bool))


def alike(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


LENGTHS = {  # capacity: lengths that end before, on and after the edge of a block
    40: (0, 1, 30),
    BLOCK: (0, 57, BLOCK - 9),
    3 * BLOCK + 17: (BLOCK - 1, BLOCK, 3 * BLOCK + 8),
    4 * BLOCK: (BLOCK - 4, 2 * BLOCK - 9, 4 * BLOCK - 9),
}


@pytest.mark.parametrize("capacity", LENGTHS)
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("make", [chain, lambda rows, nodes: random_tree(rows, nodes, 3)], ids=["chain", "tree"])
def test_flex_matches_dense_attention(capacity, group, make):
    view = filled(capacity, LENGTHS[capacity]).view()
    for nodes, start in ((1, 0), (9, 0), (9, 4), (9, 8)):
        alike(*both(make(ROWS, nodes), view, start, group))


@pytest.mark.parametrize("head_dim", [4, 12, 80, 144])
def test_head_sizes_other_than_powers_of_two(head_dim):
    view = filled(300, (4, 130, 250), head_dim=head_dim).view()
    alike(*both(random_tree(ROWS, 7, 5), view, 2, 2, head_dim=head_dim))


def test_more_nodes_than_a_block_has_queries():
    alike(*both(random_tree(ROWS, BLOCK + 13, 2), filled(512, (0, 100, 371)).view(), 5, 2))


def test_views_of_some_rows_and_views_with_their_own_length():
    storage = filled(300, (4, 130, 250))
    alike(*both(random_tree(2, 6, 1), storage.view(torch.tensor([2, 0])), 0, 2))
    ahead = storage.view().apart()
    ahead.commit(torch.tensor([3, 1, 40]))
    alike(*both(random_tree(ROWS, 6, 1), ahead, 3, 2))


def test_unattended_slots_change_nothing():
    storage = filled(300, (4, 130, 250))
    tree = random_tree(ROWS, 6, 1)
    torch.manual_seed(1)
    before, _ = both(tree, storage.view(), 0, 2)
    for row, length in enumerate((4, 130, 250)):
        storage.keys[:, row, length + 6 :] = 1e3
        storage.values[:, row, length + 6 :] = 1e3
    torch.manual_seed(1)
    after, _ = both(tree, storage.view(), 0, 2)
    assert torch.equal(before, after)


def test_blocks_beyond_a_row_are_skipped_and_full_blocks_are_not_masked():
    seen = flex._seen(chain(ROWS, 9), filled(4 * BLOCK, (0, BLOCK - 4, 3 * BLOCK)).view(), 0)
    assert seen.num_whole.flatten().tolist() == [0, 0, 3]
    assert seen.num_mixed.flatten().tolist() == [1, 2, 1]
    assert seen.mixed[:, 0, 0, 0].tolist() == [0, 0, 3]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layout", ["multi-query", "gpt2", "head-dim"])
def test_greedy_sequences_match_dense_attention(layout, chosen, monkeypatch):
    _, ours = pair(layout, torch.float64)
    requests = [request(texts(1, length, seed=length)[0].tolist(), max_tokens=24) for length in (2, 9, 30)]

    def decoded(shape):
        drafter = ModelDrafter(lm=tiny.noisy(ours, 0.03), shape=shape)
        return run(drafter, "coupled", requests, target=ours, max_length=60)

    for shape in (None, TREE):
        chosen.clear()
        found = decoded(shape)
        assert len(chosen) > 3 * found.steps, "every layer of every step"
        monkeypatch.setattr(flex, "DEVICES", {"cuda"})
        assert decoded(shape).texts == found.texts
        monkeypatch.setattr(flex, "DEVICES", {"cpu"})


def made(view=None, tree=None):
    view = view or filled(300, (4, 130, 250)).view()
    return select_attention(tree or chain(view.length.shape[0], 4), view, 0, max_positions=MOST, group=2)


def test_each_shape_is_probed_once_and_prompts_use_dense_attention(chosen):
    assert isinstance(made(), FlexAttention) and isinstance(made(), FlexAttention)
    assert len(chosen) == 1
    assert isinstance(made(tree=chain(ROWS, 5)), FlexAttention)
    assert len(chosen) == 2
    rows = torch.tensor([0, 2])
    assert isinstance(made(filled(300, (4, 130, 250)).view(rows)), TreeAttention)


def test_a_cache_of_no_layers_is_not_probed(chosen):
    empty = filled(300, (4, 130, 250), num_layers=0)
    assert isinstance(made(empty.view()), TreeAttention) and not chosen and not flex._SERVES


def test_devices_without_kernels_use_dense_attention_silently(caplog):
    assert isinstance(made(), TreeAttention)
    assert not caplog.records and not flex._SERVES


def fails(*_):
    raise NotImplementedError("NYI: head sizes of this kind\nand a long story")


def wrong(query, keys, values, length, *seen):
    return flex._attend(query, keys, values, length + 1, *seen)


REASONS = {
    fails: "it does not run here: NYI: head sizes of this kind",
    wrong: r"its results are .* off, with .* allowed",
}


@pytest.mark.parametrize("attend", REASONS)
def test_falls_back_to_dense_attention_and_warns_once(attend, chosen, monkeypatch, caplog):
    monkeypatch.setattr(flex, "_compiled", lambda: attend)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert isinstance(made(), TreeAttention)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(REASONS[attend], record.message)
    assert len(chosen) == 1, "what was refused is not tried again"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_one_compiled_function_serves_all_lengths_and_trees():
    counters = torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()
    view, graphs = filled(300, (4, 130, 250)).view(), []
    view.storage.keys, view.storage.values = view.storage.keys.float(), view.storage.values.float()
    for step, make in enumerate((chain, lambda rows, nodes: random_tree(rows, nodes, 3), chain)):
        view.commit(torch.tensor([step, 1, 2]))
        tree, query = make(ROWS, 6), torch.randn(ROWS, 6, 2 * HEADS, 16)
        ours, theirs = (
            way.attend_slots(query, *view.read(1))
            for way in (
                FlexAttention(tree, view, 0, max_positions=MOST, compiled=True),
                TreeAttention(tree, view, 0, max_positions=MOST, group=2),
            )
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        graphs.append(counters["unique_graphs"])
    assert len(set(graphs)) == 1
