"""A frozen target whose layers are in memory only while something runs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from torch import nn

from paceline.models.loading import load
from paceline.models.native.decoder import DecoderLM


@final
class TargetLayers:
    """Takes the layers of ``target``, which was read from ``folder``, out of memory, but for what ``users`` share.

    Outside ``loaded`` running the target raises RuntimeError.
    """

    def __init__(self, target: DecoderLM, folder: Path, *, users: nn.Module) -> None:
        self._folder, self._dtype, self._device = folder, target.dtype, target.device
        shared = {id(parameter) for parameter in users.parameters()}
        own = dict(target.blocks.named_parameters())
        self._released = {name: parameter for name, parameter in own.items() if id(parameter) not in shared}
        self._release()
        for parameter in target.parameters():  # all weights were read into one block, which a single view would keep
            parameter.data = parameter.data.clone()

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Within, the layers are there, read again from the folder."""
        again = dict(load(self._folder, dtype=self._dtype, device=self._device).blocks.named_parameters())
        for name, parameter in self._released.items():
            parameter.data = again[name].data
        del again
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        for parameter in self._released.values():
            parameter.data = parameter.data.new_empty(0)
