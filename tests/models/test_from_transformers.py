"""The native decoder on the weights of a loaded transformers model: shared memory, and both models still work."""

import copy
import gc

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel, LlamaModel

from paceline.models.from_transformers import from_transformers, is_current, is_transformers_model, placement, read_eos
from paceline.models.loading import ModelError
from tests import tiny
from tests.models.layouts import LAYOUTS, plain, shaken, texts


def fresh(layout, dtype=torch.float64):
    return shaken(LAYOUTS[layout](dtype))


def storages(*models):
    """Bytes of every storage of the models' parameters and buffers."""
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def pointers(model):
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters(remove_duplicate=False)}


@torch.no_grad()
def same(ours, model):
    """Whether both give the same logits. transformers computes norms in float32 even for float64 weights."""
    text = texts(1, 24)
    return torch.allclose(ours.causal(text).logits[0], plain(model, text[0].tolist()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_models_compute_the_same_and_the_given_one_is_unchanged(layout):
    model = fresh(layout)
    text = texts(1, 24)
    before = plain(model, text[0].tolist())
    written = model.generate(text, max_new_tokens=12, do_sample=False)
    ours = from_transformers(model)
    assert same(ours, model)
    assert torch.equal(plain(model, text[0].tolist()), before)
    assert torch.equal(model.generate(text, max_new_tokens=12, do_sample=False), written)
    assert ours.dtype == torch.float64 and not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_weight_is_held_twice(layout):
    model = fresh(layout)
    before = sum(storages(model).values())
    ours = from_transformers(model)
    own = set() if ours.rotary is None else storages(ours.rotary).keys()
    assert storages(ours).keys() - storages(model).keys() == own
    assert before <= sum(storages(model, ours).values()) <= 1.01 * before


def test_parameters_become_views_of_packed_tensors():
    model = fresh("grouped")
    ours = from_transformers(model)
    block, layer = ours.blocks[1], model.model.layers[1]
    packed = block.attention.qkv.weight
    assert layer.self_attn.q_proj.weight.data_ptr() == packed.data_ptr()
    assert layer.self_attn.k_proj.weight.data_ptr() == packed[32:].data_ptr()
    assert layer.self_attn.v_proj.weight.data_ptr() == packed[48:].data_ptr()
    assert layer.mlp.up_proj.weight.data_ptr() == block.ffn.gate_up.weight[48:].data_ptr()
    assert layer.mlp.down_proj.weight.data_ptr() == block.ffn.down.weight.data_ptr()
    model = fresh("gpt2")
    ours = from_transformers(model)
    assert model.transformer.h[0].attn.c_attn.weight.data_ptr() == ours.blocks[0].attention.qkv.weight.data_ptr()
    assert model.lm_head.weight.data_ptr() == ours.embed.weight.data_ptr() and ours.head is None


@pytest.mark.parametrize("layout", ["grouped", "tied", "gpt2"])
def test_second_conversion_copies_nothing(layout, monkeypatch):
    model = fresh(layout)
    first = from_transformers(model)
    before = pointers(model), storages(model, first)
    monkeypatch.setattr(torch, "cat", None)
    second = from_transformers(model)
    assert (pointers(model), storages(model, first)) == before
    assert is_current(first, model) and is_current(second, model)
    monkeypatch.undo()
    assert same(second, model)


def test_at_most_one_packed_tensor_is_in_memory_twice(monkeypatch):
    # At most one packed tensor lies in memory beside its parts at any time.
    model = fresh("grouped")

    def alive():
        tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter)]
        found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(found.values())

    gc.collect()
    before, seen = alive(), []

    def joining(pieces, join=torch.cat):
        joined = join(pieces)
        seen.append((alive() - before, joined.nbytes))
        return joined

    monkeypatch.setattr(torch, "cat", joining)
    from_transformers(model)
    assert len(seen) == 2 * 3  # two groups in every layer
    assert all(more <= size + 1024 for more, size in seen)
    assert all(more >= size for more, size in seen), "the measure sees what is held twice"


# Changes of weights in place.


@torch.no_grad()
def scale_a_query(model):
    model.model.layers[1].self_attn.q_proj.weight.mul_(1.5)


def load_other_weights(model):
    model.load_state_dict(tiny.llama(seed=9).state_dict())


def train_a_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    text = texts(2, 12)
    model(text, labels=text).loss.backward()
    optimizer.step()


@torch.no_grad()
def shift_everything(model):
    for parameter in model.parameters():
        parameter.add_(0.01)


IN_PLACE = [scale_a_query, load_other_weights, train_a_step]


