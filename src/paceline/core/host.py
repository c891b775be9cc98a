"""Where tensors cross to the host. Nothing inside a step may call this."""

from typing import cast, final

import torch
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


@final
class Letter:
    """A matrix on its way. Reading it waits until it has arrived, and for nothing that was queued behind it."""

    def __init__(self, place: Tensor, event: torch.cuda.Event | None) -> None:
        self._place, self._event = place, event

    def read(self) -> list[list[int]]:
        """Its rows."""
        if self._event is not None:
            self._event.synchronize()
        return table(self._place)


@final
class Outbox:
    """Sends matrices of one shape from ``device`` to the host without waiting for them.

    ``places`` take turns in receiving: a letter must be read, or given up, before as many others are sent.
    """

    def __init__(self, *, rows: int, width: int, device: torch.device, places: int) -> None:
        self._behind = device.type == "cuda"
        self._places = [torch.empty(rows, width, dtype=torch.int64, pin_memory=self._behind) for _ in range(places)]

    def send(self, matrix: Tensor) -> Letter:
        """Queue the transfer of ``matrix`` [rows, width]."""
        place = self._places.pop(0)
        self._places.append(place)
        place.copy_(matrix, non_blocking=True)
        if not self._behind:
            return Letter(place, None)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(matrix.device))
        return Letter(place, event)
