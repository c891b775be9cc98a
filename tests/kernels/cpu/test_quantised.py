"""Products with integers: the kernel's numbers against the eager decoder's, and the same bits in any company."""

from copy import deepcopy

import pytest
import torch

from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import PackedLinear, pack_linears
from paceline.models.native.quantization import SCHEMES
from tests.kernels.cpu.models import quantised
from tests.kernels.cpu.test_invariance import chain, one_by_one
from tests.kernels.cpu.test_kernel import TOLERANCE, calls
from tests.models.layouts import texts

# Precisions, and whether matrices lie in panels, as those of models that are loaded do.
LAID = (
    (torch.bfloat16, True),
    (torch.bfloat16, False),
    (torch.float32, True),
    (torch.float32, False),
    (torch.float64, False),
)
LAYOUTS = ("grouped", "tied", "head-dim", "gpt2-inner-untied", "qwen3-bias", "gpt_neox", "olmo2", "granite-bias")
FEW = ("grouped", "gpt2-inner-untied")

pytestmark = pytest.mark.parametrize("quantization", SCHEMES)


def kernel(layout, dtype, quantization, laid, source=None):
    """The kernel's model of a layout."""
    lm = deepcopy(quantised(layout, dtype, quantization, source))
    if laid:
        pack_linears(lm)
        assert isinstance(lm.blocks[0].ffn.down, PackedLinear)
    return CpuDecoder(lm)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_matches_eager(layout, dtype, quantization):
    lm = quantised(layout, dtype, quantization)
    for own, eager in zip(calls(CpuDecoder(lm)), calls(lm), strict=True):
        scale = max(1.0, float(eager.abs().max()))
        assert float((own - eager).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("laid", [True, False], ids=["panels", "rows"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_error_is_at_most_that_of_eager(layout, laid, quantization):
    rounded, exact = (
        quantised(layout, dtype, quantization, torch.bfloat16) for dtype in (torch.bfloat16, torch.float64)
    )
    ideal = calls(exact)
    own = kernel(layout, torch.bfloat16, quantization, laid, torch.bfloat16)
    whole = [(found - number).norm() for found, number in zip(calls(own), ideal, strict=True)]
    eager = [(found - number).norm() for found, number in zip(calls(rounded), ideal, strict=True)]
    assert float(torch.stack(whole).norm()) <= 1.25 * float(torch.stack(eager).norm())


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "laid"), LAID, ids=str)
@pytest.mark.parametrize("layout", FEW)
def test_quantized_logits_are_batch_invariant(layout, dtype, laid, quantization):
    model = kernel(layout, dtype, quantization, laid)
    tokens = texts(7, 9)
    alone = one_by_one(model, tokens[:1])
    together = model(chain(tokens), model.new_cache(7, 16).view()).logits  # more rows than are laid out at once
    for row in range(7):
        text = model(chain(tokens[row : row + 1]), model.new_cache(1, 32).view()).logits
        assert torch.equal(together[row], text[0])
    assert torch.equal(together[0], alone[0])


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "laid"), LAID, ids=str)
def test_quantized_gemm_is_invariant_to_the_number_of_rows(dtype, laid, quantization):
    model = kernel("grouped", dtype, quantization, laid)
    tokens = texts(1, 60)
    whole = model(chain(tokens), model.new_cache(1, 64).view()).logits
    for length in (*range(1, 41), 47, 48, 49, 53):
        assert torch.equal(model(chain(tokens[:, :length]), model.new_cache(1, 64).view()).logits, whole[:, :length])


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "laid"), LAID, ids=str)
def test_results_do_not_depend_on_threads(dtype, laid, quantization):
    model = kernel("grouped", dtype, quantization, laid)
    tokens, threads = texts(3, 20), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(model(chain(tokens), model.new_cache(3, 32).view()).logits)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
