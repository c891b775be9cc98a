"""Validation during training: acceptance with the decoder that serves, and the loss on held-out text."""

from collections.abc import Callable, Sequence
from typing import final

import torch

from paceline.core.request import Request
from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.vocab_map import reduce_vocab
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LM
from paceline.models.native.decoder import DecoderLM
from paceline.train.acceptance import Acceptance, measure_requests, validation_samplings
from paceline.train.batches import Batches
from paceline.train.config import ValidationSection
from paceline.train.loop.trainer import Score
from paceline.train.tasks import Distillation, DraftHeadTask, NextToken, Task, next_token_output
from paceline.train.tasks.terms import num_learned

NUM_BATCHES = 4  # of held-out text


def drafter_of(head: DraftHead) -> Drafter:
    """The drafter that serves ``head``."""
    return DRAFTERS.find(head.kind)(head=head)


def draft_model_of(task: Distillation) -> Drafter:
    """The drafter that serves the draft model of ``task``."""
    if task.draft_ids is None:
        return ModelDrafter(lm=task.draft)
    lm, vocab = reduce_vocab(task.draft, task.draft_ids, target_size=task.frozen.vocab_size)
    return ModelDrafter(lm=lm, vocab=vocab)


@final
class Validation:
    """The score of a task.

    A draft model or heads score by greedy tokens per step on held-out requests, the mean over the heads. A target that
    is trained scores by its held-out loss, also with heads: a target whose output is easier to draft is not a better
    one.
    """

    def __init__(
        self,
        *,
        section: ValidationSection,
        requests: Sequence[Request],
        held_out: Batches,
        seed: int,
        serve: Callable[[DraftHead], Drafter] = drafter_of,
    ) -> None:
        self.section, self.requests, self.held_out, self.seed, self.serve = section, requests, held_out, seed, serve

    def __call__(self, task: Task) -> Score:
        """Measure ``task``."""
        if isinstance(task, NextToken):
            loss = text_loss(task.model, self.held_out)
            return Score(value=-loss, metrics={"validation.loss": loss})
        if isinstance(task, Distillation):
            return _score({"draft": self._measure(task.frozen, draft_model_of(task))})
        assert isinstance(task, DraftHeadTask)
        by_head = {trained.name: self._measure(task.target, self.serve(trained.head)) for trained in task.trained_heads}
        score = _score(by_head)
        if task.trunk is None:
            return score
        loss = text_loss(task.target, self.held_out)
        return Score(value=-loss, metrics={**score.metrics, "validation.loss": loss}, length=score.length)

    def _measure(self, target: LM, drafter: Drafter) -> dict[str, Acceptance]:
        section = self.section
        return {
            name: measure_requests(target, drafter, self.requests, num_draft_tokens=section.k, sampling=sampling)
            for name, sampling in validation_samplings(section.temperature, seed=self.seed)
        }


@torch.no_grad()
def text_loss(model: DecoderLM, held_out: Batches) -> float:
    """Nats per token of some batches of held-out text."""
    losses, count = 0.0, 0.0
    for step in range(NUM_BATCHES):
        batch = held_out.batch(step, range(held_out.rows)).to(model.device)
        losses += float(next_token_output(model, batch).loss)
        count += float(num_learned(batch))
    return losses / max(count, 1)


def _score(by_head: dict[str, dict[str, Acceptance]]) -> Score:
    """All metrics, and the mean greedy tokens per step, unless all outputs of a head loop."""
    metrics: dict[str, float] = {}
    lengths = []
    for name, by_sampling in by_head.items():
        for sampling, acceptance in by_sampling.items():
            metrics.update(_metrics(f"validation.{name}.{sampling}", acceptance))
        if by_sampling["greedy"].outputs:
            lengths.append(by_sampling["greedy"].summary.mean_acceptance_length)
    value = sum(lengths) / len(lengths) if lengths and len(lengths) == len(by_head) else None
    return Score(value=value, metrics=metrics, length=value)


def _metrics(name: str, acceptance: Acceptance) -> dict[str, float]:
    counts = {f"{name}.num_texts": float(acceptance.num_outputs), f"{name}.num_looping": float(acceptance.num_looping)}
    if not acceptance.outputs:
        return counts
    low, high = acceptance.interval
    return {
        **counts,
        f"{name}.tokens_per_step": acceptance.summary.mean_acceptance_length,
        f"{name}.low": low,
        f"{name}.high": high,
        **{f"{name}.position.{at + 1}": share for at, share in enumerate(acceptance.by_position)},
    }
