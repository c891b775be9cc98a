"""Transformer blocks of the native decoders: attention and feed-forward with their norms.

B rows, n nodes, H hidden size; inside, the residual stream is [B * n, H].
"""

from collections.abc import Callable
from enum import Flag, auto
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.models.native.attention import Attend
from paceline.models.native.config import Arrangement, DecoderConfig
from paceline.models.native.layers import GatedFFN, PlainFFN
from paceline.models.native.qkv import RotaryTable, make_qkv
from paceline.models.sublayers import SkippedSublayers


class Attention(nn.Module):
    """Projections around an attention that the caller supplies."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.qkv = nn.Linear(config.hidden_size, width + 2 * kv_width, bias=config.attention.bias)
        self.output = nn.Linear(width, config.hidden_size, bias=config.attention.output_bias)
        self.heads = make_qkv(config, layer)

    def forward(self, x: Tensor, layer: int, attend: Attend, table: RotaryTable) -> Tensor:
        heads = self.qkv(x).view(*attend.positions.shape, -1, self.head_dim)  # [B, n, heads, E]
        return self.output(attend(layer, *self.heads(heads, table)).reshape(x.shape[0], -1))


class Part(Flag):
    """The sub-layers of a layer that a forward runs."""

    NONE = 0
    ATTENTION = auto()
    FFN = auto()
    BOTH = ATTENTION | FFN


def parts_of(skipped: SkippedSublayers, layer: int) -> Part:
    """What is left of ``layer``."""
    attention = Part.NONE if layer in skipped.attention else Part.ATTENTION
    return attention | (Part.NONE if layer in skipped.mlp else Part.FFN)


class CrossAttention(nn.Module):
    """Projections around the attention to an encoder's states, whose keys and values are made once per request."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.cross is not None
        cross, self.head_dim = config.cross, config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.query = nn.Linear(config.hidden_size, width, bias=cross.bias)
        self.key_value = nn.Linear(cross.source_size, 2 * kv_width, bias=cross.bias)
        self.output = nn.Linear(width, config.hidden_size, bias=cross.output_bias)
        self.null = nn.Parameter(torch.empty(2, kv_width)) if cross.null else None  # a key and a value
        scale = config.attention.scale
        self.factor = 1.0 if scale is None else scale * config.head_dim**0.5

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [..., X, K * E] of an encoder's ``states`` [..., X, H], those of no source before them."""
        made = self.key_value(states)
        if self.null is not None:
            made = torch.cat((self.null.flatten().expand(*made.shape[:-2], 1, -1), made), dim=-2)
        keys, values = made.chunk(2, dim=-1)
        return keys, values

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        query = self.query(x).view(*attend.positions.shape, -1, self.head_dim)
        query = query if self.factor == 1.0 else query * self.factor
        return self.output(attend.attend_source(layer, query).reshape(x.shape[0], -1))


class Block(nn.Module):
    """One pre-norm layer. Without one of its ``parts`` the residual stream passes by it.

    In a decoder of an encoder's states, attention to these comes after that to the tokens, and is left out with it.
    """

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        # The first layer's, so that hidden states below it are the embeddings themselves.
        own = config.embedding_norm and layer == 0
        self.embedding_norm = config.norm(config.hidden_size, config.norm_eps) if own else None
        self.attention_norm = config.norm(config.hidden_size, config.norm_eps)
        self.attention = Attention(config, layer)
        self.cross_norm = None if config.cross is None else config.norm(config.hidden_size, config.norm_eps)
        self.cross = None if config.cross is None else CrossAttention(config)
        self.ffn_norm, self.ffn = _feed_forward(config)

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if Part.ATTENTION in parts:
            x = self.add(
                x, self.attention_norm, partial(self.attention, layer=layer, attend=attend, table=table), dropout
            )
            if self.cross is not None and self.cross_norm is not None:
                x = self.add(x, self.cross_norm, partial(self.cross, layer=layer, attend=attend), dropout)
        if Part.FFN in parts:
            x = self.add(x, self.ffn_norm, self.ffn, dropout)
        return x

    def add(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], dropout: float) -> Tensor:
        """The stream ``x`` with what one of its parts adds."""
        return x + _dropped(sublayer(norm(x)), dropout)


class ScaledBlock(Block):
    """A pre-norm layer that adds a fraction of what its parts give (Granite)."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.factor = config.multipliers.residual

    def add(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], dropout: float) -> Tensor:
        return x + _dropped(sublayer(norm(x)) * self.factor, dropout)


class PostNormBlock(Block):
    """A layer with norms on the outputs of attention and feed-forward (OLMo 2)."""

    def add(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], dropout: float) -> Tensor:
        return x + _dropped(norm(sublayer(x)), dropout)


class NormOfSumBlock(Block):
    """A layer with norms of the stream after each addition, as in the first transformer (1706.03762; BART)."""

    def add(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], dropout: float) -> Tensor:
        return norm(x + _dropped(sublayer(x), dropout))


class ParallelBlock(Block):
    """A layer whose attention and feed-forward read the same input (GPT-NeoX)."""

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if parts is not Part.BOTH:
            return super().forward(x, layer, attend, table, dropout, parts)  # one part alone has nothing beside it
        added = self.attention(self.attention_norm(x), layer, attend, table)
        more = self.ffn(self.ffn_norm(x))
        return _dropped(more, dropout) + _dropped(added, dropout) + x


class FeedForwardBlock(Block):
    """A feed-forward with its norm before it, and no attention."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.embedding_norm = self.cross_norm = self.cross = None
        self.ffn_norm, self.ffn = _feed_forward(config)

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        return super().forward(x, layer, attend, table, dropout, parts & Part.FFN)


def _feed_forward(config: DecoderConfig) -> tuple[nn.Module, GatedFFN | PlainFFN]:
    """The feed-forward of a block, and its norm."""
    make = GatedFFN if config.ffn.gated else PlainFFN
    ffn = make(config.hidden_size, config.ffn_size, bias=config.ffn.bias, activation=config.ffn.activation)
    return config.norm(config.hidden_size, config.norm_eps), ffn


def _dropped(added: Tensor, dropout: float) -> Tensor:
    return F.dropout(added, dropout) if dropout else added


_BLOCKS: dict[Arrangement, type[Block]] = {
    Arrangement.NORM_BEFORE: Block,
    Arrangement.NORM_AFTER: PostNormBlock,
    Arrangement.PARALLEL: ParallelBlock,
    Arrangement.NORM_OF_SUM: NormOfSumBlock,
    Arrangement.FFN_ALONE: FeedForwardBlock,
}


def make_block(config: DecoderConfig, layer: int) -> Block:
    """Layer number ``layer`` of ``config``. Raises ValueError for what no family combines."""
    if config.multipliers.residual == 1.0:
        return _BLOCKS[config.arrangement](config, layer)
    if config.arrangement is not Arrangement.NORM_BEFORE:
        raise ValueError(f"a residual multiplier of {config.multipliers.residual} needs blocks with norms before")
    return ScaledBlock(config, layer)
