"""Rows that are guided: a second row reads another prompt before the same text, and both decide together.

Knows nothing of models. R rows, of which the second half guides the first; N nodes, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from paceline.core.tree import Outcome, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Classifier-free guidance (2207.12598, for texts 2306.17806) of one row.

    The row's logits become ``scale`` (l - m) + m, with l the log-probabilities after its own prompt and m those after
    ``prompt``, each followed by the same new text. Raises ValueError for an empty prompt or a scale that is not finite.
    """

    scale: float
    prompt: Sequence[int]

    def __post_init__(self) -> None:
        if not abs(self.scale) < float("inf"):
            raise ValueError(f"guidance_scale={self.scale}: give a finite number (1 is off)")
        if not self.prompt:
            raise ValueError("empty negative prompt: give at least one token, or None for the prompt's last one")


class Guiding:
    """Which rows are guided, as tensors that steps read."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.half = rows // 2
        self.any = False
        self._guided = [False] * rows
        self.scale = torch.ones(rows, dtype=torch.float64, device=device)
        self.leader = torch.arange(rows, device=device)  # the guided row of one that guides; any other is its own
        self.second = torch.arange(rows, device=device)  # the row that guides; any other is its own

    def assign(self, rows: Sequence[int], options: Sequence[Guidance | None]) -> None:
        """Give rows of the first half their guidance."""
        for row, option in zip(rows, options, strict=True):
            self._guided[row] = option is not None
            if row >= self.half:
                continue
            self.scale[row] = 1.0 if option is None else option.scale
            self.second[row] = row if option is None else row + self.half
            self.leader[row + self.half] = row + self.half if option is None else row
        self.any = any(self._guided)

    def copy_draft(self, tree: Tree, root: Tensor) -> Tree:
        """``tree`` with the guided rows' drafts in the rows that guide them, behind their own ``root`` [R]."""
        if not self.any:
            return tree
        rows = {
            field.name: value[self.leader]
            for field in fields(Tree)
            if isinstance(value := getattr(tree, field.name), Tensor)
        }
        tokens = torch.cat((root[:, None], rows["tokens"][:, 1:]), dim=1)
        return replace(tree, **{**rows, "tokens": tokens})

    def combine(self, logits: Tensor) -> Tensor:
        """``logits`` [R, n, V] with those of the guided rows set against the others', in single precision at least."""
        if not self.any:
            return logits
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scale = self.scale.to(scores.dtype)[:, None, None]
        own = scores.log_softmax(-1)
        other = own[self.second]
        # Where a distribution has no token, neither stream counts: minus infinities have no difference.
        combined = torch.where(own > -torch.inf, scale * (own - other) + other, -torch.inf)
        return torch.where((self.second != self.leader)[:, None, None], combined, scores)

    def copy(self, values: Tensor) -> Tensor:
        """``values`` [R, ...] of the guided rows, for those that guide them too."""
        return values[self.leader] if self.any else values

    def copy_outcome(self, outcome: Outcome) -> Outcome:
        """``outcome`` with the guided rows' decisions for those that guide them too."""
        if not self.any:
            return outcome
        return Outcome(
            path=self.copy(outcome.path),
            num_committed=self.copy(outcome.num_committed),
            next=self.copy(outcome.next),
            picks=None if outcome.picks is None else self.copy(outcome.picks),
        )
