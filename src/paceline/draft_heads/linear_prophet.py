"""Several tokens from one hidden state of the target, by a matrix each (the linear heads of ProphetNet, 2001.04063).

A depth does not depend on the tokens drafted before it; the head is a baseline for others. B rows, T tokens, A anchors,
D depths, H the target's hidden size, V vocabulary.
"""

from collections.abc import Mapping
from typing import ClassVar, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHead, DraftHeadConfig, ReducibleConfig, Unrolled
from paceline.draft_heads.layers import (
    all_learned,
    anchor_positions,
    gather_preceding,
    materialize,
    own_tensors,
    sample_anchors,
)
from paceline.models.native.decoder import DecoderLM


class LinearProphetConfig(ReducibleConfig):
    """How many tokens after the root it drafts; ``anchors`` are drawn per row in training, None takes all."""

    depth: int = Field(default=3, ge=1)
    anchors: int | None = Field(default=None, ge=1)

    @property
    def trained_depth(self) -> int | None:
        return self.depth


@final
class LinearProphetHead(DraftHead):
    """``state + matrix(norm(state))`` for every depth, through the target's own norm and head; zero at first.

    ``decoder`` is the target without its layers. The state before the root predicts the root, which is known, so the
    first matrix predicts the token after the root.
    """

    kind: ClassVar[str] = "linear_prophet"
    Config: ClassVar[type[DraftHeadConfig]] = LinearProphetConfig

    def __init__(self, config: LinearProphetConfig, num_layers: int, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.sizes = config
        self._taps = (num_layers,)
        size = decoder.config.hidden_size
        self.maps = nn.Linear(size, config.depth * size, bias=False)
        self.decoder = decoder

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, LinearProphetConfig)
        with torch.device("meta"):
            decoder = DecoderLM(target.config.apart(num_layers=0))
            head = cls(config, target.num_layers, decoder)
        decoder.share_ends(target)
        materialize(head.own, {name: torch.zeros(part.shape) for name, part in own_tensors(head.own).items()}, target)
        head.choose_vocab(config, target)
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        """The residual stream after the target's last layer."""
        return self._taps

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        return self.decoder.config.hidden_size

    @property
    def own(self) -> dict[str, nn.Module]:
        return {"maps": self.maps}

    def predict_hidden(self, state: Tensor) -> Tensor:
        """The hidden state of each depth [B, D, H], as the target's norm and head read it, from ``state`` [B, H]."""
        added = self.maps(self.decoder.norm(state)).unflatten(-1, (self.sizes.depth, -1))
        return state[:, None] + added

    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """See DraftHead. Anchor a is the token that is the root: its draft sees the state before it."""
        anchors, share = sample_anchors(all_learned(tokens, learned), self.sizes.anchors, generator)
        position, weight = anchor_positions(anchors, self.sizes.depth, segment, length=tokens.shape[1])
        before = gather_preceding(hidden[self._taps[0]], anchors, 1, segment)  # [B, A, 1, H]
        logits = self.decoder.compute_logits(self.predict_hidden(before.flatten(0, 2)), self.draft_ids)
        return Unrolled(
            logits=logits.view(*position.shape, -1),
            position=position,
            weight=weight * share[..., None],
            draft_ids=self.draft_ids,
        )
