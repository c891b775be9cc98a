"""What a head is to those who train, keep and serve it. Knows nothing of losses, caches or files.

B rows, T tokens, A anchors of a row, D depths, V vocabulary, H the target's hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from paceline.models.native.decoder import DecoderLM


class HeadConfig(BaseModel):
    """What shapes a head beside its target; what a head's directory and a training configuration say of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled:
    """What a head would draft over known text, whatever it was that had been drafted before being right.

    Entry [b, a, d] is of the draft that starts at anchor a, d tokens after the root. It is the distribution of the
    token behind ``position``, to be held against the target's own there."""

    logits: Tensor  # [B, A, D, V]
    position: Tensor  # [B, A, D] int64 in 0..T - 1
    weight: Tensor | None = None  # [B, A, D] share in a loss, 0 where there is nothing to compare; None: all alike


class DraftHead(nn.Module, ABC):
    """Trained parts of its own, and parts that it shares with the target, which are no part of what it keeps."""

    kind: ClassVar[str]  # its name in HEADS and in DRAFTERS
    Config: ClassVar[type[HeadConfig]]
    config: HeadConfig
    decoder: DecoderLM  # what is run to draft, on states and parts that the head prepares

    @classmethod
    @abstractmethod
    def make(cls, config: HeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        """A new head for ``target``, in its precision and on its device, with weights drawn by ``generator``.

        Raises ValueError for a configuration that does not fit the target.
        """

    @property
    @abstractmethod
    def taps(self) -> tuple[int, ...]:
        """The target's hidden states that it reads."""

    @abstractmethod
    def own_state(self) -> dict[str, Tensor]:
        """Its own parameters by name: what is trained and kept, without the parts that are the target's."""

    @abstractmethod
    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        """Take on what ``own_state`` gave. Raises ValueError naming what is missing, superfluous or misshapen."""

    @abstractmethod
    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """Drafts over ``tokens`` [B, T] whose ``hidden`` states [B, T, H] lie at ``taps``; differentiable.

        ``segment`` [B, T] as in models/attention.CausalAttention: a draft sees one text, and has no weight beyond it.

        What it draws at random (anchors, where a crop ends) is drawn by ``generator``, on the CPU; None takes all
        anchors, and crops nothing.
        """
