"""Decodes the same prompts with several engines in turns of some tokens, and times their steps.

A machine that other programs slow down for some seconds slows all engines down alike, where whole calls in turn would
differ by more than what is to be seen. Turns are not single steps: after another engine's step the caches are cold,
which costs those more that take more steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from paceline.api import Engine, Result, SamplingParams, Stream
from paceline.core.stats import Summary

TURN = 8  # tokens of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What one engine took and wrote."""

    seconds: float  # of its steps, admission included; engines are made before
    tokens: tuple[tuple[int, ...], ...]
    summary: Summary
    drafting: float  # share of the steps' time that planning and drafting take


def decode_evenly(
    make: Mapping[str, Callable[[], Engine]],
    prompts: Sequence[Sequence[int]],
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
    written = dict.fromkeys(make, 0)  # tokens
    running = list(make)
    size = TURN * len(prompts)
    name, turn = "", 0
    while running:
        if name not in running or written[name] >= turn * size:
            turn = 1 + min(written[name] for name in running) // size
            name = chosen.choice([name for name in running if written[name] < turn * size])
        start = clock()
        piece = next(streams[name], None)  # the first piece of a step takes the step's time
        seconds[name] += clock() - start
        written[name] += 1
        if piece is None:
            running.remove(name)
    results = {name: stream.results() for name, stream in streams.items()}
    return {
        name: Decoded(
            seconds=seconds[name],
            tokens=tuple(result.token_ids for result in found),
            summary=sum((result.stats.summary for result in found[1:]), found[0].stats.summary),
            drafting=_share_of_drafting(found),
        )
        for name, found in results.items()
    }


def flat(parts: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of all parts of all repeats."""
    return [seconds for repeat in parts for seconds in repeat]


def _share_of_drafting(results: Sequence[Result]) -> float:
    times = [result.stats.times for result in results]
    whole = sum(one.draft + one.score + one.decide + one.rest for one in times)
    return sum(one.draft for one in times) / whole if whole else 0.0
