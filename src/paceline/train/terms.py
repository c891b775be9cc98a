"""One loss over the rows of a batch, with what is measured beside it. Knows nothing of what is trained.

B rows, T inputs of a row, A anchors, D depths, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.train.batches import TrainBatch
from paceline.train.losses import Comparison, next_token_entropy


@dataclass(frozen=True, slots=True)
class Term:
    """One loss: by row [B] as a sum over learned tokens, and measures."""

    rows: Tensor
    measures: dict[str, Tensor]

    def scaled(self, weight: float) -> "Term":
        return Term(self.rows * weight, self.measures)


def joined(parts: Sequence[Term]) -> Term:
    """Of more rows."""
    names = parts[0].measures
    measures = {name: torch.stack([part.measures[name] for part in parts]).sum(0) for name in names}
    return Term(torch.cat([part.rows for part in parts]), measures)


def segment_of(batch: TrainBatch) -> Tensor | None:
    """Which text of its row every input belongs to [B, T]; None where a row is one text."""
    return None if batch.segment is None else batch.segment[:, :-1]


def learned_of(batch: TrainBatch) -> Tensor:
    """Of every input, whether its successor counts [B, T]; the first token of another text follows from nothing."""
    learned = batch.learned[:, 1:]
    return learned if batch.segment is None else learned & (batch.segment[:, 1:] == batch.segment[:, :-1])


def num_learned(batch: TrainBatch) -> Tensor:
    """How many tokens a loss counts, a scalar."""
    return learned_of(batch).sum()


def on_text(name: str, logits: Tensor, batch: TrainBatch) -> Term:
    """Cross-entropy of the learned next tokens under ``logits`` [B, T, V], measured as ``name``.text."""
    entropy = next_token_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten())
    rows = (entropy.view(logits.shape[:2]) * learned_of(batch)).sum(-1)
    sums = torch.stack((rows.detach().sum(), num_learned(batch).to(rows.dtype)))
    return Term(rows, {f"{name}.text": sums[:, None]})


def compared(
    name: str,
    comparison: Comparison,
    own: Tensor,
    wanted: Tensor,
    position: Tensor,
    weight: Tensor,
    batch: TrainBatch,
) -> Term:
    """``own`` [B, A, D, V] against ``wanted`` [B, T, V] at ``position`` [B, A, D], each with its ``weight``.

    Sums are scaled to T entries per row, so that a term weighs alike however many anchors and depths there are.
    """
    rows, length = wanted.shape[:2]
    begins = torch.arange(rows, device=position.device)[:, None, None] * length
    text = batch.tokens[:, 1:].gather(1, position.flatten(1)).flatten()
    found = comparison(own.flatten(0, 2), wanted.flatten(0, 1), (position + begins).flatten(), text)
    loss, acceptance, greedy = (column.view_as(weight) for column in found)
    share = length / weight[0].numel()
    with torch.no_grad():
        counts = weight.sum((0, 1))
        sums = {"loss": loss.detach(), "acceptance": acceptance, "greedy": greedy}
        measures = {f"{name}.{key}": torch.stack(((value * weight).sum((0, 1)), counts)) for key, value in sums.items()}
    return Term((loss * weight).sum((1, 2)) * share, measures)