@pytest.mark.parametrize("change", IN_PLACE)
@pytest.mark.parametrize("inference", [False, True])
def test_a_change_in_place_is_seen(change, inference):
    model = fresh("grouped")
    with torch.inference_mode(inference):
        ours = from_transformers(model)
    text = texts(1, 24)
    before = plain(model, text[0].tolist())
    change(model)
    assert (plain(model, text[0].tolist()) - before).abs().max() > 1e-3
    assert is_current(ours, model) and same(ours, model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_change_of_every_parameter_is_seen(layout):
    model = fresh(layout)
    ours = from_transformers(model)
    shift_everything(model)
    assert is_current(ours, model) and same(ours, model)


# Changes after which the weights are no longer shared.


def replace_a_parameter(model):
    layer = model.model.layers[2].self_attn
    layer.k_proj.weight = nn.Parameter(layer.k_proj.weight.detach().clone())


def untie(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


def bias_a_layer(model):
    model.model.layers[0].mlp.down_proj.bias = nn.Parameter(torch.zeros(32, dtype=torch.float64))


def drop_a_parameter(model):
    del model.model.layers[0].mlp.up_proj.weight


PARTED = {
    "precision": lambda model: model.to(torch.float32),
    "replaced": replace_a_parameter,
    "untied": untie,
    "resized": lambda model: model.resize_token_embeddings(70),
    "more": bias_a_layer,
    "less": drop_a_parameter,
}


@pytest.mark.parametrize("case", PARTED)
def test_parameters_that_are_no_longer_shared_are_detected(case):
    model = fresh("tied")
    ours = from_transformers(model)
    model.to(torch.float64).train()
    assert is_current(ours, model), "nothing has happened yet"
    PARTED[case](model)
    assert not is_current(ours, model)


def test_models_of_equal_weights_are_told_apart():
    model = fresh("gpt2")
    other = copy.deepcopy(model)
    ours, others = from_transformers(model), from_transformers(other)
    assert not is_current(ours, other) and not is_current(others, model)
    assert not is_current(ours, fresh("grouped"))
    assert not is_current(ours, BertLMHeadModel(BERT))


@pytest.mark.parametrize("layout", ["grouped", "tied", "gpt2"])
def test_a_shared_model_can_be_saved_copied_and_loaded(layout, tmp_path):
    model = fresh(layout)
    ours = from_transformers(model)
    model.save_pretrained(tmp_path)
    assert same(ours, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.get_input_embeddings().weight.zero_()
    assert is_current(ours, model) and same(ours, model)


def test_a_model_loaded_from_files_is_shared(tmp_path):
    fresh("grouped").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    before = sum(storages(model).values())
    ours = from_transformers(model)
    assert same(ours, model) and sum(storages(model, ours).values()) <= 1.01 * before


@pytest.mark.parametrize("order", [("k_proj", "q_proj", "v_proj"), ("q_proj", "v_proj", "k_proj")])
def test_parameters_that_share_a_storage_in_another_order_are_packed(order):
    model = fresh("llama-2")
    attention = model.model.layers[1].self_attn
    flat = torch.cat([attention.get_parameter(f"{name}.weight").data for name in order])
    for name, piece in zip(order, flat.chunk(3), strict=True):
        attention.get_parameter(f"{name}.weight").data = piece
    ours = from_transformers(model)
    assert same(ours, model) and is_current(ours, model)


def test_transposed_parameters_are_packed():
    model = fresh("llama-2")
    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            linear.weight.data = linear.weight.data.t().contiguous().t()
    ours = from_transformers(model)
    assert same(ours, model) and is_current(ours, model)


def test_weights_are_tied_if_they_share_memory_whatever_the_config_says():
    model = fresh("tied")
    untie(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    ours = from_transformers(model)
    assert ours.head is not None and same(ours, model)
    model = fresh("grouped")
    model.lm_head.weight = model.model.embed_tokens.weight
    ours = from_transformers(model)
    assert ours.head is None and same(ours, model) and is_current(ours, model)


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
    "shape": (with_parameter(lambda old: old[:, :5].clone()), r"ffn.down.weight has shape \(32, 5\), config.json asks"),
    "gpt2 shape": (
        lambda: with_config(tiny.gpt2(), n_embd=16),
        r"GPT2LMHeadModel: embed.weight has shape \(61, 32\), config.json asks for \(61, 16\)",
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
    with pytest.raises(ModelError, match=r"missing \['blocks.0.ffn.up.weight'\], unexpected \[\]"):
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


def test_precision_and_device_are_those_of_the_parameters():
    assert placement(fresh("gpt2", torch.bfloat16)) == (torch.bfloat16, torch.device("cpu"))


def test_transformers_models_are_recognised():
    model = tiny.llama()
    assert is_transformers_model(model)
    assert not any(is_transformers_model(other) for other in (tiny.native(model), nn.Linear(2, 2), "model", None))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(7, 3, (7,)), ([7, 9], 3, (7, 9)), (None, 3, (3,)), (None, [3, 4], (3, 4)), (None, None, ()), (0, 3, (0,))],
)
def test_end_of_text_is_read_from_the_generation_config_then_the_config(generation, config, expected):
    model = tiny.llama()
    model.generation_config.eos_token_id, model.config.eos_token_id = generation, config
    assert read_eos(model) == expected
    model.generation_config = None
    assert read_eos(model) == (() if config is None else (config,) if isinstance(config, int) else tuple(config))
