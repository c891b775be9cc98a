"""Configuration of the native decoder.

E head size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.native.layers import RMSNorm, RotaryConfig


class NormSpan(Enum):
    """What a norm of queries and keys takes together: each head, or the heads of the whole projection."""

    HEAD = 0
    PROJECTION = 1


class Arrangement(Enum):
    """Where a block's norms are, and whether the feed-forward reads what attention added."""

    NORM_BEFORE = 0
    NORM_AFTER = 1
    PARALLEL = 2  # both read the block's input, each through its own norm
    NORM_OF_SUM = 3  # norms of the stream after each addition
    FFN_ALONE = 4  # no attention; the norm comes before


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Projections of the attention; ``bias`` is that of queries, keys and values."""

    bias: bool = False
    output_bias: bool = False
    interleaved: bool = False  # query, key and value rows are grouped by head
    norm_span: NormSpan | None = None  # norms of queries and keys before the rotation
    scale: float | None = None  # factor of the scores; None: one over the root of E
    unrotated: frozenset[int] = frozenset()  # layers without positions


@dataclass(frozen=True, slots=True, kw_only=True)
class FFNConfig:
    """The feed-forward: two layers, or three with a gate."""

    activation: Callable[[Tensor], Tensor] = F.silu
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Factors along the residual stream. ``round_embedding``: that of the embeddings is of the model's precision."""

    embedding: float = 1.0
    round_embedding: bool = False
    residual: float = 1.0  # of what a block adds
    logits: float = 1.0  # a divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBias:
    """What is added to the scores by the distance of query and key (1910.10683): one number per bucket and head.

    Half of the buckets have one distance each, the others wider and wider ranges up to ``max_distance``.
    """

    num_buckets: int
    max_distance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossConfig:
    """The attention of a decoder's blocks to an encoder's states of ``source_size``."""

    source_size: int
    max_source: int  # states at most
    bias: bool = False  # of queries, keys and values
    output_bias: bool = False
    null: bool = False  # every source begins with a learned key and value, so that it may be empty

    @property
    def max_slots(self) -> int:
        """Keys of a row at most."""
        return self.max_source + self.null


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """An encoder: blocks in which each position sees all, over tokens or over frames of ``num_features`` numbers.

    Tokens have the decoder's embedding unless they are of another vocabulary; two convolutions halve the number of
    frames. ``blocks`` has the fields that shape blocks, positions and norms.
    """

    blocks: "DecoderConfig"
    num_features: int | None = None  # of a frame; None: it reads tokens
    vocab_size: int | None = None  # of tokens that are not the decoder's; None: they are


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Everything that shapes a native decoder. Neither ``rotary`` nor ``relative`` means learned positions."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int
    norm_eps: float
    rotary: RotaryConfig | None
    norm: Callable[[int, float], nn.Module] = RMSNorm  # of a size and an epsilon
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    ffn: FFNConfig = field(default_factory=FFNConfig)
    arrangement: Arrangement = Arrangement.NORM_BEFORE
    multipliers: Multipliers = field(default_factory=Multipliers)
    tied_head: bool = False
    relative: RelativeBias | None = None
    embedding_norm: bool = False  # a norm of the embeddings
    final_norm: bool = True
    logits_bias: bool = False  # added to the logits
    num_generated: int | None = None  # tokens from this id on are read and never generated; None: there are none
    cross: CrossConfig | None = None
    encoder: EncoderConfig | None = None
    window: int | None = None  # sliding window of some layer; longer sequences are refused

    @property
    def learned_positions(self) -> bool:
        """Whether a table of positions is added to the embeddings."""
        return self.rotary is None and self.relative is None

    def apart(self, *, num_layers: int) -> "DecoderConfig":
        """Of ``num_layers`` such layers that read a target's states, not embeddings, and no encoder's."""
        return replace(self, num_layers=num_layers, embedding_norm=False, cross=None, encoder=None)
