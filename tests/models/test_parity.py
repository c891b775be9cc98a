"""Logits and hidden states equal transformers', through the cache and on trees: native decoder and adapter."""

import pytest
import torch

from paceline.core.tree import Tree
from paceline.models import prefill as prefilling
from paceline.models.base import LogitsFor
from paceline.models.prefill import feed, prefill
from tests.models.adapter_models import MODELS, adapted
from tests.models.layouts import (
    LAYOUTS,
    MAX_POSITIONS,
    beginnings,
    check_nodes,
    close,
    committed,
    first_nodes,
    pair,
    path_to,
    plain,
    random_tree,
    texts,
    tokens_at,
)

LENGTHS = (0, 5, 17)  # committed tokens of the rows of most tests
ADAPTED = [f"adapter {name}" for name in MODELS]


def subject(name):
    """(transformers model, ours): the native decoder, or the adapter."""
    return adapted(name.removeprefix("adapter ")) if name in ADAPTED else pair(name)


def num_hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "llama-2"])
def test_layouts_differ_from_plain_llama(layout):
    # If a layout's option changed nothing, the tests below would prove nothing about it.
    text = texts(1, 40)[0].tolist()
    assert (plain(pair(layout)[0], text) - plain(pair("llama-2")[0], text)).abs().max() > 0.01


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(40,), (1,) * 8, (7, 1, 13, 2, 17)], ids=["whole", "single", "chunks"])
@torch.no_grad()
def test_prefill_in_chunks_equals_one_plain_forward(layout, sizes):
    model, ours = pair(layout)
    text = texts(2, sum(sizes))
    view = ours.new_cache(2, 48).view()
    pieces = [feed(ours, view, text, torch.full((2,), n), n, logits_for=LogitsFor.ALL).logits for n in sizes]
    found = torch.cat(pieces, dim=1)
    for row in range(2):
        close(found[row], plain(model, text[row].tolist()))


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_causal_forward_equals_one_plain_forward(layout):
    model, ours = pair(layout)
    text = texts(2, 33)
    found = ours.causal(text).logits
    for row in range(2):
        close(found[row], plain(model, text[row].tolist()))


@pytest.mark.parametrize("layout", ["llama-3", "gpt2"])
@pytest.mark.parametrize("chunk", [4, 9, 256])
@torch.no_grad()
def test_ragged_prefill_matches_plain_forwards(layout, chunk, monkeypatch):
    monkeypatch.setattr(prefilling, "CHUNK", chunk)
    model, ours = pair(layout)
    text = texts(4, 20)
    lengths = torch.tensor([1, 8, 19, 9])
    view = ours.new_cache(4, 24).view()
    prefill(ours, view, text, lengths - 1, 18, taps=())
    assert view.length.tolist() == (lengths - 1).tolist()
    last = feed(ours, view, text, torch.ones(4, dtype=torch.int64), 1, logits_for=LogitsFor.LAST).logits
    for row, length in enumerate(lengths.tolist()):
        close(last[row, 0], plain(model, text[row, :length].tolist())[-1])


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in LAYOUTS for seed in range(3)] + [(name, 1) for name in ADAPTED]
)
@torch.no_grad()
def test_every_node_of_a_tree_equals_the_plain_forward_on_its_path(name, seed):
    model, ours = subject(name)
    sequences, tree = texts(3, 20), random_tree(3, 12, seed)
    logits = ours(tree, committed(ours, sequences, LENGTHS)).logits
    compared = check_nodes(logits, tree, model, beginnings(sequences, LENGTHS))
    assert 12 < compared < 36, "the tree should have valid and invalid nodes"


