"""Packed weights: equal to the unpacked ones, in the same memory."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from paceline.api import load
from paceline.models import loading
from paceline.models.backend import pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.operations import UnsupportedError
from paceline.models.cpu.packed_weights import (
    PackedEmbedding,
    PackedLinear,
    pack_linears,
    pack_matrix,
    panel_layout,
    unpack_matrix,
)
from paceline.models.native.quantization import SCHEMES, quantise
from paceline.models.work import forward_work
from tests import tiny
from tests.api import checkpoints
from tests.kernels.cpu.models import head_of, native
from tests.kernels.cpu.test_invariance import LAYOUTS, chain, one_by_one
from tests.models.layouts import texts

TOKENS = torch.arange(12).view(2, 6)


def bfloat16_lm(**config):
    return tiny.native(tiny.llama(**config)).bfloat16()


def integer_lm(quantization):
    lm = bfloat16_lm()
    state = quantise(lm.state_dict(), quantization, tied_head=lm.config.tied_head)
    return loading.assemble(lm.config, state, device="cpu", quantization=quantization)


@pytest.mark.parametrize("shape", [(32, 2), (64, 10), (33, 4), (7, 6), (95, 8)])
def test_pack_interleaves_rows_and_unpack_restores_them(shape):
    weight = torch.randn(shape).bfloat16()
    panels = pack_matrix(weight, 32)
    assert torch.equal(unpack_matrix(panels, 32), weight)
    flat, last = panels.flatten(), shape[0] // 32 * 32
    for row, column in ((0, 0), (shape[0] - 1, 1), (min(31, shape[0] - 1), shape[1] - 1)):
        wide = 32 if row < last else shape[0] - last
        at = row // 32 * 32 * shape[1] + column // 2 * 2 * wide + row % 32 * 2 + column % 2
        assert flat[at] == weight[row, column]


@pytest.mark.parametrize("tied", [False, True])
def test_packed_model_keeps_logits_and_state_dict(tied):
    lm = bfloat16_lm(tie_word_embeddings=tied)
    before, state = lm.causal(TOKENS).logits, {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    places = {name: parameter.data_ptr() for name, parameter in lm.named_parameters()}
    pack_linears(lm)
    pack_linears(lm)
    laid = [module for module in lm.modules() if isinstance(module, PackedLinear)]
    assert len(laid) == 4 * lm.num_layers + (not tied) and isinstance(lm.embed, PackedEmbedding) == tied
    assert {parameter.data_ptr() for parameter in lm.parameters()} == set(places.values())
    assert float((lm.causal(TOKENS).logits - before).norm()) <= 0.03 * float(before.norm())
    assert torch.equal(lm.embed(torch.arange(lm.vocab_size)[:, None])[:, 0], state["embed.weight"])
    assert lm.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in lm.state_dict().items())
    halved = {name: tensor * 0.5 for name, tensor in state.items()}
    lm.load_state_dict(halved)
    assert all(torch.equal(tensor, halved[name]) for name, tensor in lm.state_dict().items())


@pytest.mark.parametrize("quantization", SCHEMES)
def test_packed_quantized_model_keeps_logits_and_state_dict(quantization):
    lm = integer_lm(quantization)
    before, state = lm.causal(TOKENS).logits, {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    places = {parameter.data_ptr() for parameter in lm.parameters()}
    pack_linears(lm)
    pack_linears(lm)
    assert isinstance(lm.blocks[0].ffn.down, PackedLinear) and isinstance(lm.head, PackedLinear)
    assert {parameter.data_ptr() for parameter in lm.parameters()} == places
    assert float((lm.causal(TOKENS).logits - before).norm()) <= 0.03 * float(before.norm())
    assert lm.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in lm.state_dict().items())
    other = {name: tensor.flip(0) if tensor.dim() == 2 else tensor for name, tensor in state.items()}
    lm.load_state_dict(other)
    assert all(torch.equal(tensor, other[name]) for name, tensor in lm.state_dict().items())


@pytest.mark.parametrize("quantization", [None, *SCHEMES])
def test_packed_weights_of_other_precisions_run_in_torch(quantization):
    lm = bfloat16_lm() if quantization is None else integer_lm(quantization)
    wanted = deepcopy(lm).float().causal(TOKENS).logits
    pack_linears(lm)
    torch.testing.assert_close(lm.float().causal(TOKENS).logits, wanted, rtol=0, atol=1e-4)
    for other in (lm, lm.double()):
        format = other.blocks[0].ffn.down.FORMAT
        if panel_layout(other.dtype, format) != panel_layout(torch.bfloat16, format):
            with pytest.raises(UnsupportedError, match="packed for another precision"):
                CpuDecoder(other)


def test_gradients_flow_through_a_packed_layer():
    lm = bfloat16_lm()
    layer = lm.blocks[0].ffn.down
    x = torch.randn(3, layer.in_features).bfloat16().requires_grad_()
    (wanted,) = torch.autograd.grad(layer(x).sum(), x)
    pack_linears(lm)
    (found,) = torch.autograd.grad(lm.blocks[0].ffn.down(x).sum(), x)
    assert torch.equal(found, wanted)


def test_only_unshared_weights_are_packed():
    def count(lm):
        return sum(isinstance(module, PackedLinear) for module in lm.modules())

    path = checkpoints.pair().target
    assert count(load(path, dtype="bfloat16").lm) > 0
    for quantization in SCHEMES:
        laid = count(load(path, dtype="bfloat16", device="cpu", quantization=quantization).lm)
        assert laid > 0
        assert count(load(path, dtype="float32", device="cpu", quantization=quantization).lm) == laid
        assert count(load(path, dtype="float64", device="cpu", quantization=quantization).lm) == 0
    assert count(load(path, dtype="bfloat16", enforce_eager=True).lm) == 0
    assert (count(load(path, dtype="float32").lm) > 0) == (panel_layout(torch.float32) is not None)
    assert count(load(path, dtype="float64").lm) == 0
    assert count(loading.load(path, dtype=torch.bfloat16)) == 0
    model = tiny.llama().bfloat16()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert count(load(model).lm) == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_trainable_and_odd_weights_are_not_packed():
    lm = bfloat16_lm().requires_grad_(True)
    pack_weights(lm)
    assert not any(isinstance(module, PackedLinear) for module in lm.modules())
    odd = bfloat16_lm()
    odd.blocks[0].ffn.down = nn.Linear(31, 64, bias=False).bfloat16().requires_grad_(False)
    pack_linears(odd)
    assert type(odd.blocks[0].ffn.down) is nn.Linear and isinstance(odd.blocks[0].attention.qkv, PackedLinear)


@torch.inference_mode()
@pytest.mark.parametrize("first", [True, False], ids=["laid", "by row"])
@pytest.mark.parametrize("layout", ["grouped", "tied"])
def test_draft_head_packs_only_its_own_weights(layout, first):
    target = deepcopy(native(layout, torch.bfloat16))
    if first:
        pack_linears(target)
    head, kinds = head_of(target, 1), [type(layer) for layer in target.modules()]
    before = [lm.causal(TOKENS).logits for lm in (target, head)]
    pack_linears(head, beside=target)
    pack_linears(head, beside=target)
    assert (head.embed, head.head) == (target.embed, target.head)
    assert [type(layer) for layer in target.modules()] == kinds
    assert sum(isinstance(layer, PackedLinear) for layer in head.blocks.modules()) == 4 * head.num_layers
    assert all(torch.equal(lm.causal(TOKENS).logits, old) for lm, old in zip((target, head), before, strict=True))
    tree, read = chain(TOKENS), []
    for lm in (head, deepcopy(native(layout, torch.bfloat16))):
        model = CpuDecoder(lm if lm is head else head_of(lm, 1))
        read.append(model(tree, model.new_cache(2, 8).view()).logits)
    assert torch.allclose(*read, rtol=0.1, atol=0.1)


def test_shared_layers_are_packed_once():
    lm = bfloat16_lm()
    lm.blocks[1].ffn.down = lm.blocks[0].ffn.down
    lm.blocks[1].attention.output.weight = lm.blocks[0].attention.output.weight
    lm.head.weight = lm.embed.weight
    before = lm.causal(TOKENS).logits
    pack_linears(lm)
    assert isinstance(lm.blocks[1].ffn.down, PackedLinear) and lm.blocks[1].ffn.down is lm.blocks[0].ffn.down
    assert type(lm.blocks[0].attention.output) is type(lm.head) is nn.Linear
    assert float((lm.causal(TOKENS).logits - before).norm()) <= 0.03 * float(before.norm())


def laid(layout):
    """The kernel's model of a layout, in panels."""
    lm = deepcopy(native(layout, torch.bfloat16))
    pack_linears(lm)
    return CpuDecoder(lm)


