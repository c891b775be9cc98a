"""Reads the results of steps: synchronously, or one step late while the device already runs the next one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, final

import torch
from torch import Tensor

from paceline.core.host import integers
from paceline.core.logprobs import StepLogprobs
from paceline.core.stats import StageStats, StageSummary, Summary
from paceline.core.step import StepPlan, StepResult, read_results
from paceline.core.step_drafts import StepDrafts
from paceline.decode import Decoder
from paceline.engine.timing import EventTimer, HostTimer, StepTimer


class PendingStep(Protocol):
    """A step that has been queued on the device."""

    def result(self) -> StepResult:
        """Its result; waits for the device. Later calls return the same result."""
        ...

    def summary(self, row: int) -> Summary:
        """Counters of ``row`` from its admission up to this step; call ``result`` first."""
        ...

    def stages(self, row: int) -> tuple[StageSummary, ...]:
        """``summary`` of the drafter's stages."""
        ...


class Reader(Protocol):
    """Starts and reads steps for a runner."""

    num_ahead: int  # steps that may be queued beyond the one whose result is read

    def start(self) -> StepTimer:
        """The timer of a new step."""
        ...

    def post(self, plan: StepPlan, timer: StepTimer, failures: Mapping[int, Exception]) -> PendingStep:
        """The step that was queued last; ``failures`` are the rows whose constraints raised in it."""
        ...


@final
class SyncReader:
    """For the CPU, which executes operations as they are called: each result is read before the next step."""

    num_ahead = 0

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._stages = decoder, decoder.drafter.stages

    def start(self) -> StepTimer:
        """A timer of the host's clock."""
        return HostTimer()

    def post(self, plan: StepPlan, timer: StepTimer, failures: Mapping[int, Exception]) -> PendingStep:
        """Nothing is copied: the result is read from the batch."""
        return _DoneStep(decoder=self._decoder, kept_stages=self._stages, plan=plan, timer=timer, failures=failures)


@final
@dataclass(slots=True, kw_only=True)
class _DoneStep:
    decoder: Decoder
    kept_stages: tuple[StageStats, ...]
    plan: StepPlan
    timer: StepTimer
    failures: Mapping[int, Exception]
    read: StepResult | None = None

    def result(self) -> StepResult:
        if self.read is None:
            batch = self.decoder.batch
            self.read = read_results(
                integers(batch.results),
                rows=batch.rows,
                plan=self.plan,
                num_logprobs=batch.num_logprobs,
                logprobs=batch.step_logprobs,
                drafts=batch.step_drafts,
                failures=self.failures,
                timer=self.timer.seconds,
            )
        return self.read

    def summary(self, row: int) -> Summary:
        return self.decoder.stats.summary([row])

    def stages(self, row: int) -> tuple[StageSummary, ...]:
        return tuple(stage.summary([row]) for stage in self.kept_stages)


@final
class AsyncReader:
    """For asynchronous devices: while the host reads a step, the device runs the next one.

    Finished rows are inactive in that step. Results and counters are copied in one asynchronous transfer queued behind
    the step, so both belong to it whatever the device has done since. Two host buffers take turns.
    """

    num_ahead = 1

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._on_cuda = decoder.batch.device.type == "cuda"
        self._stages = decoder.drafter.stages
        self._tables = (decoder.stats, *(stage.stats for stage in self._stages))
        size = len(decoder.batch.results) + decoder.batch.rows * sum(stats.width for stats in self._tables)
        self._places = [torch.empty(size, dtype=torch.int64, pin_memory=self._on_cuda) for _ in range(2)]

    def start(self) -> StepTimer:
        """A timer of the device's events."""
        return EventTimer() if self._on_cuda else HostTimer()

    def post(self, plan: StepPlan, timer: StepTimer, failures: Mapping[int, Exception]) -> PendingStep:
        """Start the transfer."""
        batch, stats = self._decoder.batch, self._decoder.stats
        place = self._places.pop(0)
        self._places.append(place)
        tables = (one.table().flatten() for one in self._tables)
        place.copy_(torch.cat((batch.results, *tables)), non_blocking=True)
        event = None
        if self._on_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(batch.device))
        return _SentStep(
            place=place,
            event=event,
            rows=batch.rows,
            width=stats.width,
            kept_stages=self._stages,
            plan=plan,
            timer=timer,
            failures=failures,
            num_logprobs=batch.num_logprobs,
            logprobs=batch.step_logprobs,
            drafts=batch.step_drafts,
        )


@final
@dataclass(slots=True, kw_only=True)
class _SentStep:
    """A step whose results are being copied to the host; what is asked beside stays on the device until ``result``."""

    place: Tensor
    event: torch.cuda.Event | None
    rows: int
    width: int  # of the counters
    kept_stages: tuple[StageStats, ...]
    plan: StepPlan
    timer: StepTimer
    failures: Mapping[int, Exception]
    num_logprobs: list[int | None]
    logprobs: StepLogprobs | None
    drafts: StepDrafts | None
    read: StepResult | None = None
    counters: list[int] = field(default_factory=list[int])

    def result(self) -> StepResult:
        if self.read is None:
            if self.event is not None:
                self.event.synchronize()
            arrived = integers(self.place)
            size = len(arrived) - self.rows * (self.width + sum(stage.stats.width for stage in self.kept_stages))
            self.counters = arrived[size:]
            self.read = read_results(
                arrived[:size],
                rows=self.rows,
                plan=self.plan,
                num_logprobs=self.num_logprobs,
                logprobs=self.logprobs,
                drafts=self.drafts,
                failures=self.failures,
                timer=self.timer.seconds,
            )
        return self.read

    def summary(self, row: int) -> Summary:
        return Summary.of(self.counters[row * self.width : (row + 1) * self.width])

    def stages(self, row: int) -> tuple[StageSummary, ...]:
        found: list[StageSummary] = []
        start = self.rows * self.width
        for stage in self.kept_stages:
            width = stage.stats.width
            found.append(stage.of(Summary.of(self.counters[start + row * width : start + (row + 1) * width])))
            start += self.rows * width
        return tuple(found)
