"""What is trained: a module whose forward gives the loss of a batch and what was measured on the way.

Knows nothing of optimisers, processes or files. B rows, T inputs of a row, A anchors, D depths, V vocabulary, H hidden
size.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from paceline.core.noise import split_seed
from paceline.draft_heads.base import DraftHead
from paceline.models.base import Output
from paceline.models.native.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.layer_skip import LayerSkip
from paceline.train.losses import Comparison
from paceline.train.terms import Term, compared, joined, learned_of, on_text, segment_of

TARGET = 1 << 40  # counts as a step that no run reaches


class Result(NamedTuple):
    """Sums over the rows of a batch; a mean is for who knows all rows, on whichever process."""

    loss: Tensor  # [] of all learned tokens
    rows: Tensor  # [B] the same by row, without a gradient
    measures: dict[str, Tensor]  # name -> [2, K]: sums and counts, by depth where there are depths


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Where random numbers come from: a function of the seed, the step and the row, on whatever process it lies."""

    seed: int
    step: int
    first_row: int  # of this batch in the whole one

    def generator(self, row: int) -> torch.Generator:
        """Of ``row`` of this batch."""
        return torch.Generator().manual_seed(split_seed(split_seed(self.seed, self.step), self.first_row + row))

    def apart(self) -> "Draws":
        """Others for the same rows: of what is drawn for the target and not for a head."""
        return dataclasses.replace(self, seed=split_seed(self.seed, TARGET))

    def scatter(self) -> None:
        """Seed what draws from the one generator of the device: dropout."""
        torch.manual_seed(split_seed(split_seed(self.seed + 1, self.step), self.first_row))


class Task(nn.Module, ABC):
    """What a run trains. Parameters that want no gradient belong to others, and are neither kept nor spread."""

    @abstractmethod
    def forward(self, batch: TrainBatch, draws: Draws) -> Result:
        """Loss and measures of ``batch``, which lies on the task's device."""

    @property
    @abstractmethod
    def frozen(self) -> DecoderLM | None:
        """The target that only gives its laws; no part of the module."""

    @property
    def served_dtype(self) -> torch.dtype | None:
        """The precision in which what is trained is served; None: that in which it is trained."""
        return None

    def trained(self) -> dict[str, nn.Parameter]:
        """What is learned, by name; what several parts share, once."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


def read_text(model: DecoderLM, batch: TrainBatch) -> Result:
    """Cross-entropy of every learned next token."""
    return _result([on_text("loss", _logits(model, batch), batch)])


@final
class NextToken(Task):
    """A language model on text."""

    def __init__(self, *, model: DecoderLM, layer_skip: LayerSkip | None = None) -> None:
        super().__init__()
        self.model = model.requires_grad_(True)
        self.layer_skip = layer_skip

    @property
    def frozen(self) -> None:
        return None

    def forward(self, batch: TrainBatch, draws: Draws) -> Result:
        """Cross-entropy of every learned next token, with ``layer_skip`` of early exits too."""
        draws.scatter()
        return _result([_learning("loss", self.model, batch, draws, (), self.layer_skip)[1]])


@final
class Distillation(Task):
    """A draft model against its target, token by token."""

    def __init__(self, *, target: DecoderLM, draft: DecoderLM, comparison: Comparison) -> None:
        super().__init__()
        self.draft = draft.requires_grad_(True)
        self._target = (target,)  # within a tuple it is no part of the module
        self.comparison = comparison

    @property
    def frozen(self) -> DecoderLM:
        return self._target[0]

    def forward(self, batch: TrainBatch, draws: Draws) -> Result:
        """The comparison at every position whose next token is learned."""
        with torch.no_grad():
            wanted = _logits(self.frozen, batch)
        draws.scatter()
        own = _logits(self.draft, batch)
        position = torch.arange(own.shape[1], device=own.device).expand(own.shape[:2])[..., None]
        weight = learned_of(batch).float()[..., None]
        return _result([compared("draft", self.comparison, own[:, :, None], wanted, position, weight, batch)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A head and its part in the loss."""

    name: str
    head: DraftHead
    weight: float = 1.0  # 0: nothing learns for it
    detach: bool = False  # whether its loss ends at the target's hidden states
    depth_weights: tuple[float, ...] | None = None  # their mean counts as 1; None: all alike


