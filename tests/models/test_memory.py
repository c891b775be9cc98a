"""Weights laid out for fast reading are the same weights, and lie where they should."""

import torch

from paceline.models import memory
from paceline.models.loading import load
from tests.api.checkpoints import pair


def test_settled_tensors_keep_values_shapes_and_precisions_in_one_aligned_piece():
    given = {
        "a": torch.arange(7.0),
        "b": torch.randn(3, 5).bfloat16(),
        "c": torch.zeros(0, 4),
        "d": torch.randn(2, 2, 2),
    }
    copies = {name: tensor.clone() for name, tensor in given.items()}
    settled = memory.settle(given)
    assert not given and list(settled) == list(copies)
    for name, tensor in settled.items():
        assert tensor.dtype == copies[name].dtype and torch.equal(tensor, copies[name]) and tensor.is_contiguous()
        assert tensor.data_ptr() % memory.ALIGNMENT == 0 or not tensor.numel()
    assert len({tensor.untyped_storage().data_ptr() for tensor in settled.values()}) == 1
    settled["a"].fill_(-1.0)
    assert all(torch.equal(settled[name], copies[name]) for name in "bcd"), "pieces overlap"


def test_loaded_weights_are_settled():
    parameters = list(load(pair().target).parameters())
    assert len({parameter.untyped_storage().data_ptr() for parameter in parameters}) == 1
    assert min(parameter.data_ptr() for parameter in parameters) % memory.LARGE_PAGE == 0
