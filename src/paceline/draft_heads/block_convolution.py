"""Layers whose sub-layers stand between convolutions over the slots of a block (DFlash 2).

b slots of a block, k taps of a convolution, G groups of channels, H hidden size; the residual stream is [n, H], n a
multiple of b.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.models.native.attention import Attend
from paceline.models.native.blocks import Block, Part
from paceline.models.native.config import DecoderConfig
from paceline.models.native.qkv import RotaryTable


@final
class SlotConvolution(nn.Module):
    """Two causal convolutions over the slots of each block: of what a sub-layer reads, and of what it gives.

    The weight of a tap is ``base`` [2, k, H] plus what ``project`` makes of the slot itself, one number per group.
    """

    def __init__(self, hidden_size: int, *, block_size: int, num_taps: int, group_size: int) -> None:
        super().__init__()
        self.block_size, self.group_size = block_size, group_size
        self.base = nn.Parameter(torch.empty(2, num_taps, hidden_size))
        self.project = nn.Linear(hidden_size, 2 * num_taps * (hidden_size // group_size), bias=False)

    def around(self, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What a sub-layer ``part`` gives for ``x`` [n, H], between the two."""
        before, after = self.kernels(x)
        return self(part(self(x, before)), after)

    def kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights [n, k, H] of both, by what the sub-layer reads ``x`` [n, H]."""
        made = self.project(x).unflatten(-1, (*self.base.shape[:2], -1)).repeat_interleave(self.group_size, dim=-1)
        before, after = (self.base + made).unbind(1)
        return before, after

    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """``x`` [n, H], of each slot those up to k - 1 before it in its block, weighted by ``kernel`` [n, k, H]."""
        slots, weights = x.view(-1, self.block_size, x.shape[-1]), kernel.unflatten(0, (-1, self.block_size))
        shifted = [F.pad(slots, (0, 0, tap, 0))[:, : self.block_size] for tap in range(kernel.shape[1])]
        return sum((one * weights[:, :, tap] for tap, one in enumerate(shifted)), torch.zeros_like(slots)).view_as(x)


@final
class ConvolvedBlock(Block):
    """A pre-norm layer with a SlotConvolution around its attention, and one around its feed-forward network."""

    def __init__(self, config: DecoderConfig, layer: int, *, block_size: int, num_taps: int, group_size: int) -> None:
        super().__init__(config, layer)
        self.attention_conv, self.ffn_conv = (
            SlotConvolution(config.hidden_size, block_size=block_size, num_taps=num_taps, group_size=group_size)
            for _ in range(2)
        )

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        if Part.ATTENTION in parts:
            added = self.attention_conv.around(
                lambda read: self.attention(read, layer, attend, table), self.attention_norm(x)
            )
            x = x + (F.dropout(added, dropout) if dropout else added)
        if Part.FFN in parts:
            added = self.ffn_conv.around(self.ffn, self.ffn_norm(x))
            x = x + (F.dropout(added, dropout) if dropout else added)
        return x
