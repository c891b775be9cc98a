"""Batches of random crops of token arrays, and stages of batches one after another.

B rows, T sequence length, P sequences, N tokens.
"""

import numpy as np
import torch

from paceline.train.batches import Batches, TrainBatch


class Crops:
    """Random crops of token arrays. The batch of a step is a function of (seed, step), so resuming needs no state."""

    def __init__(self, sources: list[tuple[np.ndarray, float]], *, rows: int, length: int, seed: int) -> None:
        """``sources``: token arrays with their share of the rows: [N], or sequences [P, T + 1] that are taken whole."""
        total = sum(share for _, share in sources)
        self.sources = [(torch.from_numpy(tokens.astype(np.int32)), share / total) for tokens, share in sources]
        for tokens, _ in self.sources:
            if tokens.dim() == 1 and len(tokens) <= length:
                raise ValueError(f"corpus of {len(tokens)} tokens is shorter than one sequence of {length}")
            if tokens.dim() == 2 and tokens.shape[1] != length + 1:
                raise ValueError(f"sequences of {tokens.shape[1]} tokens: batches of length {length} need {length + 1}")
        self._rows, self.length, self.seed = rows, length, seed

    @property
    def rows(self) -> int:
        """Rows of a whole batch."""
        return self._rows

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the step's batch: tokens [B, T + 1], all learned."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        shares = torch.tensor([share for _, share in self.sources])
        chosen = torch.multinomial(shares, self.rows, replacement=True, generator=generator)
        crops = []
        for source in chosen.tolist():  # for all rows, because they share a generator
            tokens = self.sources[source][0]
            last = tokens.shape[0] if tokens.dim() == 2 else tokens.shape[0] - self.length
            start = int(torch.randint(last, (), generator=generator))
            crops.append(tokens[start] if tokens.dim() == 2 else tokens[start : start + self.length + 1])
        tokens = torch.stack([crops[row] for row in rows]).long()
        return TrainBatch(tokens=tokens, learned=torch.ones_like(tokens, dtype=torch.bool))


class Stages:
    """Batches in stages: each ``(until, batches)`` gives the steps below ``until``."""

    def __init__(self, *stages: tuple[int, Batches]) -> None:
        self.stages = stages

    @property
    def rows(self) -> int:
        """Rows of the largest batch; a stage with fewer rows gives fewer."""
        return max(batches.rows for _, batches in self.stages)

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of this step's batch. Raises ValueError beyond the last stage."""
        for until, batches in self.stages:
            if step < until:
                return batches.batch(step, rows[: max(0, batches.rows - rows.start)])
        raise ValueError(f"step {step} is beyond the last stage, which ends at {self.stages[-1][0]}")
