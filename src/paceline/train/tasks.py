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
from paceline.heads.base import DraftHead
from paceline.models.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.losses import Comparison, next_token_entropy


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
    return _result([_on_text("loss", _logits(model, batch), batch)])


@final
class NextToken(Task):
    """A language model on text."""

    def __init__(self, *, model: DecoderLM) -> None:
        super().__init__()
        self.model = model.requires_grad_(True)

    @property
    def frozen(self) -> None:
        return None

    def forward(self, batch: TrainBatch, draws: Draws) -> Result:
        """Cross-entropy of every learned next token."""
        draws.scatter()
        return read_text(self.model, batch)


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
        weight = _learned(batch).float()[..., None]
        return _result([_compared("draft", self.comparison, own[:, :, None], wanted, position, weight, batch)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A head and its part in the loss."""

    name: str
    head: DraftHead
    weight: float = 1.0
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
    ) -> None:
        """``text_weight``: that of the target's own loss; None freezes it."""
        super().__init__()
        target.requires_grad_(text_weight is not None)
        self.trunk = None if text_weight is None else target
        self._target = (target,)
        self.heads = nn.ModuleDict({part.name: part.head for part in heads})
        self.parts, self.comparison = tuple(heads), comparison
        self.text_weight, self.rows = text_weight, rows
        self.taps = tuple(sorted({tap for part in heads for tap in part.head.taps}))

    @property
    def target(self) -> DecoderLM:
        return self._target[0]

    @property
    def frozen(self) -> DecoderLM | None:
        return self.target if self.trunk is None else None

    def forward(self, batch: TrainBatch, draws: Draws) -> Result:
        """One forward of the target, whose hidden states all heads read."""
        draws.scatter()
        logits, hidden = self._read(batch)
        terms = []
        if self.text_weight is not None:
            terms.append(_on_text("target", logits, batch).scaled(self.text_weight))
        wanted = logits.detach()
        for part in self.parts:
            read = {tap: hidden[tap].detach() if part.detach else hidden[tap] for tap in part.head.taps}
            groups = [
                self._of(part, _rows(batch, at, self.rows), read, wanted, draws, at)
                for at in range(0, len(batch.tokens), self.rows)
            ]
            terms.append(_joined(groups).scaled(part.weight))
        return _result(terms)

    @property
    def served_dtype(self) -> torch.dtype | None:
        """The target's: a head reads its hidden states."""
        return self.target.dtype

    def _read(self, batch: TrainBatch) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Logits of the target and hidden states at the taps; without its forward where they came with the batch."""
        last = self.target.num_layers
        if self.trunk is None and batch.hidden is not None and {*self.taps, last} <= batch.hidden.keys():
            hidden = {tap: states.to(self.target.dtype) for tap, states in batch.hidden.items()}
            with torch.no_grad():
                return self.target.scored(hidden[last]), hidden
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trunk is not None):
            output = self.target.causal(batch.tokens[:, :-1], taps=self.taps, segment=_segment(batch))
        assert output.logits is not None
        return output.logits, output.hidden

    def _of(
        self, part: Trained, batch: TrainBatch, hidden: Mapping[int, Tensor], wanted: Tensor, draws: Draws, at: int
    ) -> "_Term":
        rows = slice(at, at + len(batch.tokens))
        unrolled = part.head.unroll(
            batch.tokens[:, :-1],
            {tap: states[rows] for tap, states in hidden.items()},
            segment=_segment(batch),
            generator=draws.generator(at),
        )
        position = unrolled.position
        weight = _learned(batch).gather(1, position.flatten(1)).view_as(position).float()
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
        return _compared(part.name, self.comparison, unrolled.logits, wanted[rows], position, weight, batch)


@dataclass(frozen=True, slots=True)
class _Term:
    """One loss: by row [B] as a sum over learned tokens, and measures."""

    rows: Tensor
    measures: dict[str, Tensor]

    def scaled(self, weight: float) -> "_Term":
        return _Term(self.rows * weight, self.measures)


def _joined(parts: Sequence[_Term]) -> _Term:
    """Of more rows."""
    names = parts[0].measures
    measures = {name: torch.stack([part.measures[name] for part in parts]).sum(0) for name in names}
    return _Term(torch.cat([part.rows for part in parts]), measures)


def _result(terms: Sequence[_Term]) -> Result:
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
    logits = model.causal(batch.tokens[:, :-1], segment=_segment(batch)).logits
    assert logits is not None
    return logits


def _segment(batch: TrainBatch) -> Tensor | None:
    return None if batch.segment is None else batch.segment[:, :-1]


def _learned(batch: TrainBatch) -> Tensor:
    """Of every input, whether its successor counts [B, T]; the first token of another text follows from nothing."""
    learned = batch.learned[:, 1:]
    return learned if batch.segment is None else learned & (batch.segment[:, 1:] == batch.segment[:, :-1])


def num_learned(batch: TrainBatch) -> Tensor:
    """How many tokens a loss counts, a scalar."""
    return _learned(batch).sum()


def _on_text(name: str, logits: Tensor, batch: TrainBatch) -> _Term:
    entropy = next_token_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten())
    rows = (entropy.view(logits.shape[:2]) * _learned(batch)).sum(-1)
    sums = torch.stack((rows.detach().sum(), num_learned(batch).to(rows.dtype)))
    return _Term(rows, {f"{name}.text": sums[:, None]})


def _compared(
    name: str,
    comparison: Comparison,
    own: Tensor,
    wanted: Tensor,
    position: Tensor,
    weight: Tensor,
    batch: TrainBatch,
) -> _Term:
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
    return _Term((loss * weight).sum((1, 2)) * share, measures)
