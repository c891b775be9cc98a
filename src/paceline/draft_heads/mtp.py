"""The multi-token-prediction module of DeepSeek-V3 (2412.19437), applied to its own output (FastMTP, 2509.18362).

B rows, n pairs, H hidden size, V vocabulary.
"""

from typing import ClassVar, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.state_pair import StatePairConfig, StatePairHead
from paceline.models.base import PairInput
from paceline.models.native.decoder import DecoderLM


class MTPConfig(StatePairConfig):
    """What an MTP module is. The defaults are those of the module for a dense target that vLLM serves (MiMo's)."""

    norm_eps: float | None = Field(default=None, gt=0)
    rope_theta: float | None = Field(default=None, gt=0)
    depth: int = Field(default=3, ge=1)
    depth_decay: float = Field(default=0.6, gt=0, le=1)
    normalized: bool = False
    embedding_first: bool = False  # in what joins the two; else the feature is
    norm_output: bool = True  # drafted tokens are paired with what the last norm gives, not with what it reads
    zero_first: bool = True  # the embedding in the first pair of a sequence is zero


@final
class MTPHead(StatePairHead):
    """``eh_proj`` [H, 2 H] joins a normalised embedding and a normalised feature; blocks and a norm follow.

    The embedding and the LM head are the target's.
    """

    kind: ClassVar[str] = "mtp"
    Config: ClassVar[type[DraftHeadConfig]] = MTPConfig

    def __init__(self, config: MTPConfig, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__(config, target, decoder)
        self.options = config
        size, blocks = target.config.hidden_size, decoder.config
        self.embedding_norm = blocks.norm(size, blocks.norm_eps)
        self.feature_norm = blocks.norm(size, blocks.norm_eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        head = super().make(config, target, generator=generator)
        norm = head.decoder.norm
        if type(norm) is type(target.norm):
            norm.load_state_dict(target.norm.state_dict())  # which the LM head is made to be read after
        return head

    @property
    def own(self) -> dict[str, nn.Module]:
        norms: dict[str, nn.Module] = {"embedding_norm": self.embedding_norm, "feature_norm": self.feature_norm}
        return {**norms, "eh_proj": self.eh_proj, "blocks": self.decoder.blocks, "norm": self.decoder.norm}

    @property
    def products(self) -> tuple[nn.Linear]:
        return (self.eh_proj,)

    def pair(self, feature: Tensor, tokens: Tensor, first: Tensor | None = None) -> Tensor:
        """Embedding and feature, both normalised, joined: [B, n, H]."""
        embedded = self.embed(tokens, feature)
        if self.options.zero_first and first is not None:
            embedded = embedded.masked_fill(first[..., None], 0)
        both = self.embedding_norm(embedded), self.feature_norm(feature)
        return self.multiply(self.eh_proj, torch.cat(both if self.options.embedding_first else both[::-1], dim=-1))

    @property
    def pair_input(self) -> PairInput:
        return PairInput(
            embedding_norm=self.embedding_norm,
            feature_norm=self.feature_norm,
            product=self.eh_proj,
            embedding_first=self.options.embedding_first,
            zero_first=self.options.zero_first,
            normed_output=self.options.norm_output,
            draft_ids=self.draft_ids,
        )

    def feedback(self, out: Tensor) -> Tensor:
        """What the LM head reads, or the stream before the last norm."""
        return self.decoder.norm(out) if self.options.norm_output else out
