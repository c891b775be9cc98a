"""Sub-layers that are skipped: equal to sub-layers that add nothing, and not read at all."""

from copy import deepcopy

import pytest
import torch

from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.program import compile_program
from paceline.models.prefill import feed
from paceline.models.sublayers import SkippedSublayers
from tests.kernels.cpu.models import native, quantised
from tests.models.layouts import LAYOUTS, random_tree, texts

LENGTHS = (4, 12)
SETS = (
    SkippedSublayers(attention=frozenset({0, 2})),
    SkippedSublayers(mlp=frozenset({1})),
    SkippedSublayers(attention=frozenset({1, 2}), mlp=frozenset({0, 2})),
)
every_set = pytest.mark.parametrize("skipped", SETS, ids=str)
every_path = pytest.mark.parametrize("run", [lambda lm: lm, CpuDecoder], ids=["eager", "kernel"])


def parts(lm, skipped):
    """The modules that are skipped."""
    for layer, block in enumerate(lm.blocks):
        if layer in skipped.attention:
            yield from (block.attention, block.attention_norm)
        if layer in skipped.mlp:
            yield from (block.ffn, block.ffn_norm)


@torch.no_grad()
def silenced(lm, skipped):
    """``lm`` with sub-layers whose outputs are zeros."""
    silent = deepcopy(lm)
    for layer, block in enumerate(silent.blocks):
        chosen = [block.attention.output] if layer in skipped.attention else []
        for linear in [*chosen, *([block.ffn.down] if layer in skipped.mlp else [])]:
            for parameter in linear.parameters():
                parameter.zero_()
    return silent


def scored(lm, cache):
    """Logits and all taps of a tree behind texts of different lengths, whose prompts ``lm`` reads too."""
    text, tree = texts(2, max(LENGTHS)), random_tree(2, 8, 1, all_valid=True)
    feed(lm, cache, text, torch.tensor(LENGTHS), max(LENGTHS))
    output = lm(tree, cache, taps=range(4))
    return [output.logits, *(output.hidden[tap] for tap in range(4))]


@pytest.mark.one_in(4)
@every_path
@every_set
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.inference_mode()
def test_skipped_sublayers_add_nothing(layout, skipped, run):
    lm = native(layout, torch.float64)
    whole, rest = run(silenced(lm, skipped)), run(lm).without(skipped)
    expected, found = (scored(one, one.new_cache(2, 24).view()) for one in (whole, rest))
    for one, other in zip(expected, found, strict=True):
        assert float((one - other).abs().max()) <= 1e-10 * max(1.0, float(one.abs().max()))


@every_path
@every_set
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gpt_neox", "olmo2", "granite"])
@torch.inference_mode()
def test_skipped_sublayers_are_neither_read_nor_written(layout, skipped, run):
    lm = native(layout, torch.float64)
    broken = deepcopy(lm)
    for part in parts(broken, skipped):
        for parameter in part.parameters():
            parameter.fill_(torch.nan)
    clean, cache = (run(one).new_cache(2, 24).view() for one in (lm, broken))
    for one, other in zip(
        scored(run(lm).without(skipped), clean), scored(run(broken).without(skipped), cache), strict=True
    ):
        assert torch.equal(one, other)
    for layer in range(lm.num_layers):
        assert bool(cache.storage.keys[layer].any()) is (layer not in skipped.attention)


@torch.inference_mode()
def test_the_kernel_has_no_operation_for_what_is_skipped():
    lm, everything = native("grouped", torch.float32), frozenset(range(3))
    whole = compile_program(lm).model
    for skipped, count in (
        (SkippedSublayers(attention=everything, mlp=everything), 0),
        (SkippedSublayers(attention=everything), 4 * 3),  # norm, matrix, gate, matrix
        (SkippedSublayers(mlp=everything), whole.layers[3] - 4 * 3),
    ):
        assert compile_program(lm, skipped).model.layers[3] == count


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@torch.inference_mode()
def test_weights_are_not_copied(quantization):
    lm = native("grouped", torch.bfloat16)
    if quantization is not None:
        lm = quantised("grouped", torch.bfloat16, quantization)
    held = {parameter.data_ptr() for parameter in lm.parameters()}
    program = compile_program(lm, SETS[2])
    assert {tensor.data_ptr() for tensor in program.refs if isinstance(tensor, torch.Tensor)} <= held


@every_path
@pytest.mark.parametrize("layout", ["grouped", "gpt2"])
@torch.inference_mode()
def test_nothing_skipped_is_bitwise_the_model(layout, run):
    lm = run(native(layout, torch.bfloat16))
    caches = [lm.new_cache(2, 24).view() for _ in range(2)]
    whole, found = scored(lm, caches[0]), scored(lm.without(SkippedSublayers()), caches[1])
    assert all(torch.equal(*both) for both in zip(whole, found, strict=True))
    assert torch.equal(caches[0].storage.keys, caches[1].storage.keys)


@torch.inference_mode()
def test_moved_weights_are_compiled_again_without_what_is_skipped():
    lm = deepcopy(native("grouped", torch.float64))
    rest = CpuDecoder(lm).without(SETS[2])
    before = scored(rest, rest.new_cache(2, 24).view())
    for parameter in lm.parameters():
        parameter.data = parameter.data.clone()
    after = scored(rest, rest.new_cache(2, 24).view())
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))


@every_path
def test_a_layer_that_there_is_not_is_refused(run):
    with pytest.raises(ValueError, match=r"mlp=0;3: the model has no layer 3; give layers from 0 to 2"):
        run(native("grouped", torch.float64)).without(SkippedSublayers(mlp=frozenset({0, 3})))
