"""Products of bfloat16 by float32, for processors without instructions for them."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.train.loop import float32_products
from paceline.train.loop.float32_products import PRODUCTS, Float32Products, fast_products
from paceline.train.loop.trainer import Score
from tests.train.trainers import lines, trainer

BF16 = torch.bfloat16
MAKERS = {
    torch.mm: lambda draw: (draw(7, 33), draw(33, 5)),
    torch.addmm: lambda draw: (draw(5), draw(7, 33), draw(33, 5)),
    torch.bmm: lambda draw: (draw(2, 7, 33), draw(2, 33, 5)),
    torch.baddbmm: lambda draw: (draw(2, 7, 5), draw(2, 7, 33), draw(2, 33, 5)),
    torch.nn.functional.linear: lambda draw: (draw(3, 7, 33), draw(5, 33), draw(5)),
    torch.matmul: lambda draw: (draw(2, 3, 7, 33), draw(2, 3, 33, 5)),
}


class Seen(TorchDispatchMode):
    """The dtypes of the products that are computed within."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in PRODUCTS:
            self.dtypes |= {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("product", MAKERS, ids=lambda one: one.__name__)
def test_products_and_gradients_are_those_in_double_precision_rounded(product):
    generator = torch.Generator().manual_seed(0)
    given = MAKERS[product](lambda *shape: torch.randn(shape, generator=generator).to(BF16).requires_grad_())
    exact = [one.detach().double().requires_grad_() for one in given]
    with Seen() as seen, Float32Products():
        out = product(*given)
        out.sum().backward()
    product(*exact).sum().backward()
    assert out.dtype == BF16 and seen.dtypes == {torch.float32}
    torch.testing.assert_close(out.double(), product(*exact), rtol=2**-8, atol=1e-4)
    for one, other in zip(given, exact, strict=True):
        assert one.grad.dtype == BF16
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=2**-7, atol=1e-2)


def test_other_products_stay_as_they_are():
    with Seen() as seen, Float32Products():
        for dtype in (torch.float32, torch.float64):
            assert torch.mm(torch.ones(2, 3, dtype=dtype), torch.ones(3, 2, dtype=dtype)).dtype == dtype
    assert seen.dtypes == {torch.float32, torch.float64}


@pytest.mark.parametrize("fast", [True, False])
def test_training_takes_them_where_the_processor_has_no_others(fast, monkeypatch, tmp_path):
    monkeypatch.setattr(float32_products, "has_products", lambda: fast)
    assert isinstance(fast_products(torch.device("cpu")), Float32Products) == (not fast)
    assert not isinstance(fast_products(torch.device("cuda")), Float32Products)
    with Seen() as seen:
        trainer(tmp_path, steps=4, precision="bf16").run()
    assert (BF16 in seen.dtypes) == fast
    losses = [line["loss"] for line in lines(tmp_path) if "loss" in line]
    assert losses and all(map(math.isfinite, losses))


@pytest.mark.parametrize("fast", [True, False])
def test_validation_takes_them_too(fast, monkeypatch, tmp_path):
    monkeypatch.setattr(float32_products, "has_products", lambda: fast)
    own = trainer(tmp_path, precision="bf16")

    @torch.inference_mode()  # as the decoder does
    def validate(task):
        return Score(value=float(torch.nn.functional.linear(*torch.ones(2, 1, 3, dtype=BF16))))

    own.validate = validate
    with Seen() as seen:
        assert own.score().value == 3.0
    assert seen.dtypes == {BF16 if fast else torch.float32}


def test_losses_are_those_of_bfloat16_products(monkeypatch, tmp_path):
    found = []
    for fast in (True, False):
        monkeypatch.setattr(float32_products, "has_products", lambda fast=fast: fast)
        trainer(tmp_path / str(fast), steps=6, precision="bf16").run()
        found.append([line["loss"] for line in lines(tmp_path / str(fast)) if "loss" in line])
    assert found[0] == pytest.approx(found[1], rel=1e-2)


def test_runs_in_float32_do_not_look_for_them(monkeypatch, tmp_path):
    monkeypatch.setattr("paceline.train.loop.trainer.fast_products", lambda device: pytest.fail("it was asked for"))
    own = trainer(tmp_path, steps=1, precision="fp32")
    own.run()
    assert own.score().value is not None
