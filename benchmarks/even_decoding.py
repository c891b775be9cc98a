"""Decodes the same prompts with several engines in turns of some tokens, and times their steps.

A machine that other programs slow down for some seconds slows all engines down alike, where whole calls in turn would
differ by more than what is to be seen. Turns are not single steps: after another engine's step the caches are cold,
which costs those more that take more steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from random import Random
from time import perf_counter

from benchmarks.study import Timing
from paceline.api import Engine, Result, SamplingParams, Stream
from paceline.api.prompts import Prompt
from paceline.bench.statistics import Estimate, is_void, pooled_ratio
from paceline.bench.timing import heap_set_aside
from paceline.core.stats import Summary

TURN = 8  # tokens of a row
PLAIN, CONTROL = "plain", "control"  # sides of the same work: where they differ by over 3 %, the machine was not quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What one engine took and wrote."""

    seconds: float  # of its steps, admission included; engines are made before
    tokens: tuple[tuple[int, ...], ...]
    summaries: tuple[Summary, ...]  # of every row
    drafting: float  # share of the steps' time that planning and drafting take
    reading: float = 0.0  # share of the time that reading prompts takes, where rows are decoded one at a time
    by_token: tuple[float, ...] = ()  # seconds until so many tokens of all rows were there

    @property
    def summary(self) -> Summary:
        """Of all rows."""
        return total(self.summaries)


def decode_evenly(
    make: Mapping[str, Callable[[], Engine]],
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    *,
    clock: Callable[[], float],
) -> dict[str, Decoded]:
    """Continue ``prompts`` with every engine, ``TURN`` tokens of every row at a time, in a random order."""
    chosen = Random(0)
    seconds: dict[str, float] = {}
    streams: dict[str, Stream] = {}
    for name, maker in make.items():
        engine = maker()
        start = clock()
        streams[name] = engine.submit(list(prompts), list(params))
        seconds[name] = clock() - start
    by_clock = dict.fromkeys(make, 0.0)  # the wall clock, which requests are timed by
    by_token: dict[str, list[float]] = {name: [] for name in make}
    written = dict.fromkeys(make, 0)  # tokens
    running = list(make)
    size = TURN * len(prompts)
    name, turn = "", 0
    while running:
        if name not in running or written[name] >= turn * size:
            turn = 1 + min(written[name] for name in running) // size
            name = chosen.choice([name for name in running if written[name] < turn * size])
        start, began = clock(), perf_counter()
        piece = next(streams[name], None)  # the first piece of a step takes the step's time
        seconds[name] += clock() - start
        by_clock[name] += perf_counter() - began
        written[name] += 1
        if piece is None:
            running.remove(name)
        else:
            by_token[name].append(seconds[name])
    results = {name: stream.results() for name, stream in streams.items()}
    return {
        name: Decoded(
            seconds=seconds[name],
            tokens=tuple(result.token_ids for result in found),
            summaries=tuple(result.stats.summary for result in found),
            drafting=_share_of_drafting(found),
            reading=sum(result.stats.times.prefill for result in found) / by_clock[name],
            by_token=tuple(by_token[name]),
        )
        for name, found in results.items()
    }


@dataclass(frozen=True, slots=True)
class Sides:
    """What every side took and wrote of every part, repeat by repeat, without the warm-up."""

    decoded: Mapping[str, Sequence[Sequence[Decoded]]]

    @property
    def seconds(self) -> dict[str, list[list[float]]]:
        """Of every part of every timed repeat."""
        return {name: [[part.seconds for part in parts] for parts in repeats] for name, repeats in self.decoded.items()}

    @property
    def void(self) -> bool:
        """Whether the machine was not quiet."""
        seconds = self.seconds
        return is_void([pooled_ratio(flat(seconds[PLAIN]), flat(seconds[CONTROL])).value])


@heap_set_aside()
def decode_sides(
    make: Mapping[str, Callable[[], Engine]],
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    what: str,
    batch_size: int,
    timing: Timing,
    warm_up: bool = True,
) -> Sides:
    """Decode ``prompts`` evenly with every side, ``PLAIN`` and ``CONTROL`` among them, a part of a batch at a time.

    A ``warm_up`` decodes all of them once more, before, and is not counted.

    Raises RuntimeError, which names ``what`` is decoded, if one writes other tokens than ``PLAIN``.
    """
    decoded: dict[str, list[list[Decoded]]] = {name: [] for name in make}
    for repeat in range(-1 if warm_up else 0, timing.repeats):
        for parts in decoded.values():
            parts.append([])
        for at in range(0, len(prompts), batch_size):
            part = slice(at, at + batch_size)
            order = list(make)[:: 1 if (repeat + at) % 2 == 0 else -1]
            done = decode_evenly({name: make[name] for name in order}, prompts[part], params[part], clock=timing.clock)
            different = [name for name, one in done.items() if one.tokens != done[PLAIN].tokens]
            if different:
                raise RuntimeError(f"{what}: {', '.join(different)} wrote other tokens; please report it")
            for name, one in done.items():
                decoded[name][-1].append(one)
    return Sides({name: repeats[-timing.repeats :] for name, repeats in decoded.items()})


def tokens_per_step(summaries: Sequence[Summary]) -> Estimate:
    """Of all steps; the interval is over ``summaries``, one for each output."""
    return pooled_ratio([one.emitted for one in summaries], [one.steps for one in summaries])


def total(summaries: Iterable[Summary]) -> Summary:
    """Of all."""
    return reduce(add, summaries)


def flat(parts: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of all parts of all repeats."""
    return [seconds for repeat in parts for seconds in repeat]


def _share_of_drafting(results: Sequence[Result]) -> float:
    times = [result.stats.times for result in results]
    whole = sum(one.draft + one.score + one.decide + one.rest for one in times)
    return sum(one.draft for one in times) / whole if whole else 0.0
