"""The multi-token-prediction module of DeepSeek-V3 (2412.19437), applied to its own output (FastMTP, 2509.18362).

B rows, n pairs, H hidden size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.pair import PairConfig, PairHead, fill
from paceline.models.base import PairInput
from paceline.models.native.decoder import DecoderLM


class MTPConfig(PairConfig):
    """What an MTP module is. The defaults are those of the module for a dense target that vLLM serves (MiMo's)."""

    norm_eps: float | None = Field(default=None, gt=0)
    rope_theta: float | None = Field(default=None, gt=0)
    depth: int = Field(default=3, ge=1)
    depth_decay: float = Field(default=0.6, gt=0, le=1)
    tap: int | None = Field(default=None, ge=0)  # the hidden state that is its feature; None: after the last layer
    normalized: bool = False  # by the target's final norm
    embedding_first: bool = False  # in what joins the two; else the feature is
    norm_output: bool = True  # drafted tokens are paired with what the last norm gives, not with what it reads
    zero_first: bool = True  # the embedding in the first pair of a sequence is zero


@final
class MTPHead(PairHead):
    """``eh_proj`` [H, 2 H] joins a normalised embedding and a normalised feature; blocks and a norm follow.

    The embedding and the LM head are the target's.
    """

    kind: ClassVar[str] = "mtp"
    Config: ClassVar[type[DraftHeadConfig]] = MTPConfig

    def __init__(self, config: MTPConfig, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.sizes = self.options = config
        self.decoder = decoder
        self.num_layers, self.target_vocab = target.num_layers, target.vocab_size
        self.tap = target.num_layers if config.tap is None else config.tap
        if self.tap > target.num_layers:
            raise ValueError(f"tap={self.tap}: the target has {target.num_layers} layers, so give 0 to that many")
        size, blocks = target.config.hidden_size, decoder.config
        self.embedding_norm = blocks.norm(size, blocks.norm_eps)
        self.feature_norm = blocks.norm(size, blocks.norm_eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self._norm = (target.norm,)  # in a tuple, so that it is not a submodule

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, MTPConfig)
        blocks = replace(config.decoder(target.config), tied_head=target.head is None)
        with torch.device("meta"):
            decoder = DecoderLM(blocks)
            head = cls(config, target, decoder)
        decoder.embed, decoder.head = target.embed, target.head
        fill(head, target, generator)
        if type(decoder.norm) is type(target.norm):
            decoder.norm.load_state_dict(target.norm.state_dict())  # which the LM head is made to be read after
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.tap,)

    @property
    def own(self) -> dict[str, nn.Module]:
        norms: dict[str, nn.Module] = {"embedding_norm": self.embedding_norm, "feature_norm": self.feature_norm}
        return {**norms, "eh_proj": self.eh_proj, "blocks": self.decoder.blocks, "norm": self.decoder.norm}

    def feature(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The hidden state, or the one that the target's LM head reads."""
        state = hidden[self.tap]
        return self._norm[0](state) if self.options.normalized else state

    def pair(self, feature: Tensor, tokens: Tensor, first: Tensor | None = None) -> Tensor:
        """Embedding and feature, both normalised, joined: [B, n, H]."""
        embedded = self.decoder.embed(tokens.flatten()).view(*tokens.shape, -1).to(feature.dtype)
        if self.options.zero_first and first is not None:
            embedded = embedded.masked_fill(first[..., None], 0)
        both = self.embedding_norm(embedded), self.feature_norm(feature)
        return self.eh_proj(torch.cat(both if self.options.embedding_first else both[::-1], dim=-1))

    @property
    def pair_input(self) -> PairInput:
        return PairInput(
            embedding_norm=self.embedding_norm,
            feature_norm=self.feature_norm,
            product=self.eh_proj,
            embedding_first=self.options.embedding_first,
            zero_first=self.options.zero_first,
            normed_output=self.options.norm_output,
        )

    def feedback(self, out: Tensor) -> Tensor:
        """What the LM head reads, or the stream before the last norm."""
        return self.decoder.norm(out) if self.options.norm_output else out
