"""Tensors that keep their addresses, so that a kernel resolves its pointers to them only once."""

from typing import final

from torch import Tensor


@final
class Columns:
    """``tensors`` in a fixed order, one entry per row each. They are changed in place and never replaced."""

    __slots__ = ("pointers", "tensors")

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self.pointers: object = None  # a kernel's own form of them, made at its first call
