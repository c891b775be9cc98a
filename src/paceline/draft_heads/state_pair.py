"""Heads over pairs whose feature is one hidden state of the target: EAGLE and MTP.

B rows, n pairs, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from paceline.draft_heads.base import DraftHeadConfig, ReducibleConfig
from paceline.draft_heads.pair import PairConfig, PairHead, fill
from paceline.models.native.decoder import DecoderLM


class StatePairConfig(PairConfig, ReducibleConfig):
    """Which hidden state the feature is."""

    tap: int | None = Field(default=None, ge=0)  # the hidden state that is its feature; None: after the last layer
    normalized: bool  # by the target's final norm


class StatePairHead(PairHead):
    """Its embedding and its LM head are the target's. Raises ValueError for a ``tap`` that the target does not have."""

    def __init__(self, config: StatePairConfig, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.sizes = config
        self.decoder = decoder
        self.num_layers, self.target_vocab = target.num_layers, target.vocab_size
        self.tap = target.num_layers if config.tap is None else config.tap
        if self.tap > target.num_layers:
            raise ValueError(f"tap={self.tap}: the target has {target.num_layers} layers, so give 0 to that many")
        # What is applied to the state: in a tuple, so that it is not a submodule.
        self._norms = (target.norm,) if config.normalized else ()

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, StatePairConfig)
        blocks = replace(config.decoder(target.config), tied_head=target.head is None)
        with torch.device("meta"):
            head = cls(config, target, DecoderLM(blocks))
        head.decoder.embed, head.decoder.head = target.embed, target.head
        head.choose_vocab(config, target)
        fill(head, target, generator)
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.tap,)

    @property
    def copied_tap(self) -> int | None:
        return None if self._norms else self.tap

    def feature(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The hidden state, or the one that the target's LM head reads."""
        state = hidden[self.tap]
        for norm in self._norms:
            state = norm(state)
        return state

    def embed(self, tokens: Tensor, feature: Tensor) -> Tensor:
        """The embeddings [B, n, H] of ``tokens`` [B, n], in the precision of ``feature``."""
        return self.decoder.embed(tokens.flatten()).view(*tokens.shape, -1).to(feature.dtype)
