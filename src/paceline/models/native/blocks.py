"""Transformer blocks of the native decoders: attention and feed-forward with their norms.

B rows, n nodes, H hidden size; inside, the residual stream is [B * n, H].
"""

from enum import Flag, auto

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


class Block(nn.Module):
    """One pre-norm layer. Without one of its ``parts`` the residual stream passes by it."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = config.norm(config.hidden_size, config.norm_eps)
        self.attention = Attention(config, layer)
        self.ffn_norm = config.norm(config.hidden_size, config.norm_eps)
        make = GatedFFN if config.ffn.gated else PlainFFN
        self.ffn = make(config.hidden_size, config.ffn_size, bias=config.ffn.bias, activation=config.ffn.activation)

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if Part.ATTENTION in parts:
            added = self.attention(self.attention_norm(x), layer, attend, table)
            x = x + (F.dropout(added, dropout) if dropout else added)
        if Part.FFN in parts:
            added = self.ffn(self.ffn_norm(x))
            x = x + (F.dropout(added, dropout) if dropout else added)
        return x


class ScaledBlock(Block):
    """A pre-norm layer that adds a fraction of what its parts give (Granite)."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.factor = config.multipliers.residual

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if Part.ATTENTION in parts:
            added = self.attention(self.attention_norm(x), layer, attend, table) * self.factor
            x = x + (F.dropout(added, dropout) if dropout else added)
        if Part.FFN in parts:
            added = self.ffn(self.ffn_norm(x)) * self.factor
            x = x + (F.dropout(added, dropout) if dropout else added)
        return x


class PostNormBlock(Block):
    """A post-norm layer: norms on the outputs of attention and feed-forward (OLMo 2)."""

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if Part.ATTENTION in parts:
            added = self.attention_norm(self.attention(x, layer, attend, table))
            x = x + (F.dropout(added, dropout) if dropout else added)
        if Part.FFN in parts:
            added = self.ffn_norm(self.ffn(x))
            x = x + (F.dropout(added, dropout) if dropout else added)
        return x


class ParallelBlock(Block):
    """A layer whose attention and feed-forward read the same input (GPT-NeoX)."""

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if parts is not Part.BOTH:
            return super().forward(x, layer, attend, table, dropout, parts)  # one part alone has nothing beside it
        added = self.attention(self.attention_norm(x), layer, attend, table)
        more = self.ffn(self.ffn_norm(x))
        if dropout:
            added, more = F.dropout(added, dropout), F.dropout(more, dropout)
        return more + added + x


_BLOCKS: dict[Arrangement, type[Block]] = {
    Arrangement.NORM_BEFORE: Block,
    Arrangement.NORM_AFTER: PostNormBlock,
    Arrangement.PARALLEL: ParallelBlock,
}


def make_block(config: DecoderConfig, layer: int) -> Block:
    """Layer number ``layer`` of ``config``. Raises ValueError for what no family combines."""
    if config.multipliers.residual == 1.0:
        return _BLOCKS[config.arrangement](config, layer)
    if config.arrangement is not Arrangement.NORM_BEFORE:
        raise ValueError(f"a residual multiplier of {config.multipliers.residual} needs blocks with norms before")
    return ScaledBlock(config, layer)
