"""Transfers from the device to the host, and its tensors as plain memory. Nothing inside a step may call these."""

from typing import cast

from torch import Tensor


def integers(vector: Tensor) -> list[int]:
    """A vector's entries."""
    return cast("list[int]", vector.tolist())  # pyright: ignore[reportUnknownMemberType]


def numbers(tensor: Tensor) -> list[float]:
    """A tensor's entries, flat."""
    return cast("list[float]", tensor.flatten().tolist())  # pyright: ignore[reportUnknownMemberType]


def table(matrix: Tensor) -> list[list[int]]:
    """A matrix's rows."""
    flat, width = integers(matrix.flatten()), matrix.shape[1]
    return [flat[start : start + width] for start in range(0, len(flat), width)]


def entries(tensor: Tensor) -> memoryview | None:
    """The entries of a contiguous int64 ``tensor``, flat: what is written there is in the tensor; None where it is not
    the host's memory, or fake.

    A write takes a tenth of the time that a tensor's operation or numpy takes.
    """
    if tensor.device.type != "cpu" or type(tensor) is not Tensor:
        return None
    return memoryview(tensor.numpy()).cast("B").cast("q")  # pyright: ignore[reportArgumentType]
