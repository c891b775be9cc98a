"""A forward resumed from hidden states equals a whole one, whichever nodes have passed the first layers."""

import pytest
import torch

from paceline.core.tree import Resume, Tree
from paceline.models.prefill import prefill
from tests.models.layouts import pair, random_tree, texts

LAYERS = 3
LENGTHS = torch.tensor([4, 11])
every_layout = pytest.mark.parametrize("layout", ["grouped", "gpt2", "gemma", "gpt_neox", "olmo2", "smollm3"])


def begun(lm, rows=2, capacity=24):
    view = lm.new_cache(rows, capacity).view()
    prefill(lm, view, texts(rows, 12), LENGTHS, 12, taps=())
    return view


def chain(nodes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    valid = torch.ones(2, nodes, dtype=torch.bool)
    valid[1, nodes - 1 :] = False
    return Tree.make_chain(torch.randint(61, (2, nodes), generator=generator), valid)


def trees():
    return {"chain": chain(6), "tree": random_tree(2, 8, 3)}


def resumed(lm, tree, layer, ready, *, taps, first=0, spoilt=True):
    """Logits and taps of ``tree`` resumed after ``layer`` layers, which only its ready nodes have passed."""
    view = begun(lm)
    shared = view.apart(layers=range(layer))
    hidden = lm(tree, shared, taps=(layer,)).hidden[layer].clone()
    if spoilt:  # what never passed the shared is nowhere
        hidden[~ready] = 1e3
        for index in range(layer):
            rows, nodes = (~ready).nonzero().T
            for store in (view.storage.keys, view.storage.values):
                store[index, rows, LENGTHS[rows] + nodes] = 1e3
    return lm(tree, view, taps=taps, resume=Resume(layer=layer, hidden=hidden, ready=ready, first=first))


def same(ours, whole, valid):
    torch.testing.assert_close(ours[valid], whole[valid], rtol=0, atol=1e-10)


@pytest.mark.one_in(3)
@every_layout
@pytest.mark.parametrize("layer", [0, 1, 2, LAYERS])
@pytest.mark.parametrize("kind", ["chain", "tree"])
@torch.no_grad()
def test_resumed_logits_and_taps_match_a_whole_forward(layout, layer, kind):
    _, lm = pair(layout, torch.float64)
    tree = trees()[kind]
    view = begun(lm)
    whole = lm(tree, view, taps=(layer, LAYERS))
    generator = torch.Generator().manual_seed(layer)
    nodes = tree.num_nodes
    leaves = ~(tree.parents[:, None, :] == torch.arange(nodes)[:, None]).any(-1)
    some = torch.rand(2, nodes, generator=generator) < 0.5
    for ready in (~leaves, torch.ones_like(leaves), torch.zeros_like(leaves), some):
        output = resumed(lm, tree, layer, ready & tree.valid, taps=(layer, LAYERS))
        same(output.logits, whole.logits, tree.valid)
        for tap in (layer, LAYERS):
            same(output.hidden[tap], whole.hidden[tap], tree.valid)


@torch.no_grad()
def test_nodes_before_the_first_unready_one_are_not_rerun():
    _, lm = pair("grouped", torch.float64)
    tree = chain(5)
    whole = lm(tree, begun(lm)).logits
    ready = torch.ones(2, 5, dtype=torch.bool)
    ready[:, 3:] = False
    same(resumed(lm, tree, 2, ready, taps=(), first=3).logits, whole, tree.valid)
    spoilt = ready.clone()
    spoilt[:, 1] = False  # a lie: node 1 never passed, and is said to be before the first that did not
    found = resumed(lm, tree, 2, spoilt, taps=(), first=3).logits
    assert (found - whole)[:, 3].abs().max() > 1e-3


@torch.no_grad()
def test_resumed_keys_and_values_are_committed():
    """The cache after a commit serves the next step, along the path that was accepted."""
    _, lm = pair("grouped", torch.float64)
    parents = torch.tensor([-1, 0, 0, 2]).expand(2, 4)
    tree = Tree.make(texts(2, 4), parents, torch.ones(2, 4, dtype=torch.bool), max_depth=2)
    path = torch.tensor([[2, 3], [2, -1]])
    texts_after = []
    for use in (False, True):
        view = begun(lm)
        resume = None
        if use:
            shared = view.apart(layers=range(2))
            hidden = lm(tree, shared, taps=(2,)).hidden[2]
            resume = Resume(layer=2, hidden=hidden, ready=tree.valid, first=0)
        lm(tree, view, resume=resume)
        view.commit(torch.tensor([3, 2]), path)
        texts_after.append(lm(chain(3, seed=9), view).logits)
    same(texts_after[1], texts_after[0], chain(3).valid)
