"""The configuration of block heads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import Field

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.markov import MarkovKind
from paceline.models.families.base import rotary
from paceline.models.native.config import AttentionConfig, DecoderConfig, FFNConfig, NormSpan
from paceline.models.native.layers import RMSNorm, RotaryConfig

NUM_TAPS = 5
ROPE: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}


class BlockConfig(DraftHeadConfig):
    """What a block head is made of; None follows the target. Taps count as in models/base.Output."""

    taps: tuple[int, ...] | None = None  # in the order in which they are concatenated; None: five, spread evenly
    block_size: int = Field(default=8, ge=2)  # slots, that of the newest known token included
    # Whether each slot predicts the token after its own, so that the first one drafts too; else the masked slots
    # predict themselves.
    anchor_first: bool = False
    mask_token_id: int | None = Field(default=None, ge=0)  # whose embedding masked slots read; None: one of its own
    embedding_scale: float | None = None  # factor of the target's embeddings; None: the target's own
    draft_vocab_size: int | None = Field(default=None, ge=1)  # None: the target's whole vocabulary, and its LM head
    num_layers: int = Field(default=2, ge=1)
    num_heads: int | None = Field(default=None, ge=1)
    num_kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=2)
    ffn_size: int | None = Field(default=None, ge=1)
    qk_norm: bool = True  # norms of queries and keys, by head
    attention_bias: bool = False  # of all four projections
    markov_rank: int = Field(default=0, ge=0)  # of the matrix of logits that the tokens before add; 0: none
    markov_head: MarkovKind = "vanilla"  # what it reads (draft_heads/markov)
    markov_ratio: int = Field(default=2, ge=1)  # of the feed-forward network of a refiner to its rank
    # How many of the likeliest tokens by a slot's own logits may be drafted; None: all.
    candidates: int | None = Field(default=None, ge=1)
    conv_taps: int = Field(default=0, ge=0)  # slots that each convolution around a sub-layer reads; 0: there are none
    conv_group_size: int = Field(default=16, ge=1)  # channels that share what a slot adds to its weights
    confidence: bool = False  # whether it predicts the acceptance of each token
    confidence_with_markov: bool | None = None  # whether this reads the token before; None: where there is a matrix
    norm_eps: float = Field(default=1e-6, gt=0)
    rope: dict[str, Any] = Field(default_factory=lambda: dict(ROPE))  # as rope_parameters in a config.json
    max_positions: int | None = Field(default=None, ge=1)  # of its training; read by some kinds of rope alone
    anchors: int | None = Field(default=64, ge=1)  # blocks drawn per row in training; None: one at every token
    confidence_weight: float = Field(default=1.0, ge=0)  # of the loss of these predictions
    gamma: float = Field(default=4.0, gt=0)  # the loss of the token at depth d (from 0) is weighted by exp(-d / gamma)

    @property
    def trained_depth(self) -> int | None:
        return self.depth

    @property
    def auxiliary_weights(self) -> Mapping[str, float]:
        return {"confidence": self.confidence_weight}

    @property
    def depth(self) -> int:
        """Tokens that a block drafts."""
        return self.block_size - self.first_slot

    @property
    def first_slot(self) -> int:
        """The slot that predicts the first token after the newest known one."""
        return 0 if self.anchor_first else 1

    def resolved(self, target: DecoderConfig) -> Self:
        """With the target's values in the place of None. Raises ValueError for what does not fit the target."""
        heads = self.num_heads or target.num_heads
        group = target.num_heads // target.num_kv_heads
        kv_heads = self.num_kv_heads or (heads // group if heads % group == 0 else heads)
        if heads % kv_heads:
            raise ValueError(f"num_heads={heads} and num_kv_heads={kv_heads}: give a divisor of the former")
        taps = default_taps(target.num_layers) if self.taps is None else self.taps
        if not taps or len(set(taps)) < len(taps) or min(taps) < 0 or max(taps) > target.num_layers:
            raise ValueError(f"taps={list(taps)}: give different ones from 0 to {target.num_layers}, at least one")
        if self.mask_token_id is not None and self.mask_token_id >= target.vocab_size:
            raise ValueError(f"mask_token_id={self.mask_token_id}: the target has {target.vocab_size} tokens; give one")
        if self.confidence_with_markov and not self.markov_rank:
            raise ValueError("confidence_with_markov and no matrix that it could read: give markov_rank too")
        if self.candidates is not None and not self.markov_rank:
            raise ValueError(f"candidates={self.candidates} and nothing that chooses among them: give markov_rank too")
        if self.conv_taps > self.block_size:
            raise ValueError(f"conv_taps={self.conv_taps}: a block has {self.block_size} slots; give no more")
        if self.conv_taps and target.hidden_size % self.conv_group_size:
            raise ValueError(
                f"conv_group_size={self.conv_group_size}: give a divisor of the target's width, {target.hidden_size}"
            )
        with_markov = bool(self.markov_rank) if self.confidence_with_markov is None else self.confidence_with_markov
        values = {
            "taps": taps,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": self.head_dim or target.head_dim,
            "ffn_size": self.ffn_size or target.ffn_size,
            "confidence_with_markov": self.confidence and with_markov,
            "max_positions": self.max_positions or target.max_positions,
        }
        resolved = self.model_copy(update=values)
        resolved.rotary()
        return resolved

    def rotary(self) -> RotaryConfig:
        """The frequencies of its positions. Raises ValueError for a kind of rope that is not supported."""
        assert self.head_dim is not None
        if self.rope.keys() == ROPE.keys() and self.rope["rope_type"] == "default":
            base = float(self.rope["rope_theta"])
            return RotaryConfig(tuple(base ** (-i / self.head_dim) for i in range(0, self.head_dim - 1, 2)))
        fields: dict[str, object] = {
            "model_type": "qwen3",
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_positions,
            "rope_parameters": self.rope,
        }
        return rotary(fields, self.head_dim)

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """The configuration of its layers, of resolved values: pre-norm ones, for any kind of target."""
        assert self.num_heads and self.num_kv_heads and self.head_dim and self.ffn_size
        multipliers = replace(target.multipliers, residual=1.0)
        if self.embedding_scale is not None:
            multipliers = replace(multipliers, embedding=self.embedding_scale, round_embedding=False)
        return DecoderConfig(
            vocab_size=self.draft_vocab_size or target.vocab_size,
            hidden_size=target.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            ffn_size=self.ffn_size,
            max_positions=target.max_positions + self.block_size,
            norm_eps=self.norm_eps,
            rotary=self.rotary(),
            norm=RMSNorm,
            attention=AttentionConfig(
                bias=self.attention_bias,
                output_bias=self.attention_bias,
                norm_span=NormSpan.HEAD if self.qk_norm else None,
            ),
            ffn=FFNConfig(),
            multipliers=multipliers,
            tied_head=target.tied_head and self.draft_vocab_size is None,
        )


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Five from the input of the third layer to that of the last but one; in a small target the last five."""
    if num_layers < NUM_TAPS + 3:
        return tuple(range(max(1, num_layers - NUM_TAPS + 1), num_layers + 1))
    return tuple(round(2 + i * (num_layers - 4) / (NUM_TAPS - 1)) for i in range(NUM_TAPS))
