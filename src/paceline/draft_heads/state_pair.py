"""Heads over pairs whose feature is one hidden state of the target: EAGLE and MTP.

B rows, n pairs, H hidden size, D tokens of a draft vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.layers import DRAFT_IDS, begin_lm_heads
from paceline.draft_heads.pair import PairConfig, PairHead, fill, own_head_config
from paceline.models.draft_vocab import FILE, read_draft_vocab
from paceline.models.native.decoder import DecoderLM


class StatePairConfig(PairConfig):
    """Which hidden state the feature is, and which rows of the target's LM head are read."""

    tap: int | None = Field(default=None, ge=0)  # the hidden state that is its feature; None: after the last layer
    normalized: bool  # by the target's final norm
    draft_vocab_size: int | None = Field(default=None, ge=1)  # tokens that it drafts (FR-Spec); None: all


class StatePairHead(PairHead):
    """Its embedding and its LM head are the target's; of the latter, with a draft vocabulary, a copy of these rows
    (FR-Spec, 2502.14856), which is neither trained nor saved.

    Raises ValueError for a ``tap`` that the target does not have.
    """

    def __init__(self, config: StatePairConfig, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.sizes = config
        self.decoder = decoder
        self.num_layers, self.target_vocab = target.num_layers, target.vocab_size
        self.tap = target.num_layers if config.tap is None else config.tap
        if self.tap > target.num_layers:
            raise ValueError(f"tap={self.tap}: the target has {target.num_layers} layers, so give 0 to that many")
        # What is applied to the state, and whose rows are copied: in tuples, so that they are no submodules.
        self._norms = (target.norm,) if config.normalized else ()
        self._target = (target,)

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, StatePairConfig)
        vocab, blocks = DraftVocab.make(config.draft_vocab_size, target), config.decoder(target.config)
        tied = replace(blocks, tied_head=target.head is None)
        with torch.device("meta"):
            head = cls(config, target, DecoderLM(tied if vocab is None else own_head_config(blocks, vocab)))
        head.decoder.embed, head.draft_vocab = target.embed, vocab
        fill(head, target, generator)
        if vocab is None:
            head.decoder.head = target.head
        else:
            head._copy_rows(len(vocab.ids))
        return head

    def _copy_rows(self, size: int) -> None:
        """Read the LM head's rows of the draft vocabulary, of ``size`` tokens, alone."""
        (target,) = self._target
        weight = (target.embed if target.head is None else target.head).weight
        if not weight.is_floating_point():
            raise ValueError(
                f"draft_vocab_size={size}: rows of the target's LM head, which is quantized; load the target without "
                "quantization, or let the head draft all tokens"
            )
        rows = nn.Linear(weight.shape[1], size, bias=False, device=target.device, dtype=target.dtype)
        self.decoder.head = rows.requires_grad_(False)
        begin_lm_heads(self.lm_heads_of_rows, target, self.draft_vocab)

    @property
    def lm_heads_of_rows(self) -> tuple[nn.Module, ...]:
        return () if self.draft_vocab is None or self.decoder.head is None else (self.decoder.head,)

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_own_state(state)
        begin_lm_heads(self.lm_heads_of_rows, *self._target, self.draft_vocab)

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.tap,)

    def feature(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The hidden state, or the one that the target's LM head reads."""
        state = hidden[self.tap]
        for norm in self._norms:
            state = norm(state)
        return state

    def embed(self, tokens: Tensor, feature: Tensor) -> Tensor:
        """The embeddings [B, n, H] of ``tokens`` [B, n], in the precision of ``feature``."""
        return self.decoder.embed(tokens.flatten()).view(*tokens.shape, -1).to(feature.dtype)


def reduce_by_file(
    config: DraftHeadConfig, folder: Path, *, target_size: int
) -> tuple[DraftHeadConfig, dict[str, Tensor]]:
    """The ``config`` of the head in ``folder`` with the draft vocabulary of the file there (models/draft_vocab), if
    there is one, and the tensors that this adds to the head's own.

    Raises ValueError for a file that has none, and for heads that have LM heads or a draft vocabulary of their own.
    """
    ids = read_draft_vocab(folder, target_size)
    if ids is None:
        return config, {}
    if not isinstance(config, StatePairConfig) or config.draft_vocab_size is not None:
        raise ValueError(f"{folder / FILE}: this head's own tensors say which tokens it drafts; remove the file")
    return config.model_copy(update={"draft_vocab_size": len(ids)}), {DRAFT_IDS: ids}
