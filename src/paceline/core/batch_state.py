"""The tensors of a batch: what its operations (core/ops) read and change in place.

R rows, T sequence capacity, E stop tokens.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from paceline.core.columns import Columns
from paceline.core.early_stop import EarlyStop
from paceline.core.host import integers as read
from paceline.core.logprobs import StepLogprobs
from paceline.core.noise import Key, Noise, Stream
from paceline.core.processing import ProcessingState
from paceline.core.request import MAX_STOP_TOKENS, Request
from paceline.core.sampling import SamplingState
from paceline.core.step import HEADER
from paceline.core.step_drafts import StepDrafts


class BatchState:
    """R rows of tokens, their limits, options and noise."""

    def __init__(
        self,
        *,
        rows: int,
        max_length: int,
        max_depth: int,
        vocab_size: int,
        noise: Noise,
        device: torch.device,
        stage: int = 0,
    ) -> None:
        def integers(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int64, device=device)

        self.rows, self.max_length, self.max_depth = rows, max_length, max_depth
        self.noise, self.stage = noise, stage
        self.requests: list[Request | None] = [None] * rows
        self.sequences: Mapping[int, Sequence[int]] | None = None  # of the rows, where somebody keeps them on the host
        self.sampling = SamplingState(rows, device)
        self.processing = ProcessingState(rows=rows, vocab_size=vocab_size, device=device)
        self.early_stop = EarlyStop(rows, device)
        self.tokens = integers(rows, max_length + 1)  # the last column takes the writes that must change nothing
        self.length = integers(rows, fill=1)
        self.limit = integers(rows, fill=1)
        self.steps = integers(rows)  # steps since admission: own noise is keyed by it
        self.num_draft = integers(rows)  # that the row's request allows
        self.planned = integers(rows, fill=max_depth)  # that the step's plan allows
        self.stop = integers(rows, MAX_STOP_TOKENS, fill=-1)
        self.finish = integers(rows)
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)
        width = HEADER + 2 * (max_depth + 1)
        self.results = integers(rows * (width + 1))  # of the last step: what the host reads, in one piece
        self.report = self.results[: rows * width].view(rows, width)
        self.failed = self.results[rows * width :]  # [R] values of Failure
        self.step_logprobs: StepLogprobs | None = None  # of the last step, where a row wants them
        self.rows_with_scores: tuple[int, ...] = ()  # that keep the whole logits and scores of their tokens
        self.max_logprobs: int | None = None  # the most likely tokens' that any row asks for
        self.step_drafts: StepDrafts | None = None  # of the last step, where a row wants to see its draft
        self.shows_drafts: tuple[int, ...] = ()  # rows that do
        self.columns = Columns(
            self.tokens,
            self.length,
            self.limit,
            self.steps,
            self.num_draft,
            self.planned,
            self.early_stop.notes,
            self.stop,
            self.finish,
            self.report,
            self.active,
        )

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def root(self) -> Tensor:
        """The newest known token of each row [R]."""
        return self.tokens.gather(1, self.length[:, None] - 1)[:, 0]

    @property
    def room(self) -> Tensor:
        """Draft tokens that each row may have [R] by its request and by what its limit leaves."""
        return torch.minimum(self.num_draft, self.limit - self.length - 1).clamp(min=0)

    @property
    def draft_room(self) -> Tensor:
        """``room`` as far as the step's plan allows it, copies beside other drafts apart."""
        return torch.minimum(self.room, self.planned)

    @property
    def drafts(self) -> Tensor:
        """Which rows may have a draft [R] bool."""
        return self.active & (self.draft_room > 0)

    def host_sequences(self, rows: Iterable[int]) -> dict[int, Sequence[int]]:
        """Prompts and outputs of ``rows``, by row, on the host; without a copy there, the device is read."""
        if self.sequences is not None:
            return {row: self.sequences[row] for row in rows if row in self.sequences}
        lengths = read(self.length)
        return {row: read(self.tokens[row, : lengths[row]]) for row in rows}

    @property
    def num_logprobs(self) -> list[int | None]:
        """How many of the likeliest tokens' log-probabilities each row asks for; None for none at all."""
        return [None if request is None else request.logprobs for request in self.requests]

    def key(self, position: Tensor, stream: Stream, node: Tensor | int = 0) -> Key:
        """Key of a choice at ``position`` [R, ...] of each row; all streams but the target's take step and stage."""
        shape = (self.rows,) + (1,) * (position.dim() - 1)
        seed = self.sampling.seed.view(shape)
        if stream is Stream.TARGET:
            return Key(seed=seed, position=position, stream=stream)
        return Key(
            seed=seed, position=position, stream=stream, step=self.steps.view(shape), node=node, stage=self.stage
        )
