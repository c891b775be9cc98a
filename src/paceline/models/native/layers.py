"""Layers of the native decoders: rotary embedding, norms, feed-forwards.

B rows, n nodes, H hidden size, E head size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary position embedding (2104.09864): inverse frequencies after any scaling, and the attention factor."""

    inverse_frequencies: tuple[float, ...]  # E / 2, or fewer where only the first elements of a head are rotated
    factor: float = 1.0
    wide: bool = False  # rotates in float32 whatever the model's precision


class Rotary(nn.Module):
    """Cosine and sine tables, computed in float32 whatever the model's precision (as in transformers)."""

    frequencies: Tensor

    def __init__(self, config: RotaryConfig) -> None:
        super().__init__()
        self.config = config
        values = torch.tensor(config.inverse_frequencies, dtype=torch.float32, device="cpu")
        self.register_buffer("frequencies", values, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        super()._apply(fn, recurse)
        # A change of the model's precision must not round the angles.
        exact = torch.tensor(self.config.inverse_frequencies, dtype=torch.float32)
        self.frequencies = exact.to(self.frequencies.device)
        return self

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine [B, n, 1, rotary_dim] of ``positions`` [B, n]."""
        angle = positions[..., None, None].float() * self.frequencies
        angle = torch.cat((angle, angle), dim=-1)
        return (angle.cos() * self.config.factor).to(dtype), (angle.sin() * self.config.factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [B, n, heads, E] in the half-split layout of Llama checkpoints."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotate_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``rotate`` in the precision of the table, its result in that of ``x``."""
    return rotate(x, cos, sin).to(x.dtype)


def rotate_partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``rotate`` of the first elements of each head, as many as the table has (partial rotary)."""
    rotary_dim = cos.shape[-1]
    return torch.cat((rotate(x[..., :rotary_dim], cos, sin), x[..., rotary_dim:]), dim=-1)


class Float32Rotary(Rotary):
    """Angles whose table is not rounded to the model's precision (OLMo 2)."""

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return super().forward(positions, torch.float32)


def make_rotary(config: RotaryConfig) -> Rotary:
    """The rotary embedding of ``config``."""
    return Float32Rotary(config) if config.wide else Rotary(config)


def table(rows: int, size: int) -> nn.Embedding:
    """An embedding without content: on the meta device the normal numbers of nn.Embedding import torch's compiler."""
    return nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)


class RMSNorm(nn.Module):
    """Root-mean-square norm (1910.07467), its statistics in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class LateRMSNorm(RMSNorm):
    """RMSNorm that rounds to the model's precision after the weight (OLMo 2), not before it."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        return (self.weight * (wide * scale)).to(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """RMSNorm by one plus the weight, all of it in float32 at least (Gemma)."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1.0 + self.weight.to(wide.dtype))).to(x.dtype)


class BiasedRMSNorm(nn.Module):
    """Root-mean-square norm with weight and bias, or with neither, rounded to the model's precision in between."""

    def __init__(self, size: int, eps: float, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size)) if affine else None
        self.bias = nn.Parameter(torch.zeros(size)) if affine else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        x = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        return x if self.weight is None or self.bias is None else x * self.weight + self.bias


def embedding_factor(factor: float, dtype: torch.dtype) -> float:
    """``factor`` rounded to ``dtype`` by way of float32, as Gemma does."""
    single = _rounded(factor, torch.float32)
    return single if dtype in (torch.float32, torch.float64) else _rounded(single, dtype)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """``value`` as ``dtype`` holds it; no tensor is made, because models are built on the meta device too."""
    mantissa, exponent = math.frexp(value)
    steps = 2 / torch.finfo(dtype).eps
    return math.ldexp(round(mantissa * steps) / steps, exponent)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    return F.gelu(x, approximate="tanh")


class GatedFFN(nn.Module):
    """Feed-forward with a gate (2002.05202)."""

    def __init__(self, hidden: int, inner: int, *, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


class PlainFFN(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, hidden: int, inner: int, *, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
