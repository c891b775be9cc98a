"""One term of a task's loss over the rows of a batch, with the metrics that are logged for it.

B rows, T inputs of a row, A anchors, D depths, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.train.batches import TrainBatch
from paceline.train.tasks.losses import DistillationLoss, cross_entropy


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One loss per row [B], summed over learned tokens, and its metrics."""

    rows: Tensor
    metrics: dict[str, Tensor]  # name -> [2, K]: sums and counts, one column per depth

    def scaled(self, weight: float) -> "LossTerm":
        return LossTerm(self.rows * weight, self.metrics)

    def plus(self, other: "LossTerm") -> "LossTerm":
        """The sum of both over the same rows, with the metrics of both."""
        return LossTerm(self.rows + other.rows, {**self.metrics, **other.metrics})


def concatenate(terms: Sequence[LossTerm]) -> LossTerm:
    """One term over the rows of all ``terms``."""
    metrics = {name: torch.stack([term.metrics[name] for term in terms]).sum(0) for name in terms[0].metrics}
    return LossTerm(torch.cat([term.rows for term in terms]), metrics)


def input_segments(batch: TrainBatch) -> Tensor | None:
    """The document number of every input [B, T]; None where each row is one document."""
    return None if batch.segment is None else batch.segment[:, :-1]


def learned_mask(batch: TrainBatch) -> Tensor:
    """Whether the next token of each input has a loss [B, T]. The first token of a document never does."""
    learned = batch.learned[:, 1:]
    return learned if batch.segment is None else learned & (batch.segment[:, 1:] == batch.segment[:, :-1])


def num_learned(batch: TrainBatch) -> Tensor:
    """Number of tokens with a loss, a scalar."""
    return learned_mask(batch).sum()


def next_token_term(name: str, logits: Tensor, batch: TrainBatch) -> LossTerm:
    """Cross-entropy of the learned next tokens under ``logits`` [B, T, V], logged as ``name``.text."""
    entropy = cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten())
    rows = (entropy.view(logits.shape[:2]) * learned_mask(batch)).sum(-1)
    sums = torch.stack((rows.detach().sum(), num_learned(batch).to(rows.dtype)))
    return LossTerm(rows, {f"{name}.text": sums[:, None]})


def distillation_term(
    name: str,
    loss: DistillationLoss,
    draft: Tensor,
    target: Tensor,
    position: Tensor,
    weight: Tensor,
    batch: TrainBatch,
    draft_ids: Tensor | None = None,
    confidence: Tensor | None = None,
    confidence_weight: float = 1.0,
) -> LossTerm:
    """``draft`` logits [B, A, D, V] against ``target`` [B, T, V] at ``position`` [B, A, D], weighted by ``weight``.

    Sums are scaled to T entries per row, so a term's weight does not depend on the number of anchors and depths.
    ``draft_ids`` as in DistillationLoss. ``confidence`` [B, A, D], log odds, adds its cross-entropy with the acceptance
    probability of each entry.
    """
    num_rows, length = target.shape[:2]
    offsets = torch.arange(num_rows, device=position.device)[:, None, None] * length
    next_token = batch.tokens[:, 1:].gather(1, position.flatten(1)).flatten()
    output = loss(draft.flatten(0, 2), target.flatten(0, 1), (position + offsets).flatten(), next_token, draft_ids)
    values, acceptance, greedy = (column.view_as(weight) for column in output)
    scale = length / weight[0].numel()
    more: dict[str, Tensor] = {}
    if confidence is not None:
        goal = acceptance.clamp(0, 1)
        entropy = F.binary_cross_entropy_with_logits(confidence.float(), goal, reduction="none")
        values, more = torch.add(values, entropy, alpha=confidence_weight), {"confidence": entropy.detach()}
    with torch.no_grad():
        counts = weight.sum((0, 1))
        sums = {"loss": values.detach(), "acceptance": acceptance, "greedy": greedy, **more}
        metrics = {f"{name}.{key}": torch.stack(((value * weight).sum((0, 1)), counts)) for key, value in sums.items()}
    return LossTerm((values * weight).sum((1, 2)) * scale, metrics)


def auxiliary_term(name: str, values: Tensor, weight: Tensor, *, length: int) -> LossTerm:
    """A loss ``values`` [B, A, D] that the head itself computes, weighted and scaled as the one above."""
    values = values.float()
    with torch.no_grad():
        metrics = {name: torch.stack(((values * weight).sum((0, 1)), weight.sum((0, 1))))}
    return LossTerm((values * weight).sum((1, 2)) * (length / weight[0].numel()), metrics)
