"""Keys and values of the sequence before a block, and the attention of blocks in training.

B rows, T tokens, n positions, A anchors, b slots of a block, L layers, H hidden size, K key-value heads, G query heads
per key-value head, E head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.models.backend import linear_for, pack_layer
from paceline.models.native.attention import WithoutSource
from paceline.models.native.blocks import Block
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import rotate
from paceline.models.native.qkv import NormRotateQK


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextProjection:
    """The key and value projections of all layers as one matrix, because all layers read the same states."""

    multiply: Callable[[Tensor], Tensor]  # [..., H] with the matrix: [..., L * 2 * K * E]
    key_norm: Tensor | None  # [L, 1, E]; None: keys have no norm
    eps: float
    num_layers: int
    num_kv_heads: int
    layer: nn.Linear | None  # the matrix, where ``multiply`` is a kernel; None: it is PyTorch

    @staticmethod
    def of(decoder: DecoderLM, *, kernels: bool = False) -> "ContextProjection":
        """That of the layers of ``decoder``, a copy: differentiable in their weights, or for ``kernels``."""
        config = decoder.config
        first = config.num_heads * config.head_dim
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        norms: list[Tensor] = []
        for block in decoder.blocks:
            assert isinstance(block, Block)
            product, heads = block.attention.qkv, block.attention.heads
            weights.append(product.weight[first:])
            if product.bias is not None:
                biases.append(product.bias[first:])
            if isinstance(heads, NormRotateQK):
                norms.append(heads.key_norm.get_parameter("weight"))
        weight, bias = torch.cat(weights), torch.cat(biases) if biases else None
        layer = _packed(weight, bias) if kernels else None
        return ContextProjection(
            multiply=partial(F.linear, weight=weight, bias=bias) if layer is None else linear_for(layer, weight.dtype),
            key_norm=torch.stack(norms)[:, None] if norms else None,
            eps=config.norm_eps,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            layer=layer,
        )

    def __call__(self, features: Tensor, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys, rotated by ``table``, and values [B, n, L, K, E] of ``features`` [B, n, H]."""
        made = self.multiply(features)
        keys, values = made.unflatten(-1, (self.num_layers, 2, self.num_kv_heads, -1)).unbind(3)
        if self.key_norm is not None:  # as in models/native/layers.RMSNorm
            wide = keys.to(torch.promote_types(keys.dtype, torch.float32))
            scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
            keys = (wide * scale).to(keys.dtype) * self.key_norm
        return rotate(keys.flatten(2, 3), *table).view(keys.shape), values


def _packed(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return pack_layer(layer, weight.dtype)


@final
class BlockAttention(WithoutSource):
    """Blocks of several anchors at once: a slot sees the sequence before its anchor, and all of its own block.

    ``keys`` and ``values`` [B, T, L, K, E] are the sequence's, ``positions`` [B, A, b] those of the slots, and
    ``segment`` [B, T] as in models/native/attention.CausalAttention. The mask is dense: [B, A * b, T + A * b].
    """

    def __init__(
        self, *, keys: Tensor, values: Tensor, anchors: Tensor, positions: Tensor, segment: Tensor | None
    ) -> None:
        rows, count, size = positions.shape
        index = torch.arange(keys.shape[1], device=keys.device)
        seen = index < anchors[..., None]  # [B, A, T]
        if segment is not None:
            seen &= segment[:, None] == segment.gather(1, anchors)[..., None]
        block = torch.arange(count * size, device=keys.device) // size
        own = (block[:, None] == block).expand(rows, -1, -1)
        self.keys, self.values = keys, values
        self.positions = positions.flatten(1)
        self.mask = torch.cat((seen.repeat_interleave(size, dim=1), own), dim=2)[:, None]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See models/native/attention.Attend."""
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            torch.cat((self.keys[:, :, layer], key), dim=1).transpose(1, 2),
            torch.cat((self.values[:, :, layer], value), dim=1).transpose(1, 2),
            attn_mask=self.mask,
            enable_gqa=True,
        )
        return out.transpose(1, 2)
