"""The encoder of an encoder-decoder: blocks in which every position of an input sees all of it.

B inputs, T tokens or frames, X states (as many as tokens, half as many as frames), W numbers of a frame, H hidden size,
G query heads per key-value head, K key-value heads, E head size.
"""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.hardware.processor import has_matrix_tiles
from paceline.models.native.attention import WithoutSource
from paceline.models.native.blocks import make_block
from paceline.models.native.config import EncoderConfig
from paceline.models.native.layers import make_rotary, table
from paceline.models.native.relative import RelativePositions


@final
class InputAttention(WithoutSource):
    """Attention of each position of an input to all of the input, of which row b has ``length[b]`` positions."""

    def __init__(self, length: Tensor, size: int, relative: RelativePositions | None) -> None:
        index = torch.arange(size, device=length.device)
        self.positions = index.expand(len(length), size)
        # A row without any, which nobody reads, sees one, because 0 times NaN is NaN.
        seen = (index < length.clamp(min=1)[:, None])[:, None, None]  # [B, 1, 1, X]
        self.mask: Tensor | None = None if bool(seen.all()) else seen
        if relative is not None:
            added = relative((index[:, None] - index)[None])
            self.mask = added.masked_fill(~seen, -torch.inf)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``query`` [B, X, G * K, E], ``key`` and ``value`` [B, X, K, E] to [B, X, G * K, E]."""
        dtype, mask, wide = query.dtype, self.mask, _dtype_of_sums(query)
        query, key, value = (states.transpose(1, 2).to(wide) for states in (query, key, value))
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(wide)
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
        return out.transpose(1, 2).to(dtype)


def _dtype_of_sums(x: Tensor) -> torch.dtype:
    """What attention and convolutions of ``x`` compute in: on CPUs the short formats are many times slower than
    float32, which they are summed in anyway, unless there are tiles for bfloat16.
    """
    slow = x.device.type == "cpu" and x.dtype.itemsize < 4
    return torch.float32 if slow and not (x.dtype is torch.bfloat16 and has_matrix_tiles()) else x.dtype


@final
class Encoder(nn.Module):
    """Reads embeddings of tokens, or frames through two convolutions of which the second halves their number."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        blocks, width = config.blocks, config.blocks.hidden_size
        self.config = config
        if config.num_features is not None:
            self.conv1 = nn.Conv1d(config.num_features, width, kernel_size=3, padding=1)
            self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed = None if config.vocab_size is None else table(config.vocab_size, width)
        self.rotary = None if blocks.rotary is None else make_rotary(blocks.rotary)
        learned = blocks.learned_positions
        self.position = nn.Embedding.from_pretrained(torch.empty(blocks.max_positions, width)) if learned else None
        relative = blocks.relative
        self.relative = None if relative is None else RelativePositions(relative, blocks.num_heads, both_ways=True)
        self.blocks = nn.ModuleList(make_block(blocks, layer) for layer in range(blocks.num_layers))
        self.norm = blocks.norm(width, blocks.norm_eps) if blocks.final_norm else nn.Identity()

    def forward(self, inputs: Tensor, length: Tensor) -> Tensor:
        """States [B, X, H] of ``inputs``, embeddings [B, T, H] or frames [B, W, T], of which ``length`` [B] states are
        each row's own.
        """
        x = inputs if self.config.num_features is None else self.convolved(inputs)
        rows, size = x.shape[:2]
        attend = InputAttention(length, size, self.relative)
        if self.position is not None:
            x = x + self.position(attend.positions[0])
        angles = None if self.rotary is None else self.rotary(attend.positions, x.dtype)
        x = x.flatten(0, 1)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend, angles, 0.0)
        return self.norm(x).view(rows, size, -1)

    def convolved(self, frames: Tensor) -> Tensor:
        """``frames`` [B, W, T] as [B, X, H]."""
        x = frames.to(wide := _dtype_of_sums(frames))
        for layer in (self.conv1, self.conv2):
            bias = None if layer.bias is None else layer.bias.to(wide)
            x = F.gelu(F.conv1d(x, layer.weight.to(wide), bias, layer.stride, padding=1))
        return x.transpose(1, 2).to(frames.dtype)

    def num_states(self, inputs: Tensor) -> int:
        """How many states one input has, of token ids [T] or of frames [W, T]."""
        return len(inputs) if self.config.num_features is None else (inputs.shape[1] + 1) // 2
