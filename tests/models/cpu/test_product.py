"""One product of the kernel, at every number of rows and at sizes that fill no tile."""

import pytest
import torch

from paceline.engine.static import product_for

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 8e-3)]
)
def test_products_are_right_and_do_not_depend_on_the_rows_beside(dtype, tolerance):
    multiply = product_for(dtype, CPU)
    generator = torch.Generator().manual_seed(1)
    # The last three are longer than a block of any precision; the last but one has pieces that take turns.
    for inner, outer in ((1, 1), (7, 5), (33, 13), (64, 64), (192, 100), (515, 31), (3136, 29), (2600, 150), (6001, 2)):
        weight = torch.randn(outer, inner, generator=generator).to(dtype) / inner**0.5
        x = torch.randn(20, inner, generator=generator).to(dtype)
        exact = x.double() @ weight.double().T
        alone = torch.cat([multiply(row[None], weight) for row in x])
        assert float((alone - exact).abs().max()) <= tolerance * max(1.0, float(exact.abs().max()))
        for rows in (*range(1, 12), 18, 19, 20):
            assert torch.equal(multiply(x[:rows], weight), alone[:rows])


def test_other_precisions_are_left_to_torch():
    assert product_for(torch.float16, CPU) is torch.nn.functional.linear
    assert product_for(torch.float32, torch.device("meta")) is torch.nn.functional.linear
