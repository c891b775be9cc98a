"""A view on some of the layers is a smaller model over the same storage."""

import copy

import pytest
import torch

from paceline.core.tree import Tree
from paceline.models.prefill import feed, prefill
from tests.models.layouts import beginnings, check_nodes, close, committed, pair, plain, random_tree, texts


def layers_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def without(model, kept):
    """The transformers model with only the layers ``kept``."""
    smaller = copy.deepcopy(model)
    layers = layers_of(smaller)
    chosen = [layers[i] for i in kept]
    while len(layers):
        del layers[0]
    layers.extend(chosen)
    smaller.config.num_hidden_layers = len(kept)
    return smaller


@pytest.mark.parametrize("layout", ["llama-3", "gpt2"])
@pytest.mark.parametrize("kept", [(0,), (0, 1), (0, 2), (1, 2)])
@torch.no_grad()
def test_a_view_on_some_layers_equals_the_model_with_only_those(layout, kept):
    model, ours = pair(layout)
    smaller = without(model, kept)
    text, tree = texts(2, 12), random_tree(2, 8, 1)
    view = committed(ours, text, (4, 12), capacity=24, layers=kept)
    check_nodes(ours(tree, view).logits, tree, smaller, beginnings(text, (4, 12)))
    others = [layer for layer in range(3) if layer not in kept]
    assert not view.storage.keys[others].any(), "layers outside the view are not written"


@pytest.mark.parametrize("layout", ["grouped", "gpt2"])
@torch.no_grad()
def test_first_layers_read_what_all_layers_committed(layout):
    model, ours = pair(layout)
    text, tree = texts(2, 12), random_tree(2, 8, 3)
    view = committed(ours, text, (4, 12), capacity=24)
    early = view.apart(layers=range(2))
    assert early.layers == (0, 1)
    output = ours(tree, early, taps=(2,))
    check_nodes(output.logits, tree, without(model, (0, 1)), beginnings(text, (4, 12)))
    whole = ours(tree, view, taps=(2,))
    close(whole.hidden[2][tree.valid], output.hidden[2][tree.valid])


@torch.no_grad()
def test_view_apart_drafts_without_changing_the_committed_slots():
    model, ours = pair("llama-3")
    text = texts(2, 16)
    view = committed(ours, text, (5, 9), capacity=24)
    ahead = view.apart()
    for _ in range(3):
        feed(ours, ahead, text, torch.tensor([1, 2]), 2)
    assert ahead.length.tolist() == [8, 15] and view.length.tolist() == [5, 9]
    chain = Tree.make_chain(text.gather(1, view.length[:, None]), torch.ones(2, 1, dtype=torch.bool))
    logits = ours(chain, view).logits
    logits_ahead = ours(
        Tree.make_chain(text.gather(1, ahead.length[:, None]), torch.ones(2, 1, dtype=torch.bool)), ahead
    ).logits
    for row, (length, further) in enumerate(((5, 8), (9, 15))):
        close(logits[row, 0], plain(model, text[row, : length + 1].tolist())[-1])
        close(logits_ahead[row, 0], plain(model, text[row, : further + 1].tolist())[-1])


@torch.no_grad()
def test_a_view_of_some_rows_does_not_change_the_others():
    model, ours = pair("llama-3")
    text = texts(4, 12)
    storage = ours.new_cache(4, 16)
    prefill(ours, storage.view(), text, torch.tensor([3, 3, 3, 3]), 3, taps=())
    before = storage.keys[:, [0, 2]].clone(), storage.values[:, [0, 2]].clone()
    rows = torch.tensor([3, 1])
    some = storage.view(rows)
    some.truncate(0)
    prefill(ours, some, text[rows], torch.tensor([7, 11]), 11, taps=())
    assert storage.length.tolist() == [3, 11, 3, 7]
    assert torch.equal(storage.keys[:, [0, 2]], before[0]) and torch.equal(storage.values[:, [0, 2]], before[1])
    chain = Tree.make_chain(text[rows, :1], torch.ones(2, 1, dtype=torch.bool))
    logits = ours(chain, some).logits
    for row, (source, length) in enumerate(((3, 7), (1, 11))):
        close(logits[row, 0], plain(model, text[source, :length].tolist() + text[source, :1].tolist())[-1])
