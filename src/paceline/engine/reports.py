"""How the host learns what a step did: before the next step is queued, or while the device is already at it."""

from dataclasses import dataclass
from typing import Protocol, final

import torch

from paceline.core.batch import Report
from paceline.core.host import Letter, Outbox
from paceline.core.logprobs import StepLogprobs
from paceline.core.stats import Summary
from paceline.decode import Decoder


class Told(Protocol):
    """What the host knows after a step."""

    report: Report

    def summary(self, row: int) -> Summary:
        """What steps did for ``row``, up to this one, since the admission of who ran in it."""
        ...


class Awaited(Protocol):
    """A step whose operations are queued."""

    def take(self) -> Told:
        """What it did, once the device has done it; asked again, the same."""
        ...


class Reports(Protocol):
    """Where a scheduler gets its reports from."""

    @property
    def num_ahead(self) -> int:
        """Steps that are queued beyond the one whose report is read."""
        ...

    def post(self) -> Awaited:
        """The step that was queued last."""
        ...


@final
class AtOnce:
    """For devices that work while they are called: a step is read before the next one is taken."""

    num_ahead = 0

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def post(self) -> Awaited:
        """Nothing is copied: the step is read where it lies."""
        return _Lying(self._decoder)


@final
class _Lying:
    """The newest step, on the device; its counters are read only for who asks."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def take(self) -> Told:
        self.report = self._decoder.read()
        return self

    def summary(self, row: int) -> Summary:
        return self._decoder.stats.summary([row])


@final
class Overlapped:
    """For devices that run behind the host: while a step is read, the device does the next one.

    Rows whose texts have ended do nothing in it. Report and counters leave in one transfer that nobody waits for, so
    that both are of their step, whatever the device has done since; there are two places for it to arrive at.
    """

    num_ahead = 1

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        width = decoder.batch.report.shape[1] + decoder.stats.width
        self._outbox = Outbox(rows=decoder.batch.rows, width=width, device=decoder.batch.device, places=2)

    def post(self) -> Awaited:
        """Begins the transfer."""
        batch, stats = self._decoder.batch, self._decoder.stats
        letter = self._outbox.send(torch.cat((batch.report, stats.table()), dim=1))
        width = batch.report.shape[1]
        return _Sent(letter=letter, width=width, asked=batch.asked, logprobs=batch.step_logprobs)


@final
@dataclass(slots=True, kw_only=True)
class _Sent:
    """A step under way to the host; its log-probabilities, if any, stay on the device until they are asked for."""

    letter: Letter
    width: int  # of the report
    asked: list[int | None]
    logprobs: StepLogprobs | None
    told: "_Arrived | None" = None

    def take(self) -> Told:
        if self.told is None:
            rows = self.letter.read()
            report = Report([row[: self.width] for row in rows], self.asked, self.logprobs)
            self.told = _Arrived(report=report, counters=[row[self.width :] for row in rows])
        return self.told


@final
@dataclass(slots=True, kw_only=True)
class _Arrived:
    report: Report
    counters: list[list[int]]  # by row

    def summary(self, row: int) -> Summary:
        return Summary.of(self.counters[row])
