"""The native decoder on the weights of a loaded transformers model: shared memory, and both models still work."""

import copy
import gc

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from paceline.models.from_transformers import from_transformers, is_current, is_transformers_model, placement, read_eos
from tests import tiny
from tests.models.adapter_models import SIZES, make
from tests.models.layouts import LAYOUTS, fresh, plain, pointers, texts


def storages(*models):
    """Bytes of every storage of the models' parameters and buffers."""
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


@torch.no_grad()
def same(ours, model):
    """Whether both give the same logits. transformers computes norms in float32 even for float64 weights."""
    text = texts(1, 24)
    return torch.allclose(ours.causal(text).logits[0], plain(model, text[0].tolist()), rtol=0, atol=2e-5)


@pytest.mark.one_in(4)
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
    gc.collect()
    gc.freeze()  # what other tests have left need not be looked at
    model = fresh("grouped")

    def alive():
        tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter)]
        found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(found.values())

    before, seen = alive(), []

    def joining(pieces, join=torch.cat):
        joined = join(pieces)
        seen.append((alive() - before, joined.nbytes))
        return joined

    monkeypatch.setattr(torch, "cat", joining)
    try:
        from_transformers(model)
    finally:
        gc.unfreeze()
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


def test_models_of_equal_weights_are_distinguished():
    model = fresh("gpt2")
    other = copy.deepcopy(model)
    ours, others = from_transformers(model), from_transformers(other)
    assert not is_current(ours, other) and not is_current(others, model)
    assert not is_current(ours, fresh("grouped"))
    assert not is_current(ours, make("Bert", SIZES))


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
