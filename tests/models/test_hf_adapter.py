"""The adapter: transformers' own code over our cache, mask and positions equals its plain forward."""

import copy
from functools import cache

import pytest
import torch

from paceline.core.tree import Draw, Tree
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.models.adapter.lm import TransformersLM, adapt
from paceline.models.base import LogitsFor
from paceline.models.prefill import feed, prefill
from tests.harness import decoder_for, expected, finish, request, run
from tests.models.adapter_models import MODELS, SIZES, make
from tests.models.layouts import first_nodes, path_to, plain, random_tree, texts, tokens_at

LENGTHS = (0, 5, 17)
PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2])


@cache
def pair(name):
    """(transformers model, the adapter over it)."""
    model = MODELS[name]()
    return model, adapt(model)


@cache
def noisy_copy(name):
    """A draft model that is right often but not always, through the adapter too."""
    model = copy.deepcopy(pair(name)[0])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.02 * parameter.std(correction=0) * noise)
    return adapt(model)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def committed(ours, text, lengths, capacity=64):
    view = ours.new_cache(len(lengths), capacity).view()
    prefill(ours, view, text, torch.tensor(lengths), max(lengths), taps=())
    return view


def num_hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_that_of_the_naive_decoder(name):
    model, ours = pair(name)
    asked = request(PROMPTS[0], max_tokens=40)
    assert run(NoDrafter(), "coupled", [asked], target=ours).texts == [expected(asked, model)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_a_ragged_batch_with_drafts_is_that_of_the_naive_decoder(name, draft):
    model, ours = pair(name)
    drafter = NgramDrafter() if draft == "ngram" else ModelDrafter(lm=noisy_copy(name))
    asked = [request(PROMPTS[0], max_tokens=40), request(PROMPTS[1]), request(PROMPTS[2], temperature=0.8, seed=5)]
    done = run(drafter, "coupled", asked, target=ours, k=4)
    assert done.texts == [expected(one, model) for one in asked]
    if draft == "model":
        assert sum(sum(report.num_accepted) for report in done.reports) > 10, "the draft should often be right"


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_node_of_a_tree_equals_the_plain_forward_on_its_path(name):
    model, ours = pair(name)
    text, tree = texts(3, 20), random_tree(3, 12, 1)
    logits = ours(tree, committed(ours, text, LENGTHS)).logits
    for row, length in enumerate(LENGTHS):
        for node in tree.valid[row].nonzero()[:, 0].tolist():
            path = tokens_at(tree, row, path_to(tree, row, node))
            close(logits[row, node], plain(model, text[row, :length].tolist() + path)[-1])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_tree_in_two_calls_equals_the_tree_in_one(name):
    _, ours = pair(name)
    text, tree = texts(3, 20), random_tree(3, 12, 4)
    whole = ours(tree, committed(ours, text, LENGTHS)).logits
    view = committed(ours, text, LENGTHS)
    found = torch.cat((ours(first_nodes(tree, 5), view).logits, ours(tree, view, start=5).logits), dim=1)
    close(found[tree.valid], whole[tree.valid])


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_used_again(name):
    model, ours = pair(name)
    decoder = decoder_for(NgramDrafter(), "coupled", target=ours, rows=2, k=3)
    for prompts in ((PROMPTS[2], PROMPTS[0]), (PROMPTS[1], PROMPTS[2])):
        asked = [request(prompt, max_tokens=12) for prompt in prompts]
        decoder.admit(asked, [0, 1])
        assert finish(decoder, rows=[0, 1], prompts=prompts).texts == [expected(one, model) for one in asked]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_taps_on_every_layer_equal_transformers_hidden_states(name):
    model, ours = pair(name)
    text = texts(1, 24)
    theirs = model(text, output_hidden_states=True, use_cache=False).hidden_states
    before = num_hooks(model)  # transformers leaves hooks of its own
    taps = range(ours.num_layers + 1)
    hidden = feed(ours, ours.new_cache(1, 32).view(), text, torch.tensor([24]), 24, taps=taps).hidden
    assert sorted(hidden) == list(taps) and len(theirs) == len(hidden)
    for tap in taps[:-1]:
        close(hidden[tap], theirs[tap])
    assert hidden[ours.num_layers].shape == theirs[-1].shape
    assert feed(ours, ours.new_cache(1, 32).view(), text, torch.tensor([24]), 24).hidden == {}
    assert num_hooks(model) == before


@torch.no_grad()
def test_the_last_tap_stands_before_the_final_norm():
    model, ours = pair("stablelm")
    text = texts(1, 24)
    hidden = feed(ours, ours.new_cache(1, 32).view(), text, torch.tensor([24]), 24, taps=[3]).hidden[3]
    close(model.lm_head(model.model.norm(hidden))[0], plain(model, text[0].tolist()))


@pytest.mark.parametrize("name", ["stablelm", "opt", "cohere", "gemma2"])
@pytest.mark.parametrize("logits_for", list(LogitsFor))
@torch.no_grad()
def test_logits_match_transformers_for_every_logits_for(name, logits_for):
    model, ours = pair(name)
    text, count = texts(2, 9), torch.tensor([9, 4])
    found = feed(ours, ours.new_cache(2, 32).view(), text, count, 9, logits_for=logits_for).logits
    whole = [plain(model, text[row, :length].tolist()) for row, length in enumerate((9, 4))]
    if logits_for is LogitsFor.NONE:
        assert found is None
    elif logits_for is LogitsFor.LAST:
        close(found[:, 0], torch.stack([logits[-1] for logits in whole]))
    else:
        close(found[0], whole[0])
        close(found[1, :4], whole[1])


@torch.no_grad()
def test_the_output_head_of_a_plain_model_runs_on_what_is_asked_alone(monkeypatch):
    model, ours = pair("stablelm")
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    for logits_for in LogitsFor:
        feed(ours, ours.new_cache(2, 32).view(), texts(2, 9), torch.tensor([9, 4]), 9, logits_for=logits_for)
    handle.remove()
    assert seen == [1, 9]


@torch.no_grad()
def test_invalid_nodes_write_nothing_and_scratch_content_is_never_read():
    _, ours = pair("mixtral")
    text, tree = texts(3, 20), random_tree(3, 12, 2)
    clean = ours(tree, committed(ours, text, LENGTHS)).logits
    view = committed(ours, text, LENGTHS)
    slot = torch.arange(view.capacity)
    for store in (view.storage.keys, view.storage.values):
        store[:, :3].masked_fill_((slot >= view.length[:, None])[None, :, :, None, None], 1e4)
    before = view.storage.keys[:, :3].clone()
    poisoned = ours(tree, view).logits
    close(poisoned[tree.valid], clean[tree.valid])
    node = slot - view.length[:, None]
    own = tree.valid.gather(1, node.clamp(0, 11)) & (node >= 0) & (node < 12)
    changed = (view.storage.keys[:, :3] != before).flatten(3).any(-1)
    assert torch.equal(changed, own.expand_as(changed)), "exactly the slots of valid nodes change"


@torch.no_grad()
def test_a_model_drafts_for_one_of_another_architecture():
    model, ours = pair("opt")
    drafter = ModelDrafter(lm=pair("gptj")[1], draws=frozenset({Draw.SHARED}))
    asked = [request(prompt, temperature=1.0, seed=row) for row, prompt in enumerate(PROMPTS)]
    assert run(drafter, "coupled", asked, target=ours).texts == [expected(one, model) for one in asked]


def test_what_is_said_of_a_model_is_true():
    for name, heads, size in (("stablelm", 2, 8), ("falcon", 1, 8), ("deepseek-v3", 1, 8)):
        model, ours = pair(name)
        assert isinstance(ours, TransformersLM) and ours.model is model
        assert (ours.vocab_size, ours.max_positions, ours.num_layers) == (61, 512, 3)
        assert ours.dtype == torch.float64 and ours.device == torch.device("cpu")
        assert ours.slot_bytes == 2 * 3 * heads * size * 8
        assert ours.new_cache(2, 7).keys.shape == (3, 3, 7, heads, size)


@torch.no_grad()
def test_the_model_is_left_as_it_was_and_probed_once():
    model = make("StableLm", SIZES)
    text = texts(1, 12)
    before, attention = plain(model, text[0].tolist()), model.config._attn_implementation
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    forwards = []
    handle = model.register_forward_hook(lambda *_: forwards.append(1))
    adapt(model)
    probed = len(forwards)
    second = adapt(model)
    assert probed > 10 and len(forwards) == probed
    handle.remove()
    assert torch.equal(plain(model, text[0].tolist()), before) and model.config._attn_implementation == attention
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert second.is_current(model)
    assert not second.is_current(model.to(torch.float32)), "another precision is another adapter"
    assert adapt(model).dtype == torch.float32


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@torch.no_grad()
def test_the_attention_that_was_chosen_stays_the_models_own(attention):
    model = make("StableLm", SIZES)
    expected_logits = plain(model, [1, 2, 3])
    ours = adapt(model)
    model.config._attn_implementation = attention
    chain = Tree.make_chain(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))
    close(ours(chain, ours.new_cache(1, 8).view()).logits[0], expected_logits)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["stablelm", "qwen2-moe", "gptj"])
def test_coarser_precisions_pass_the_probe(name, dtype):
    ours = adapt(MODELS[name]().to(dtype))
    assert ours.dtype == dtype == ours.new_cache(1, 4).keys.dtype
