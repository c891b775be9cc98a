"""Configuration of the native decoder.

E head size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
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
class DecoderConfig:
    """Everything that shapes a native decoder. ``rotary`` None means learned positions."""

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
    window: int | None = None  # sliding window of some layer; longer sequences are refused
