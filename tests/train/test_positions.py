"""Values by position: their gradient is that of the whole, however few positions are computed at a time."""

import pytest
import torch

from paceline.train.tasks.losses import LOSSES, DistillationLoss, LossInputs
from paceline.train.tasks.positions import by_position, finite, recomputed

N, V = 7, 11


def logits(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(N, V, generator=generator) * 2).to(dtype).requires_grad_(True)


def gradient(function, own):
    """Of a sum with a weight of its own for every position."""
    own.grad = None
    (function(own) * torch.linspace(-1, 2, N)).sum().backward()
    return own.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [None, 1, 3, 100])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_the_whole(name, chunk, dtype):
    own, wanted, index, text = logits(1, dtype), logits(2), torch.tensor([3, 0, 1, 1, 2, 0, 3]), torch.arange(N)
    loss = DistillationLoss(terms={name: 0.5}, chunk=chunk)

    def whole(own):
        target = wanted.detach()[index].log_softmax(-1)
        return 0.5 * LOSSES[name](LossInputs.of(finite(own).log_softmax(-1), target, text))

    found, expected = (gradient(how, own) for how in (lambda own: loss(own, wanted, index, text).loss, whole))
    assert found.dtype == dtype and found.abs().sum() > 0
    torch.testing.assert_close(found, expected)


def squares(rows, part):
    return rows.square().sum(-1), rows.detach().amax(-1) + part.start


@pytest.mark.parametrize("how", ["recomputed", "compiled"])
def test_it_is_the_same_where_it_is_computed_again(how, monkeypatch):
    own = logits(1)
    plain = by_position(squares, own, chunk=3)
    before = gradient(lambda own: by_position(squares, own, chunk=3)[0], own)
    torch.testing.assert_close(before, 2 * own.detach() * torch.linspace(-1, 2, N)[:, None])
    if how == "compiled":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        again, function = by_position(squares, own, chunk=3), lambda own: by_position(squares, own, chunk=3)[0]
        torch.testing.assert_close(again, plain)
    else:

        def function(own):
            return recomputed(lambda own: by_position(squares, own, chunk=3)[0], own)

    torch.testing.assert_close(gradient(function, own), before)


def test_minus_infinity_is_a_probability_of_zero():
    own = logits(1).detach()
    own[:, 4] = -torch.inf
    own.requires_grad_(True)
    for name in LOSSES.keys() - {"text", "argmax"}:
        loss = DistillationLoss(terms={name: 1.0})
        found = gradient(lambda own, loss=loss: loss(own, own.detach(), torch.arange(N), torch.arange(N)).loss, own)
        assert torch.isfinite(found).all(), name


def test_nothing_is_computed_for_a_gradient_that_nobody_wants():
    with torch.no_grad():
        values, largest = by_position(squares, logits(1), chunk=2)
    assert not values.requires_grad and largest.tolist()[-1] > 6 and len(values) == N
    values, largest = by_position(squares, logits(1), chunk=2)
    assert values.requires_grad and not largest.requires_grad


def test_no_positions_have_no_values():
    own = torch.zeros(0, V, requires_grad=True)
    values, _ = by_position(squares, own)
    values.sum().backward()
    assert values.shape == (0,) and own.grad.shape == (0, V)


def test_a_second_backward_pass_is_refused():
    values, _ = by_position(squares, logits(1))
    values.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"in-?place"):
        values.sum().backward()