@final
class Heads(Task):
    """Heads beside one target, which is frozen, or learns its text with them: the sum of all losses.

    ``rows`` rows are unrolled at once, with random numbers of the first one; so what is drawn does not depend on the
    processes that share a batch as long as each has whole groups of them.
    """

    def __init__(
        self,
        *,
        target: DecoderLM,
        heads: Sequence[Trained],
        comparison: Comparison,
        text_weight: float | None = None,
        rows: int = 1,
        layer_skip: LayerSkip | None = None,
    ) -> None:
        """``text_weight``: that of the target's own loss; None freezes it. ``layer_skip``: how it learns."""
        super().__init__()
        target.requires_grad_(text_weight is not None)
        self.trunk = None if text_weight is None else target
        self._target = (target,)
        self.heads = nn.ModuleDict({part.name: part.head for part in heads})
        self.parts, self.comparison = tuple(heads), comparison
        self.text_weight, self.rows, self.layer_skip = text_weight, rows, layer_skip
        self.taught = tuple(part for part in heads if part.weight > 0)
        self.taps = tuple(sorted({tap for part in self.taught for tap in part.head.taps}))

    @property
    def target(self) -> DecoderLM:
        return self._target[0]

    @property
    def frozen(self) -> DecoderLM | None:
        return self.target if self.trunk is None else None

    def forward(self, batch: TrainBatch, draws: Draws) -> Result:
        """One forward of the target, whose hidden states all heads read."""
        draws.scatter()
        logits, hidden, terms = self._read(batch, draws)
        wanted = logits.detach()
        for part in self.taught:
            read = {tap: hidden[tap].detach() if part.detach else hidden[tap] for tap in part.head.taps}
            groups = [
                self._of(part, _rows(batch, at, self.rows), read, wanted, draws, at)
                for at in range(0, len(batch.tokens), self.rows)
            ]
            terms.append(joined(groups).scaled(part.weight))
        return _result(terms)

    @property
    def served_dtype(self) -> torch.dtype | None:
        """The target's: a head reads its hidden states."""
        return self.target.dtype

    def _read(self, batch: TrainBatch, draws: Draws) -> tuple[Tensor, Mapping[int, Tensor], list[Term]]:
        """The target's logits, hidden states at the taps, and its own loss if it learns.

        Without its forward where the states came with the batch.
        """
        if self.trunk is not None:
            assert self.text_weight is not None
            output, loss = _learning("target", self.trunk, batch, draws, self.taps, self.layer_skip)
            assert output.logits is not None
            return output.logits, output.hidden, [loss.scaled(self.text_weight)]
        last = self.target.num_layers
        with torch.no_grad():
            if batch.hidden is not None and {*self.taps, last} <= batch.hidden.keys():
                hidden = {tap: states.to(self.target.dtype) for tap, states in batch.hidden.items()}
                return self.target.compute_logits(hidden[last]), hidden, []
            output = self.target.causal(batch.tokens[:, :-1], taps=self.taps, segment=segment_of(batch))
        assert output.logits is not None
        return output.logits, output.hidden, []

    def _of(
        self, part: Trained, batch: TrainBatch, hidden: Mapping[int, Tensor], wanted: Tensor, draws: Draws, at: int
    ) -> Term:
        rows = slice(at, at + len(batch.tokens))
        unrolled = part.head.unroll(
            batch.tokens[:, :-1],
            {tap: states[rows] for tap, states in hidden.items()},
            segment=segment_of(batch),
            generator=draws.generator(at),
        )
        position = unrolled.position
        weight = learned_of(batch).gather(1, position.flatten(1)).view_as(position).float()
        if unrolled.weight is not None:
            weight = weight * unrolled.weight
        if part.depth_weights is not None:
            depths = torch.tensor(part.depth_weights, device=weight.device)
            if len(depths) != weight.shape[-1]:
                raise ValueError(
                    f"{len(depths)} depth weights for the head {part.name!r}, which learns {weight.shape[-1]} depths: "
                    "give one for each"
                )
            weight = weight * (depths / depths.mean())
        return compared(part.name, self.comparison, unrolled.logits, wanted[rows], position, weight, batch)


def _learning(
    name: str, model: DecoderLM, batch: TrainBatch, draws: Draws, taps: Sequence[int], layer_skip: LayerSkip | None
) -> tuple[Output, Term]:
    """What a model that learns its text makes of it, with its loss. Only in training are layers skipped."""
    weights = {model.num_layers: 1.0} if layer_skip is None else layer_skip.weights(draws.step)
    skipped = None
    if layer_skip is not None and model.training:
        own = draws.apart()
        skipped = layer_skip.skipped(draws.step, [own.generator(row) for row in range(len(batch.tokens))])
    output = model.causal(
        batch.tokens[:, :-1],
        taps=sorted({*taps, *weights}),
        segment=segment_of(batch),
        skipped=None if skipped is None else skipped.to(batch.tokens.device),
    )
    assert output.logits is not None
    if layer_skip is None:
        return output, on_text(name, output.logits, batch)
    return output, layer_skip.loss(name, model, output.logits, output.hidden, batch, weights)


def _result(terms: Sequence[Term]) -> Result:
    rows = torch.stack([term.rows for term in terms]).sum(0)
    measures = {name: value for term in terms for name, value in term.measures.items()}
    return Result(rows.sum(), rows.detach(), measures)


def _rows(batch: TrainBatch, at: int, count: int) -> TrainBatch:
    """Some rows; hidden states are left to who has read them."""
    rows = slice(at, at + count)
    segment = None if batch.segment is None else batch.segment[rows]
    return dataclasses.replace(
        batch, tokens=batch.tokens[rows], learned=batch.learned[rows], segment=segment, hidden=None
    )


def _logits(model: DecoderLM, batch: TrainBatch) -> Tensor:
    logits = model.causal(batch.tokens[:, :-1], segment=segment_of(batch)).logits
    assert logits is not None
    return logits
