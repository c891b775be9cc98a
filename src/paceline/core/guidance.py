"""Classifier-free guidance of rows: what a request asks for, and the state of all rows.

R rows, n nodes, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Classifier-free guidance (2207.12598, of language models 2306.17806) of one row.

    The row's logits become ``scale`` (l - m) + m, with l the log-probabilities after its own prompt and m those after
    the negative ``prompt``, each followed by the same new tokens. ``context`` (None: the request's own) is what the
    target reads beside the negative prompt. Raises ValueError for an empty prompt or a scale that
    is not finite.
    """

    scale: float
    prompt: Sequence[int]
    context: Context | None = None

    def __post_init__(self) -> None:
        if not abs(self.scale) < float("inf"):
            raise ValueError(f"guidance_scale={self.scale}: give a finite number (1 is off)")
        if not self.prompt:
            raise ValueError("empty negative prompt: give at least one token, or None for the prompt's last one")


@final
class GuidanceState:
    """Which of R rows are guided, and their scales, as tensors that steps read."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows: list[Guidance | None] = [None] * rows
        self.scale = torch.ones(rows, dtype=torch.float64, device=device)
        self.guided = torch.zeros(rows, dtype=torch.bool, device=device)
        self.any = False

    def assign(self, rows: Sequence[int], options: Sequence[Guidance | None]) -> None:
        """Give rows their guidance."""
        for row, option in zip(rows, options, strict=True):
            self.rows[row] = option
            self.guided[row] = option is not None
            self.scale[row] = 1.0 if option is None else option.scale
        self.any = any(option is not None for option in self.rows)

    def combine(self, logits: Tensor, negative: Tensor) -> Tensor:
        """``logits`` [R, n, V] of the prompts, guided away from those of the ``negative`` prompts [R, n, V].

        In single precision at least; rows that are not guided keep theirs.
        """
        wide = torch.promote_types(logits.dtype, torch.float32)
        scale = self.scale.to(wide)[:, None, None]
        own, other = logits.to(wide).log_softmax(-1), negative.to(wide).log_softmax(-1)
        # Tokens of probability 0 keep it: the difference of two minus infinities is undefined.
        combined = torch.where(own > -torch.inf, scale * (own - other) + other, -torch.inf)
        return torch.where(self.guided[:, None, None], combined, logits.to(wide))
