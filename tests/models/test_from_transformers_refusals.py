"""Loaded transformers models whose weights cannot be shared are refused and unchanged."""

import gc

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertLMHeadModel, LlamaModel

from paceline.models.from_transformers import from_transformers, is_current
from paceline.models.loading import ModelError
from tests import tiny
from tests.models.layouts import fresh, pointers, texts


def drop_a_parameter(model):
    del model.model.layers[0].mlp.up_proj.weight


# What is refused -> (model, message)

BERT = BertConfig(
    vocab_size=61, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, is_decoder=True
)


def with_parameter(make, *, gradient=False):
    """A model with one parameter made from the former one."""

    def build():
        model = fresh("grouped")
        down = model.model.layers[1].mlp.down_proj
        down.weight = nn.Parameter(make(down.weight.detach()), requires_grad=gradient)
        return model

    return build


class Packed(nn.Parameter):
    """Stands for the parameters of quantizing libraries."""


def with_class(model):
    down = model.model.layers[1].mlp.down_proj
    down.weight = Packed(down.weight.detach().to(torch.int8), requires_grad=False)
    return model


def with_config(model, **changes):
    for name, value in changes.items():
        setattr(model.config, name, value)
    return model


DOWN = "model.layers.1.mlp.down_proj.weight"
REFUSED = {
    "architecture": (
        lambda: BertLMHeadModel(BERT),
        "unsupported architecture 'bert' in BertLMHeadModel; supported: gp",
    ),
    "no head": (lambda: LlamaModel(tiny.llama().config), "LlamaModel has no language-model head; load it with AutoMod"),
    "option": (lambda: tiny.llama(attention_bias=True), "LlamaForCausalLM: attention_bias=True is not supported"),
    "rope": (
        lambda: tiny.llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "rope scaling 'dynamic' is not supported",
    ),
    "nowhere": (
        with_parameter(lambda old: old.to("meta")),
        rf"{DOWN} has no storage \(meta\); load .* without offload",
    ),
    "precisions": (
        with_parameter(lambda old: old.float()),
        rf"embed_tokens.weight is float64, {DOWN} float32; .* with model.to",
    ),
    "integers": (
        with_parameter(lambda old: old.to(torch.int8)),
        rf"{DOWN} is no plain floating-point tensor \(Parameter of int8\); load the model without quantization",
    ),
    "eight bits": (with_parameter(lambda old: old.to(torch.float8_e4m3fn)), rf"{DOWN} is no plain .*of float8_e4m3fn"),
    "foreign parameter": (lambda: with_class(fresh("grouped")), rf"{DOWN} is no plain .*\(Packed of int8\)"),
    "quantized": (
        lambda: with_config(fresh("grouped"), quantization_config={"quant_method": "gptq"}),
        r"is quantized; load it without quantization_config, or call model.dequantize\(\)",
    ),
    "shape": (
        with_parameter(lambda old: old[:, :5].clone()),
        r"mlp.down_proj.weight has shape \(32, 5\), config.json asks",
    ),
    "gpt2 shape": (
        lambda: with_config(tiny.gpt2(), n_embd=16),
        r"GPT2LMHeadModel: transformer.wte.weight has shape \(61, 32\), config.json asks for \(61, 16\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_shared_is_refused_and_unchanged(case):
    make, message = REFUSED[case]
    model = make()
    before = pointers(model)
    with pytest.raises(ModelError, match=message):
        from_transformers(model)
    assert pointers(model) == before


def test_an_activation_that_differs_from_the_config_is_refused():
    """As transformers before 5.18 has the first Gemma: its files say "gelu" and mean the approximation."""
    model = tiny.causal("gemma", head_dim=12)
    assert is_current(from_transformers(model), model)
    model.config.hidden_act = "gelu"
    with pytest.raises(ModelError, match=r"made with hidden_act='gelu', which is not the activation .* 5\.18 or later"):
        from_transformers(model)


def test_a_missing_parameter_is_named_and_the_model_is_unchanged():
    model = fresh("grouped")
    drop_a_parameter(model)
    before = pointers(model)
    with pytest.raises(ModelError, match=r"they lack model.layers.0.mlp.up_proj.weight"):
        from_transformers(model)
    assert pointers(model) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_model_on_two_devices_is_refused_and_one_on_cuda_is_shared():
    model = fresh("grouped")
    model.lm_head.to("cuda")
    with pytest.raises(ModelError, match=r"embed_tokens.weight is on cpu, lm_head.weight on cuda:0; put the whole"):
        from_transformers(model)
    model.to("cuda")
    before = torch.cuda.memory_allocated()
    ours = from_transformers(model)
    gc.collect()
    assert ours.device == model.device and torch.cuda.memory_allocated() <= 1.01 * before + 4096
    with torch.no_grad():
        text = texts(1, 24).cuda()
        torch.testing.assert_close(ours.causal(text).logits, model(text).logits, rtol=0, atol=2e-5)
