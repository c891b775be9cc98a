"""One product of the kernel, at every number of rows and at sizes that fill no tile."""

import pytest
import torch

from paceline.engine.static import product_for
from paceline.models.cpu.product import product_with

# The last four are longer than a block of any precision; two have pieces that take turns, two panels that are not full.
SIZES = ((1, 1), (7, 5), (33, 13), (64, 64), (192, 100), (514, 31), (3136, 29), (2600, 150), (6001, 2), (8200, 70))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 8e-3)]
)
def test_products_are_right_and_do_not_depend_on_the_rows_beside(dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    for inner, outer in SIZES:
        weight = torch.randn(outer, inner, generator=generator).to(dtype) / inner**0.5
        x = torch.randn(40, inner, generator=generator).to(dtype)
        exact = x.double() @ weight.double().T
        for panels in {True, dtype != torch.bfloat16}:
            multiply = product_with(weight, panels=panels)
            alone = torch.cat([multiply(row[None]) for row in x])
            assert float((alone - exact).abs().max()) <= tolerance * max(1.0, float(exact.abs().max()))
            for rows in (*range(1, 15), 18, 19, 20, 25, 40):
                assert torch.equal(multiply(x[:rows]), alone[:rows])


def test_other_precisions_are_left_to_torch():
    weight, x = torch.randn(3, 4).half(), torch.randn(2, 4).half()
    assert torch.equal(product_for(weight)(x), torch.nn.functional.linear(x, weight))
    assert product_for(weight.float().to("meta"))(x.float().to("meta")).shape == (2, 3)
