"""Positions of tree nodes for decoders that number their input by its order and the length of the cache.

B rows, n nodes, P positions, H hidden size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

LAYER = "embed_positions"  # transformers' name of the layer in decoders of BART's kind


class _Found(Exception):
    """Ends a forward as soon as the layer has answered."""


class PositionTable:
    """What a decoder's layer of positions adds, learned or computed, as one table; ``read`` makes it answer from that.

    The layer is asked once for all positions, and again whenever its weights have changed.
    """

    def __init__(self, decoder: nn.Module, layer: nn.Module, size: int, token: int, width: int) -> None:
        self._decoder, self._layer, self._size, self._token, self._width = decoder, layer, size, token, width
        self._table: Tensor | None = None
        self._state: object = None

    @contextmanager
    def read(self, positions: Tensor) -> Iterator[None]:
        """Within the context the layer gives the rows of ``positions`` [B, n], whatever it is asked for."""
        table = self._current()
        with _answering(self._layer, lambda *_, **__: table[positions]):
            yield

    def _current(self) -> Tensor:
        """The table [P, H]."""
        state = [(part.data_ptr(), part._version, part.dtype) for part in self._layer.parameters()]
        if self._table is None or state != self._state:
            self._table, self._state = self._ask(), state
        return self._table

    def _ask(self) -> Tensor:
        own, device = self._layer.forward, next(self._decoder.parameters()).device
        found: list[Tensor] = []

        def answer(*args: Any, **kwargs: Any) -> Tensor:
            found.append(own(*args, **kwargs))
            raise _Found

        tokens = torch.full((1, self._size), self._token, device=device)
        states = torch.zeros(1, 1, self._width, dtype=next(self._decoder.parameters()).dtype, device=device)
        with _answering(self._layer, answer), torch.no_grad():
            try:
                self._decoder(input_ids=tokens, encoder_hidden_states=states, use_cache=False)
            except _Found:
                pass
        return found[0].reshape(self._size, -1)


def find_position_layer(decoder: nn.Module) -> nn.Module | None:
    """The layer of ``decoder`` that adds positions to its embeddings; None where it has none."""
    found = getattr(decoder, LAYER, None)
    return found if isinstance(found, nn.Module) else None


@contextmanager
def _answering(layer: nn.Module, answer: Any) -> Iterator[None]:
    own = layer.__dict__.get("forward")  # what another library has put there
    layer.forward = answer
    try:
        yield
    finally:
        if own is None:
            del cast(Any, layer).forward
        else:
            layer.forward = own