@pytest.mark.parametrize(
    ("name", "cut"),
    [(name, cut) for name in ("llama-3", "grouped", "gpt2") for cut in (1, 5, 11)] + [(name, 5) for name in ADAPTED],
)
@torch.no_grad()
def test_a_tree_in_two_calls_equals_the_tree_in_one(name, cut):
    _, ours = subject(name)
    sequences, tree = texts(3, 20), random_tree(3, 12, 4)
    whole = ours(tree, committed(ours, sequences, LENGTHS)).logits
    view = committed(ours, sequences, LENGTHS)
    first = ours(first_nodes(tree, cut), view).logits
    second = ours(tree, view, start=cut).logits
    assert second.shape[1] == 12 - cut
    close(torch.cat((first, second), dim=1)[tree.valid], whole[tree.valid])


@pytest.mark.parametrize("layout", ["llama-3", "gpt2"])
@torch.no_grad()
def test_committed_path_matches_plain_prefill(layout):
    model, ours = pair(layout)
    text, tree = texts(3, 20), random_tree(3, 12, 6, all_valid=True)
    view = committed(ours, text, LENGTHS)
    ours(tree, view)
    leaves = (11, 7, 0)
    paths = [path_to(tree, row, leaf)[1:] for row, leaf in enumerate(leaves)]
    assert any(path != list(range(1, len(path) + 1)) for path in paths), "no slot would have to move"
    table = torch.tensor([path + [-1] * (11 - len(path)) for path in paths])
    view.commit(torch.tensor([len(path) + 1 for path in paths]), table)
    after = random_tree(3, 6, 8)
    logits = ours(after, view).logits
    known = [[*prompt, *tokens_at(tree, row, [0, *paths[row]])] for row, prompt in enumerate(beginnings(text, LENGTHS))]
    check_nodes(logits, after, model, known)


@pytest.mark.parametrize("name", ["grouped", "gpt2", "adapter mixtral"])
@torch.no_grad()
def test_invalid_nodes_write_nothing_and_scratch_content_is_never_read(name):
    _, ours = subject(name)
    text, tree = texts(3, 20), random_tree(3, 12, 2)
    view = committed(ours, text, LENGTHS)
    clean = ours(tree, view).logits
    view = committed(ours, text, LENGTHS)
    slot = torch.arange(view.capacity)
    for store in (view.storage.keys, view.storage.values):
        store[:, :3].masked_fill_((slot >= view.length[:, None])[None, :, :, None, None], 1e4)
    before = view.storage.keys[:, :3].clone(), view.storage.values[:, :3].clone()
    poisoned = ours(tree, view).logits
    close(poisoned[tree.valid], clean[tree.valid])
    node = slot - view.length[:, None]  # [3, S]
    own = tree.valid.gather(1, node.clamp(0, 11)) & (node >= 0) & (node < 12)
    for store, former in zip((view.storage.keys, view.storage.values), before, strict=True):
        changed = (store[:, :3] != former).flatten(3).any(-1)
        assert torch.equal(changed, own.expand_as(changed)), "exactly the slots of valid nodes change"


@torch.no_grad()
def test_a_row_without_a_valid_node_is_unchanged():
    _, ours = pair("llama-3")
    text = texts(2, 20)
    view = committed(ours, text, (6, 9))
    before = view.storage.keys[:, :2].clone(), view.storage.values[:, :2].clone()
    ours(Tree.make_chain(text[:, :4], torch.zeros(2, 4, dtype=torch.bool)), view)
    assert torch.equal(view.storage.keys[:, :2], before[0]) and torch.equal(view.storage.values[:, :2], before[1])


