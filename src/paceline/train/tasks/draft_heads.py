"""The task that trains draft heads on the hidden states of one target, which is frozen or trained with them.

B rows, T inputs of a row, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHead
from paceline.models.native.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.tasks.base import StepRandomness, Task, TaskOutput, sum_terms
from paceline.train.tasks.joint import TRUNK, Joint
from paceline.train.tasks.layer_skip import LayerSkip
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.tasks.models import trained_forward
from paceline.train.tasks.sources import encoded, source_of, without_sources
from paceline.train.tasks.terms import (
    LossTerm,
    auxiliary_term,
    concatenate,
    distillation_term,
    input_segments,
    learned_mask,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedHead:
    """A draft head and its share of the loss."""

    name: str
    head: DraftHead
    is_new: bool = True  # else its weights and its draft vocabulary were read from files
    weight: float = 1.0  # 0: no loss is computed for it
    detach: bool = False  # whether its gradient stops at the target's hidden states
    depth_weights: tuple[float, ...] | None = None  # relative to their mean; None: equal


@final
class DraftHeadTask(Task):
    """Draft heads on one target; the loss is the weighted sum over the heads, and the target's own if it is trained.

    ``rows`` rows are unrolled at once, with the random numbers of the first of them. What is drawn does not depend on
    the number of processes if each has a multiple of ``rows``.
    """

    def __init__(
        self,
        *,
        target: DecoderLM,
        heads: Sequence[TrainedHead],
        loss: DistillationLoss,
        target_weight: float | None = None,
        rows: int = 1,
        layer_skip: LayerSkip | None = None,
        joint: Joint | None = None,
        source_dropout: float = 0.0,
    ) -> None:
        """``target_weight``: weight of the target's next-token loss; None freezes the target.

        ``joint`` trains the target in a second stage only. ``source_dropout`` is the share of rows that are trained
        without what an encoder reads.
        """
        super().__init__()
        target.requires_grad_(target_weight is not None)
        if joint is not None:
            joint.choose_trained(target)
        self.joint, self.source_dropout = joint, source_dropout
        self.trunk = None if target_weight is None else target
        self._target = (target,)  # in a tuple, so that it is not a submodule
        self.heads = nn.ModuleDict({trained.name: trained.head for trained in heads})
        self.trained_heads, self.loss = tuple(heads), loss
        self.target_weight, self.rows, self.layer_skip = target_weight, rows, layer_skip
        self.weighted_heads = tuple(trained for trained in heads if trained.weight > 0)
        self.taps = tuple(sorted({tap for trained in self.weighted_heads for tap in trained.head.taps}))

    @property
    def target(self) -> DecoderLM:
        return self._target[0]

    @property
    def frozen(self) -> DecoderLM | None:
        return self.target if self.trunk is None else None

    @property
    def served_dtype(self) -> torch.dtype | None:
        """The target's: a head reads its hidden states."""
        return self.target.dtype

    @property
    def in_stages(self) -> bool:
        return self.joint is not None

    def relative_rate(self, part: str, step: int) -> float:
        """Of the target in stages, its own."""
        return self.joint.target_rate(step) if self.joint is not None and part == TRUNK else 1.0

    def forward(self, batch: TrainBatch, randomness: StepRandomness) -> TaskOutput:
        """One forward pass of the target, whose hidden states all heads read."""
        randomness.seed_device()
        batch = without_sources(batch, randomness, self.source_dropout if self.training else 0.0)
        logits, hidden, terms = self._target_forward(batch, randomness)
        target = logits.detach()
        share = 1.0 if self.joint is None else self.joint.head_weight(randomness.step)
        for trained in self.weighted_heads:
            states = {tap: hidden[tap].detach() if trained.detach else hidden[tap] for tap in trained.head.taps}
            groups = [
                self._head_term(trained, batch, slice(first, first + self.rows), states, target, randomness)
                for first in range(0, len(batch.tokens), self.rows)
            ]
            terms.append(concatenate(groups).scaled(trained.weight * share))
        return sum_terms(terms)

    def _target_forward(
        self, batch: TrainBatch, randomness: StepRandomness
    ) -> tuple[Tensor, Mapping[int, Tensor], list[LossTerm]]:
        """The target's logits, hidden states at the taps, and its own loss if it is trained.

        Hidden states that came with the batch replace the forward pass.
        """
        if self.trunk is not None and (self.joint is None or self.joint.has_begun(randomness.step)):
            assert self.target_weight is not None
            output, term = trained_forward("target", self.trunk, batch, randomness, self.taps, self.layer_skip)
            assert output.logits is not None
            return output.logits, output.hidden, [term.scaled(self.target_weight)]
        self.target.eval()  # no dropout
        last = self.target.num_layers
        with torch.no_grad():
            if batch.hidden is not None and {*self.taps, last} <= batch.hidden.keys():
                hidden = {tap: states.to(self.target.dtype) for tap, states in batch.hidden.items()}
                return self.target.compute_logits(hidden[last]), hidden, []
            source = source_of(self.target, batch, encoded(self.target, batch))
            output = self.target.causal(
                batch.tokens[:, :-1], taps=self.taps, segment=input_segments(batch), source=source
            )
        assert output.logits is not None
        return output.logits, output.hidden, []

    def _head_term(
        self,
        trained: TrainedHead,
        whole: TrainBatch,
        rows: slice,
        hidden: Mapping[int, Tensor],
        target: Tensor,
        randomness: StepRandomness,
    ) -> LossTerm:
        segment = None if whole.segment is None else whole.segment[rows]
        batch = dataclasses.replace(
            whole, tokens=whole.tokens[rows], learned=whole.learned[rows], segment=segment, hidden=None, source=None
        )
        learned = learned_mask(batch)
        unrolled = trained.head.unroll(
            batch.tokens[:, :-1],
            {tap: states[rows] for tap, states in hidden.items()},
            segment=input_segments(batch),
            learned=learned,
            generator=randomness.generator(rows.start),
        )
        position = unrolled.position
        weight = learned.gather(1, position.flatten(1)).view_as(position).float()
        if unrolled.stops_at_unlearned:
            weight = weight.cumprod(-1)
        if unrolled.weight is not None:
            weight = weight * unrolled.weight
        if trained.depth_weights is not None:
            depths = torch.tensor(trained.depth_weights, device=weight.device)
            if len(depths) != weight.shape[-1]:
                raise ValueError(
                    f"{len(depths)} depth weights for the head {trained.name!r}, which learns {weight.shape[-1]} "
                    "depths: give one for each"
                )
            weight = weight * (depths / depths.mean())
        whole_target, ids = target[rows], unrolled.draft_ids
        term = distillation_term(
            trained.name,
            self.loss,
            unrolled.logits,
            whole_target,
            position,
            weight,
            batch,
            draft_ids=ids,
            confidence=unrolled.confidence,
            confidence_weight=trained.head.config.auxiliary_weights.get("confidence", 1.0),
        )
        for name, values in (unrolled.auxiliary or {}).items():
            more = auxiliary_term(f"{trained.name}.{name}", values, weight, length=whole_target.shape[1])
            term = term.plus(more.scaled(trained.head.config.auxiliary_weights.get(name, 1.0)))
        return term
