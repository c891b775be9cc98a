"""One product of the kernel, at every number of rows and at sizes that fill no tile."""

from copy import deepcopy

import pytest
import torch

from paceline.models.backend import gemm_for
from paceline.models.cpu.gemm import gemm_with_weight
from paceline.models.cpu.packed_weights import PackedLinear, gemm_with_layer, pack_linear
from paceline.models.native.quantization import SCHEMES

# The last four are longer than a block of any precision; two have pieces that take turns, two panels that are not full.
# 600 outputs are more than are written together.
SIZES = ((1, 1), (7, 5), (33, 13), (64, 64), (192, 600), (514, 31), (3136, 29), (2600, 150), (6001, 2), (8200, 70))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)],
)
def test_gemm_is_correct_and_batch_invariant(dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    for inner, outer in SIZES:
        weight = torch.randn(outer, inner, generator=generator).to(dtype) / inner**0.5
        x = torch.randn(40, inner, generator=generator).to(dtype)
        exact = x.double() @ weight.double().T
        for panels in (True, False):
            multiply = gemm_with_weight(weight, packed=panels)
            alone = torch.cat([multiply(row[None]) for row in x])
            assert float((alone - exact).abs().max()) <= tolerance * max(1.0, float(exact.abs().max()))
            for rows in (*range(1, 21), 25, 40):
                assert torch.equal(multiply(x[:rows]), alone[:rows])


@pytest.mark.parametrize("packed", [True, False], ids=["panels", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_prompts_equal_single_rows_on_any_number_of_threads(dtype, packed):
    generator, threads = torch.Generator().manual_seed(3), torch.get_num_threads()
    x = torch.randn(420, 2100, generator=generator).to(dtype)  # more rows than are widened at once
    multiply = gemm_with_weight(torch.randn(70, 2100, generator=generator).to(dtype) / 46, packed=packed)
    some = (0, 1, 17, 191, 192, 239, 240, 383, 384, 419)
    alone = torch.cat([multiply(x[row : row + 1]) for row in some])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(multiply(x)[list(some)], alone)
            assert torch.equal(multiply(x[:24])[:2], alone[:2])
    finally:
        torch.set_num_threads(threads)


# A panel that is not full, groups that are not, more outputs than are written together, blocks of long rows, several
# pieces that take turns.
INTEGER_SIZES = ((8, 1), (64, 32), (72, 33), (200, 100), (72, 600), (520, 31), (3136, 96), (8200, 70))


def integers(inner, outer, quantization):
    weight = torch.randn(outer, inner, generator=torch.Generator().manual_seed(outer)) / inner**0.5
    layer = SCHEMES[quantization](inner, outer, bias=False)
    layer.load_state_dict(layer.quantise(weight), assign=True)
    return layer.requires_grad_(False)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 4.1e-3), (torch.float16, 5.2e-4), (torch.float32, 1e-5)]
)
@pytest.mark.parametrize("quantization", SCHEMES)
@pytest.mark.parametrize("size", INTEGER_SIZES, ids=str)
def test_packed_quantized_gemm_is_correct_and_batch_invariant(size, quantization, dtype, tolerance):
    layer = integers(*size, quantization)
    laid = pack_linear(deepcopy(layer), dtype)
    assert isinstance(laid, PackedLinear)
    x = torch.randn(40, size[0], generator=torch.Generator().manual_seed(2)).to(dtype)
    exact, multiply = layer(x.double()), gemm_with_layer(laid, dtype)
    alone = torch.cat([multiply(row[None]) for row in x])
    assert float((alone - exact).abs().max()) <= tolerance * max(1.0, float(exact.abs().max()))
    for rows in range(2, 41):
        assert torch.equal(multiply(x[:rows]), alone[:rows])


@pytest.mark.parametrize(("inner", "quantization"), [(65, "int8"), (100, "int4")])
def test_odd_quantized_rows_are_not_packed(inner, quantization):
    layer = integers(inner, 40, quantization)
    assert pack_linear(layer) is layer
    x = torch.randn(5, inner).bfloat16()
    exact = layer(x.double())
    assert float((gemm_with_layer(layer, torch.bfloat16)(x) - exact).abs().max()) <= 4.1e-3 * float(exact.abs().max())


def test_other_precisions_run_in_torch():
    weight, x = torch.randn(3, 4).half(), torch.randn(2, 4).half()
    assert torch.equal(gemm_for(weight)(x), torch.nn.functional.linear(x, weight))
    assert gemm_for(weight.float().to("meta"))(x.float().to("meta")).shape == (2, 3)
