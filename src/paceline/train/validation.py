"""How well what is being trained drafts and reads, measured as it will be served. Trains and keeps nothing.

P prompts, T tokens each.
"""

from collections.abc import Callable
from typing import final

import numpy as np
import torch

from paceline.draft_heads.base import DraftHead
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LM
from paceline.models.native.decoder import DecoderLM
from paceline.train.acceptance import Acceptance, greedy_and_warm, measure_acceptance
from paceline.train.batches import Batches, TrainBatch
from paceline.train.config import ValidationSection
from paceline.train.tasks import Distillation, Heads, NextToken, read_text
from paceline.train.terms import num_learned
from paceline.train.trainer import Score

NUM_BATCHES = 4  # of held-out text


def drafter_of(head: DraftHead) -> Drafter:
    """The drafter that serves ``head``."""
    return DRAFTERS.find(head.kind)(head=head)


@final
class Validation:
    """Acceptance on held-out prompts, and the loss on held-out text where a model of text is learned."""

    def __init__(
        self,
        *,
        section: ValidationSection,
        prompts: np.ndarray,
        held_out: Batches,
        seed: int,
        serve: Callable[[DraftHead], Drafter] = drafter_of,
    ) -> None:
        self.section, self.prompts, self.held_out, self.seed, self.serve = section, prompts, held_out, seed, serve

    def of_text(self, task: NextToken) -> Score:
        """The less loss the better."""
        loss = text_loss(task.model, self.held_out)
        return Score(value=-loss, measures={"validation.loss": loss})

    def of_draft(self, task: Distillation) -> Score:
        """The more tokens per step the better, greedily."""
        found = self._measure(task.frozen, ModelDrafter(lm=task.draft))
        return _score({"draft": found})

    def of_heads(self, task: Heads) -> Score:
        """As a draft's, on average over the heads. Where the target learns, its loss decides: easy text is no merit."""
        found = {part.name: self._measure(task.target, self.serve(part.head)) for part in task.parts}
        score = _score(found)
        if task.trunk is None:
            return score
        loss = text_loss(task.target, self.held_out)
        return Score(value=-loss, measures={**score.measures, "validation.loss": loss}, length=score.length)

    def _measure(self, target: LM, drafter: Drafter) -> dict[str, Acceptance]:
        section = self.section
        return {
            name: measure_acceptance(
                target,
                drafter,
                self.prompts,
                num_tokens=section.tokens,
                num_draft_tokens=section.k,
                sampling=sampling,
            )
            for name, sampling in greedy_and_warm(section.temperature, seed=self.seed)
        }


@torch.no_grad()
def text_loss(model: DecoderLM, held_out: Batches) -> float:
    """Nats per token of some batches of held-out text."""
    losses, count = 0.0, 0.0
    for step in range(NUM_BATCHES):
        batch = _on(held_out.batch(step, range(held_out.rows)), model.device)
        losses += float(read_text(model, batch).loss)
        count += float(num_learned(batch))
    return losses / max(count, 1)


def _score(found: dict[str, dict[str, Acceptance]]) -> Score:
    """All numbers by name, and the mean over ``found`` of greedy tokens per step, unless all texts loop."""
    measures: dict[str, float] = {}
    lengths = []
    for name, by_sampling in found.items():
        for sampling, acceptance in by_sampling.items():
            measures.update(_numbers(f"validation.{name}.{sampling}", acceptance))
        if by_sampling["greedy"].texts:
            lengths.append(by_sampling["greedy"].summary.mean_acceptance_length)
    value = sum(lengths) / len(lengths) if lengths and len(lengths) == len(found) else None
    return Score(value=value, measures=measures, length=value)


def _numbers(name: str, found: Acceptance) -> dict[str, float]:
    numbers = {f"{name}.num_texts": float(found.num_texts), f"{name}.num_looping": float(found.num_looping)}
    if not found.texts:
        return numbers
    low, high = found.interval
    numbers |= {
        f"{name}.tokens_per_step": found.summary.mean_acceptance_length,
        f"{name}.low": low,
        f"{name}.high": high,
    }
    return numbers | {f"{name}.position.{at + 1}": share for at, share in enumerate(found.by_position)}


def _on(batch: TrainBatch, device: torch.device) -> TrainBatch:
    segment = None if batch.segment is None else batch.segment.to(device)
    return TrainBatch(tokens=batch.tokens.to(device), learned=batch.learned.to(device), segment=segment)
