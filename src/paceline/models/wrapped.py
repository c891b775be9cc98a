"""Bases of LMs: what every decoder-only LM does at admission, and what an LM that wraps another takes from it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import torch

from paceline.core.admission import Admission
from paceline.core.cache import SlotCache, View
from paceline.core.context import ContextInput
from paceline.models.base import LM


class DecoderOnly:
    """An LM that reads tokens alone."""

    @property
    def context_inputs(self) -> Mapping[str, ContextInput]:
        return MappingProxyType({})

    @property
    def context_bytes(self) -> int:
        return 0

    def admit(self, cache: View, admission: Admission) -> View:
        """Copy the prefixes."""
        return cache.storage.begin(admission)


Wrapped = TypeVar("Wrapped", bound=LM)


class WrappedLM(Generic[Wrapped]):
    """``lm`` with another forward: sizes, device, cache and admission are those of ``lm``."""

    def __init__(self, lm: Wrapped) -> None:
        self.lm = lm

    @property
    def vocab_size(self) -> int:
        return self.lm.vocab_size

    @property
    def max_positions(self) -> int:
        return self.lm.max_positions

    @property
    def max_slots(self) -> int | None:
        return self.lm.max_slots

    @property
    def num_layers(self) -> int:
        return self.lm.num_layers

    @property
    def slot_bytes(self) -> int:
        return self.lm.slot_bytes

    @property
    def context_bytes(self) -> int:
        return self.lm.context_bytes

    @property
    def device(self) -> torch.device:
        return self.lm.device

    @property
    def context_inputs(self) -> Mapping[str, ContextInput]:
        return self.lm.context_inputs

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """As the wrapped LM's."""
        return self.lm.new_cache(rows, capacity)

    def admit(self, cache: View, admission: Admission) -> View:
        """As the wrapped LM."""
        return self.lm.admit(cache, admission)
