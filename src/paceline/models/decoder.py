"""The native decoder: a pre-norm transformer whose step has static shapes. Knows nothing of checkpoint files.

B rows, n nodes, T sequence length, V vocabulary, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.cache import SlotCache, View
from paceline.core.tree import Tree
from paceline.models.attention import Attend, CausalAttention, TreeAttention
from paceline.models.base import Head, Output
from paceline.models.layers import GatedFFN, PlainFFN, RMSNorm, Rotary, RotaryConfig, rotate


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
    layer_norm: bool = False  # LayerNorm with bias instead of RMSNorm
    gated: bool = True
    bias: bool = False
    tied_head: bool = False


def _norm(config: DecoderConfig) -> nn.Module:
    if config.layer_norm:
        return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
    return RMSNorm(config.hidden_size, config.norm_eps)


class Attention(nn.Module):
    """Projections around an attention that the caller supplies."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.sizes = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.qkv = nn.Linear(config.hidden_size, width + 2 * kv_width, bias=config.bias)
        self.output = nn.Linear(width, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, layer: int, attend: Attend, table: tuple[Tensor, Tensor] | None) -> Tensor:
        heads = self.qkv(x).view(*attend.positions.shape, -1, self.head_dim)  # [B, n, heads, E]
        if table is None:
            query, key, value = heads.split(self.sizes, dim=2)
        else:
            rotated, value = heads.split((sum(self.sizes[:2]), self.sizes[2]), dim=2)
            query, key = rotate(rotated, *table).split(self.sizes[:2], dim=2)
        return self.output(attend(layer, query, key, value).reshape(x.shape[0], -1))


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.ffn_norm = _norm(config)
        ffn = GatedFFN if config.gated else PlainFFN
        self.ffn = ffn(config.hidden_size, config.ffn_size, bias=config.bias)

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: tuple[Tensor, Tensor] | None, dropout: float
    ) -> Tensor:
        added = self.attention(self.attention_norm(x), layer, attend, table)
        x = x + (F.dropout(added, dropout) if dropout else added)
        added = self.ffn(self.ffn_norm(x))
        return x + (F.dropout(added, dropout) if dropout else added)


class DecoderLM(nn.Module):
    """Token embedding, blocks, final norm and output head; an ``LM`` (models/base)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = None if config.rotary is None else Rotary(config.rotary)
        learned = config.rotary is None
        self.position = nn.Embedding(config.max_positions, config.hidden_size) if learned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = _norm(config)
        self.head = None if config.tied_head else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.dropout = 0.0  # training only

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.config.num_heads // self.config.num_kv_heads

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def slot_bytes(self) -> int:
        """Keys and values of one token over all layers, in bytes."""
        sizes = 2 * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim
        return sizes * self.dtype.itemsize

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """Storage for ``rows`` rows of ``capacity`` slots, in the model's own precision."""
        return SlotCache(
            num_layers=self.config.num_layers,
            rows=rows,
            capacity=capacity,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    def forward(
        self, tree: Tree, cache: View, *, start: int = 0, taps: Sequence[int] = (), head: Head = Head.ALL
    ) -> Output:
        """Score nodes ``start`` on of ``tree`` through the layers of ``cache`` (see models/base)."""
        attend = TreeAttention(tree, cache, start, max_positions=self.max_positions, group=self.group)
        hidden = self._run(tree.tokens[:, start:], attend, cache.layers, taps)
        return Output(self._head(hidden[-1], head, tree.valid[:, start:]), {tap: hidden[tap] for tap in taps})

    def causal(self, tokens: Tensor, *, taps: Sequence[int] = ()) -> Output:
        """Whole sequences [B, T] without a cache, differentiable: logits [B, T, V]."""
        rows, length = tokens.shape
        attend = CausalAttention(rows, length, tokens.device)
        hidden = self._run(tokens, attend, range(self.num_layers), taps)
        return Output(self._head(hidden[-1], Head.ALL, None), {tap: hidden[tap] for tap in taps})

    def _run(self, tokens: Tensor, attend: Attend, layers: Sequence[int], taps: Sequence[int]) -> dict[int, Tensor]:
        """Residual stream at each tap, and under -1 at the end."""
        dropout = self.dropout if self.training else 0.0
        # The residual stream is [B * n, H] inside: a matrix product of two axes costs less to call than of three.
        x = self.embed(tokens.flatten())
        if self.position is not None:
            x = x + self.position(attend.positions.flatten())
        table = None if self.rotary is None else self.rotary(attend.positions, x.dtype)
        shape = (*tokens.shape, -1)
        hidden = {0: x.view(shape)} if 0 in taps else {}
        for slot, layer in enumerate(layers):
            x = self.blocks[layer](x, slot, attend, table, dropout)
            if slot + 1 in taps:
                hidden[slot + 1] = x.view(shape)
        return {**hidden, -1: x.view(shape)}

    def _head(self, x: Tensor, head: Head, valid: Tensor | None) -> Tensor | None:
        if head is Head.NONE:
            return None
        if head is Head.LAST and valid is not None:
            last = (valid.sum(-1) - 1).clamp(min=0)
            x = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[-1]))
        weight = self.embed.weight if self.head is None else self.head.weight
        return F.linear(self.norm(x.flatten(0, 1)), weight).unflatten(0, x.shape[:2])
