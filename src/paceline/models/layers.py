"""Building blocks of the native decoders. Knows nothing of caches, trees or checkpoints.

B rows, n nodes, H hidden size, E head size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary position embedding (2104.09864): inverse frequencies after any scaling, and the attention factor."""

    inverse_frequencies: tuple[float, ...]  # E / 2
    factor: float = 1.0


class Rotary(nn.Module):
    """Angles of positions, in float32 whatever the model's precision (as in transformers)."""

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
        """Cosine and sine [B, n, 1, E] of ``positions`` [B, n]."""
        angle = positions[..., None, None].float() * self.frequencies
        angle = torch.cat((angle, angle), dim=-1)
        return (angle.cos() * self.config.factor).to(dtype), (angle.sin() * self.config.factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [B, n, heads, E] in the half-split layout of Llama checkpoints."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


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


class GatedFFN(nn.Module):
    """SwiGLU feed-forward (2002.05202)."""

    def __init__(self, hidden: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class PlainFFN(nn.Module):
    """Two layers with the tanh form of GELU between them (GPT-2)."""

    def __init__(self, hidden: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))