@torch.inference_mode()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_logits_are_batch_invariant(layout):
    model = laid(layout)
    tokens, threads = texts(3, 33), torch.get_num_threads()
    alone = one_by_one(model, tokens)
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            assert torch.equal(model(chain(tokens), model.new_cache(3, 64).view()).logits, alone)
        finally:
            torch.set_num_threads(threads)


@torch.inference_mode()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_logits_error_is_at_most_that_of_eager(layout):
    tokens, wide = texts(2, 24), native(layout, torch.bfloat16)
    model, exact = laid(layout), deepcopy(wide).double()
    read = [lm(chain(tokens), lm.new_cache(2, 40).view()).logits.double() for lm in (exact, wide, model)]
    eager, own = ((logits - read[0]).abs().mean() for logits in read[1:])
    assert 0 < float(own) <= 1.25 * float(eager)


@torch.inference_mode()
def test_every_row_of_a_packed_tied_embedding_is_read():
    lm = bfloat16_lm(tie_word_embeddings=True)
    tokens = torch.arange(lm.vocab_size)[None]
    table = lm.embed.weight.clone()
    pack_linears(lm)
    model = CpuDecoder(lm)
    read = model(chain(tokens), model.new_cache(1, lm.vocab_size).view(), taps=(0,))
    assert torch.equal(read.hidden[0][0], table)
    assert torch.equal(lm.embed(tokens)[0], table)


@pytest.mark.parametrize("quantization", [None, *SCHEMES])
def test_a_packed_model_can_be_printed(quantization):
    lm = integer_lm(quantization) if quantization else bfloat16_lm(tie_word_embeddings=True)
    pack_linears(lm)
    assert f"{lm.config.vocab_size}, {lm.config.hidden_size}" in repr(lm)


@pytest.mark.parametrize("quantization", [None, *SCHEMES])
def test_forward_work_does_not_depend_on_packing(quantization):
    lm = bfloat16_lm() if quantization is None else integer_lm(quantization)
    plain = forward_work(lm)
    pack_linears(lm)
    assert forward_work(lm) == plain and plain.quantization == quantization
