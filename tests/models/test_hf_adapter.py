"""The adapter runs transformers' own code on a slot cache: hidden states, precision, and the model's own state.

Logits and decoded sequences are tested by test_parity and test_generate.
"""

import pytest
import torch

from paceline.core.tree import Draw, Tree
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.models.adapter.adapt import adapt
from paceline.models.adapter.lm import TransformersLM
from paceline.models.base import LogitsFor
from paceline.models.prefill import feed
from tests.harness import decoder_for, expected, finish, request, run
from tests.models.adapter_models import MODELS, SIZES, adapted, make
from tests.models.layouts import close, plain, texts

PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MODELS)
def test_reused_rows_match_the_naive_decoder(name):
    model, ours = adapted(name)
    decoder = decoder_for(NgramDrafter(), "coupled", target=ours, rows=2, k=3)
    for prompts in ((PROMPTS[2], PROMPTS[0]), (PROMPTS[1], PROMPTS[2])):
        asked = [request(prompt, max_tokens=12) for prompt in prompts]
        decoder.admit(asked, [0, 1])
        assert finish(decoder, rows=[0, 1], prompts=prompts).texts == [expected(one, model) for one in asked]


@torch.no_grad()
def test_the_last_tap_is_before_the_final_norm():
    model, ours = adapted("stablelm")
    text = texts(1, 24)
    hidden = feed(ours, ours.new_cache(1, 32).view(), text, torch.tensor([24]), 24, taps=[3]).hidden[3]
    close(model.lm_head(model.model.norm(hidden))[0], plain(model, text[0].tolist()))


@torch.no_grad()
def test_the_lm_head_runs_on_requested_nodes_only(monkeypatch):
    model, ours = adapted("stablelm")
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    for logits_for in LogitsFor:
        feed(ours, ours.new_cache(2, 32).view(), texts(2, 9), torch.tensor([9, 4]), 9, logits_for=logits_for)
    handle.remove()
    assert seen == [1, 9]


@torch.no_grad()
def test_a_model_drafts_for_one_of_another_architecture():
    model, ours = adapted("opt")
    drafter = ModelDrafter(lm=adapted("gptj")[1], draws=frozenset({Draw.SHARED}))
    asked = [request(prompt, temperature=1.0, seed=row) for row, prompt in enumerate(PROMPTS)]
    assert run(drafter, "coupled", asked, target=ours).texts == [expected(one, model) for one in asked]


def test_sizes_precision_and_device_are_those_of_the_model():
    for name, heads, size in (("stablelm", 2, 8), ("falcon", 1, 8), ("deepseek-v3", 1, 8)):
        model, ours = adapted(name)
        assert isinstance(ours, TransformersLM) and ours.model is model
        assert (ours.vocab_size, ours.max_positions, ours.num_layers) == (61, 512, 3)
        assert ours.dtype == torch.float64 and ours.device == torch.device("cpu")
        assert ours.slot_bytes == 2 * 3 * heads * size * 8
        assert ours.new_cache(2, 7).keys.shape == (3, 3, 7, heads, size)


@torch.no_grad()
def test_the_model_is_unchanged_and_probed_once():
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
def test_the_attention_implementation_of_the_model_is_kept(attention):
    model = make("StableLm", SIZES)
    expected_logits = plain(model, [1, 2, 3])
    ours = adapt(model)
    model.config._attn_implementation = attention
    chain = Tree.make_chain(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))
    close(ours(chain, ours.new_cache(1, 8).view()).logits[0], expected_logits)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["stablelm", "qwen2-moe", "gptj"])
def test_lower_precisions_pass_the_probe(name, dtype):
    ours = adapt(MODELS[name]().to(dtype))
    assert ours.dtype == dtype == ours.new_cache(1, 4).keys.dtype