@pytest.mark.parametrize("name", [*LAYOUTS, *ADAPTED])
@torch.no_grad()
def test_taps_on_every_layer_equal_transformers_hidden_states(name):
    model, ours = subject(name)
    sequence = texts(1, 24)
    theirs = model(sequence, output_hidden_states=True, use_cache=False).hidden_states
    hooks = num_hooks(model)  # transformers leaves hooks of its own
    taps = range(ours.num_layers + 1)
    output = feed(ours, ours.new_cache(1, 32).view(), sequence, torch.tensor([24]), 24, taps=taps)
    assert output.logits is None and sorted(output.hidden) == list(taps) and len(theirs) == len(taps)
    found = [output.hidden] if name in ADAPTED else [output.hidden, ours.causal(sequence, taps=taps).hidden]
    for hidden in found:
        for tap in taps[:-1]:
            close(hidden[tap], theirs[tap].reshape(1, 24, -1))
        last = hidden[ours.num_layers]  # theirs is after the final norm, ours before
        assert last.shape == hidden[0].shape
        if name not in ADAPTED:
            close(ours.compute_logits(last)[0], plain(model, sequence[0].tolist()))
    assert feed(ours, ours.new_cache(1, 32).view(), sequence, torch.tensor([24]), 24).hidden == {}
    assert num_hooks(model) == hooks


@torch.no_grad()
def test_prefill_taps_cover_every_chunk(monkeypatch):
    monkeypatch.setattr(prefilling, "CHUNK", 5)
    model, ours = pair("grouped")
    text = texts(1, 18)
    theirs = model(text, output_hidden_states=True, use_cache=False).hidden_states
    hidden = prefill(ours, ours.new_cache(1, 20).view(), text, torch.tensor([18]), 18, taps=(0, 2))
    assert sorted(hidden) == [0, 2]
    for tap in (0, 2):
        close(hidden[tap], theirs[tap])


@pytest.mark.parametrize("layout", ["llama-3", "gpt2"])
@torch.no_grad()
def test_positions_beyond_the_context_are_clamped_without_effect_on_others(layout):
    # A row at the end of its context may share a step with rows that still have room for the whole tree.
    model, ours = pair(layout)
    text = texts(2, MAX_POSITIONS)
    view = ours.new_cache(2, MAX_POSITIONS + 8).view()
    lengths = (MAX_POSITIONS - 2, 10)
    prefill(ours, view, text, torch.tensor(lengths), lengths[0], taps=())
    chain = Tree.make_chain(texts(2, 6, seed=9), torch.ones(2, 6, dtype=torch.bool))
    logits = ours(chain, view).logits
    assert logits.isfinite().all()
    for row, (length, nodes) in enumerate(zip(lengths, (2, 6), strict=True)):
        known = text[row, :length].tolist() + chain.tokens[row, :nodes].tolist()
        close(logits[row, :nodes], plain(model, known)[-nodes:])


@pytest.mark.parametrize("name", ["tied", "gpt2", *(f"adapter {n}" for n in ("stablelm", "opt", "cohere", "gemma2"))])
@pytest.mark.parametrize("logits_for", list(LogitsFor))
@torch.no_grad()
def test_logits_are_those_of_the_requested_nodes(name, logits_for):
    model, ours = subject(name)
    sequences, lengths = texts(2, 9), (9, 4)
    view = ours.new_cache(2, 32).view()
    found = feed(ours, view, sequences, torch.tensor(lengths), 9, logits_for=logits_for).logits
    whole = [plain(model, sequence) for sequence in beginnings(sequences, lengths)]
    if logits_for is LogitsFor.NONE:
        assert found is None
    elif logits_for is LogitsFor.LAST:
        close(found[:, 0], torch.stack([logits[-1] for logits in whole]))
    else:
        for row, length in enumerate(lengths):
            close(found[row, :length], whole[row])


@torch.no_grad()
def test_packed_segments_match_single_sequences():
    _, lm = pair("grouped", torch.float64)
    tokens = texts(2, 12)
    segment = torch.tensor([[0] * 5 + [1] * 3 + [0] * 4, [7] * 12])
    whole = lm.causal(tokens, taps=(1,), segment=segment)
    for row, start, end in ((0, 0, 5), (0, 5, 8), (1, 0, 12)):
        alone = lm.causal(tokens[row : row + 1, start:end], taps=(1,))
        torch.testing.assert_close(whole.logits[row, start:end], alone.logits[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(whole.hidden[1][row, start:end], alone.hidden[1][0], rtol=0, atol=1e-10)
