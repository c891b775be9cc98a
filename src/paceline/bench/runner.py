"""Compares configurations by paired, alternating runs after warm-up. Knows nothing of models; it calls and times.

Every repeat runs each configuration once, part by part in turn, in an order that turns round from part to part and from
repeat to repeat, so that a machine that slows down or speeds up favours none. Configurations must emit the same number
of tokens on the same threads.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, count
from operator import add
from statistics import median
from typing import TypeAlias

import torch

from paceline.bench.statistics import paired_ratios
from paceline.bench.timing import heap_set_aside
from paceline.core.stats import Summary
from paceline.text.loops import is_looping


class DecodingFailed(RuntimeError):
    """One configuration could not run; the others can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one run of a configuration emitted; ``summary`` is None where nothing counts steps."""

    tokens: tuple[tuple[int, ...], ...]  # of each prompt
    summary: Summary | None
    texts: tuple[Summary, ...] | None = None  # of each prompt
    phases: tuple[float, float, float, float] | None = (
        None  # seconds: draft, score, decide, rest; of every row in a step
    )
    decode_seconds: float | None = None  # of all steps, without the reading of prompts

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


_Timed: TypeAlias = tuple[tuple[float, ...], Sample]  # seconds of the parts, and what they emitted


def join(samples: Sequence[Sample]) -> Sample:
    """What the parts of one run emitted together; counts and phases where all parts have them."""
    summaries = [sample.summary for sample in samples if sample.summary is not None]
    texts = [sample.texts for sample in samples if sample.texts is not None]
    phases = [sample.phases for sample in samples if sample.phases is not None]
    decoding = [sample.decode_seconds for sample in samples if sample.decode_seconds is not None]
    draft, score, decide, rest = (sum(phase) for phase in zip(*phases, strict=True)) if phases else (0.0,) * 4
    return Sample(
        tokens=tuple(chain.from_iterable(sample.tokens for sample in samples)),
        summary=reduce(add, summaries) if len(summaries) == len(samples) else None,
        texts=tuple(chain.from_iterable(texts)) if len(texts) == len(samples) else None,
        phases=(draft, score, decide, rest) if len(phases) == len(samples) else None,
        decode_seconds=sum(decoding) if len(decoding) == len(samples) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A name and its work, in parts that are timed in turn with those of the others.

    Where others have another number of parts, all of it is one part.
    """

    name: str
    parts: Sequence[Callable[[], Sample]]

    def run(self) -> Sample:
        """All parts, one after the other."""
        return join([part() for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Figures of the repeats, in their order."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def summary(self) -> tuple[float, float, float]:
        """Median, least and most."""
        return self.median, min(self.values), max(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One configuration's figures."""

    name: str
    seconds: Spread
    tokens_per_second: Spread
    speedup: Spread  # the baseline's seconds over its own, repeat by repeat
    part_seconds: tuple[tuple[float, ...], ...]  # of every part, repeat by repeat; their sums are ``seconds``
    samples: tuple[Sample, ...]  # of the repeats
    identical: bool  # every repeat emitted the baseline's tokens
    num_looping: int  # outputs of the last sample that mostly repeat themselves

    @property
    def sample(self) -> Sample:
        """Of the last repeat."""
        return self.samples[-1]

    @property
    def acceptance_rate(self) -> float | None:
        """None for what drafts nothing, or does not count it."""
        summary = self.sample.summary
        return summary.acceptance_rate if summary is not None and sum(summary.drafted) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All configurations of one comparison, in the order given."""

    baseline: str
    num_threads: int
    measured: tuple[Measured, ...]
    beside: tuple[Mapping[str, float], ...] = ()  # what else was measured in each repeat

    def __getitem__(self, name: str) -> Measured:
        return next(measured for measured in self.measured if measured.name == name)


@heap_set_aside()
def compare(
    configurations: Sequence[Configuration],
    *,
    baseline: str,
    repeats: int = 5,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], None] = lambda _: None,
    beside: Callable[[], Mapping[str, float]] | None = None,
    failed: Callable[[str, DecodingFailed], None] | None = None,
    lacks: Callable[[Sequence[Mapping[str, float]]], bool] = lambda _: False,
) -> Comparison:
    """Time ``configurations`` against the one called ``baseline``.

    ``beside`` is called once in every repeat, before the configurations and untimed. With ``failed``, one that cannot
    run, or emits another number of tokens than the baseline, is reported there by name and leaves; the others go on.
    ``lacks`` is given the seconds of all repeats so far, by name, and as long as it is true one more follows.

    Raises ValueError for names that repeat or lack the baseline, for unequal token counts, and when a configuration
    changes the number of threads; DecodingFailed where one could not run.
    """
    names = [configuration.name for configuration in configurations]
    if baseline not in names or len(set(names)) < len(names):
        raise ValueError(f"baseline {baseline!r} must be one of different names; given: {', '.join(names)}")
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: give at least 1")
    if len({len(configuration.parts) for configuration in configurations}) > 1:
        configurations = [Configuration(name=whole.name, parts=[whole.run]) for whole in configurations]
    threads = torch.get_num_threads()
    turns: list[dict[str, _Timed]] = []
    found: list[Mapping[str, float]] = []
    for repeat in count(-warm_up):
        if repeat >= repeats and not lacks([{name: sum(parts) for name, (parts, _) in turn.items()} for turn in turns]):
            break
        progress("warm-up" if repeat < 0 else f"repeat {repeat + 1} of {max(repeats, repeat + 1)}")
        if beside is not None and repeat >= 0:
            found.append(beside())
        errors: dict[str, DecodingFailed] = {}
        turn = _take(configurations, repeat, threads=threads, clock=clock, errors=errors)
        if failed is None or baseline in errors:
            for error in errors.values():
                raise error
            _check_counts({name: [sample] for name, (_, sample) in turn.items()})
        else:
            errors |= _uneven(turn, baseline)
            for name, error in errors.items():
                failed(name, error)
        configurations = [whole for whole in configurations if whole.name not in errors]
        if repeat >= 0:
            turns.append(turn)
    base = [turn[baseline] for turn in turns]
    measured = [_measure(whole.name, [turn[whole.name] for turn in turns], base) for whole in configurations]
    _check_counts({side.name: side.samples for side in measured})
    return Comparison(baseline=baseline, num_threads=threads, measured=tuple(measured), beside=tuple(found))


def _take(
    configurations: Sequence[Configuration],
    repeat: int,
    *,
    threads: int,
    clock: Callable[[], float],
    errors: dict[str, DecodingFailed],
) -> dict[str, _Timed]:
    """One repeat: seconds of the parts and what was emitted, by name; those that could not run are in ``errors``."""
    timed: dict[str, list[tuple[float, Sample]]] = {configuration.name: [] for configuration in configurations}
    for at in range(len(configurations[0].parts)):
        for configuration in configurations if (repeat + at) % 2 == 0 else reversed(configurations):
            if configuration.name in errors:
                continue
            start = clock()
            try:
                sample = configuration.parts[at]()
            except DecodingFailed as error:
                errors[configuration.name] = error
                continue
            timed[configuration.name].append((clock() - start, sample))
            if torch.get_num_threads() != threads:
                raise ValueError(f"{configuration.name} changed the threads from {threads}; all must use the same")
    return {
        name: (tuple(seconds for seconds, _ in parts), join([sample for _, sample in parts]))
        for name, parts in timed.items()
        if name not in errors
    }


def _uneven(turn: Mapping[str, _Timed], baseline: str) -> dict[str, DecodingFailed]:
    """Those that emitted another number of tokens than the baseline."""
    wanted = turn[baseline][1].num_tokens
    return {
        name: DecodingFailed(
            f"{name}: {sample.num_tokens} tokens where {wanted} were wanted, so that times cannot be compared"
        )
        for name, (_, sample) in turn.items()
        if sample.num_tokens != wanted
    }


def _check_counts(samples: Mapping[str, Sequence[Sample]]) -> None:
    counts = {name: sorted({sample.num_tokens for sample in taken}) for name, taken in samples.items()}
    if len({number for numbers in counts.values() for number in numbers}) > 1:
        listed = ", ".join(f"{name} {'/'.join(map(str, numbers))}" for name, numbers in counts.items())
        raise ValueError(f"token counts differ, so times cannot be compared: {listed}; decode to a fixed length")


def _measure(name: str, turns: Sequence[_Timed], base: Sequence[_Timed]) -> Measured:
    seconds, base_seconds = ([sum(parts) for parts, _ in taken] for taken in (turns, base))
    samples = tuple(sample for _, sample in turns)
    return Measured(
        name=name,
        seconds=Spread(values=tuple(seconds)),
        tokens_per_second=Spread(
            values=tuple(sample.num_tokens / own for sample, own in zip(samples, seconds, strict=True))
        ),
        speedup=Spread(values=tuple(paired_ratios(base_seconds, seconds))),
        part_seconds=tuple(parts for parts, _ in turns),
        samples=samples,
        identical=all(sample.tokens == other.tokens for sample, (_, other) in zip(samples, base, strict=True)),
        num_looping=sum(map(is_looping, samples[-1].tokens)),
    )
