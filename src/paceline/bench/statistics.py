"""What repeated timings say: intervals, controls, break-even, efficiency, differences. Numbers in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import log2
from statistics import median

import numpy as np

LEVEL = 0.95
RESAMPLES = 4000
CONTROL_LOW, CONTROL_HIGH = 0.97, 1.03  # an engine against itself; beyond, the machine was not quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with a bootstrap interval."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """The median and its interval, all three numbers in one format."""
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


class Relation(StrEnum):
    """Where a sweep's break-even is."""

    AT = "at"
    BELOW = "below"  # drafting pays at no batch size that was tried
    BEYOND = "beyond"  # it pays at all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The batch size at which drafting stops paying, or the end of the sweep that it is beyond."""

    relation: Relation
    batch: float

    def __str__(self) -> str:
        sign = {Relation.AT: "", Relation.BELOW: "< ", Relation.BEYOND: "> "}[self.relation]
        return f"{sign}{self.batch:.3g}"


def paired_ratios(base: Sequence[float], own: Sequence[float]) -> list[float]:
    """Seconds of ``base`` over those of ``own``, repeat by repeat. Raises ValueError for unequal or no repeats."""
    if len(base) != len(own) or not base:
        raise ValueError(f"{len(base)} and {len(own)} repeats: give as many of each, at least one")
    return [reference / seconds for reference, seconds in zip(base, own, strict=True)]


def estimate(values: Sequence[float], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The median of ``values`` and the percentile interval of the medians of resamples. Raises ValueError for none."""
    if not values:
        raise ValueError("no values: give at least one")
    given = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(given), size=(resamples, len(given)))
    low, high = np.quantile(np.median(given[drawn], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value=float(np.median(given)), low=float(low), high=float(high))


def is_void(ratios: Sequence[float], *, low: float = CONTROL_LOW, high: float = CONTROL_HIGH) -> bool:
    """Whether an engine timed against itself differs from itself by its median ratio: such a run says nothing."""
    return not low <= median(ratios) <= high


def pooled_ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """The sum of ``numerators`` over that of ``denominators``, and the percentile interval over resampled pairs.

    Raises ValueError for unequal or no pairs.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} values: give as many of each, at least one")
    pairs = np.asarray([numerators, denominators], dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, pairs.shape[1], size=(resamples, pairs.shape[1]))
    above, below = pairs[:, drawn].sum(-1)
    low, high = np.quantile(above / below, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value=float(pairs[0].sum() / pairs[1].sum()), low=float(low), high=float(high))


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Position of the first token that differs, 0 for the first; None for equal outputs."""
    if tuple(tokens) == tuple(reference):
        return None
    pairs = enumerate(zip(tokens, reference, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(tokens), len(reference)))


def ideal_speedup(*, tokens_per_step: float, draft_seconds: float, target_seconds: float) -> float:
    """What drafting would bring if scoring a draft cost no more than one token does, and all else cost nothing.

    ``draft_seconds`` is what drafting takes per drafted step (k times the cost of one draft token), ``target_seconds``
    what a plain step's forward takes: tokens per step / (1 + draft_seconds / target_seconds). Raises ValueError for
    times that cannot be.
    """
    if draft_seconds < 0 or target_seconds <= 0:
        raise ValueError(f"draft {draft_seconds} s and target {target_seconds} s a step: give measured times")
    return tokens_per_step / (1 + draft_seconds / target_seconds)


def efficiency(speedup: float, *, tokens_per_step: float, draft_seconds: float, target_seconds: float) -> float:
    """The measured ``speedup`` over the ideal one."""
    return speedup / ideal_speedup(
        tokens_per_step=tokens_per_step, draft_seconds=draft_seconds, target_seconds=target_seconds
    )


def break_even(speedups: Sequence[tuple[int, float]]) -> BreakEven:
    """Where speed-up over batch size first falls to 1, between two sizes by a line over the logarithm of the size.

    ``speedups`` are pairs (batch size, speed-up) in any order. Raises ValueError for none, and for repeated sizes.
    """
    points = sorted(speedups)
    if not points or len({batch for batch, _ in points}) < len(points):
        raise ValueError(f"speed-ups {points}: give one for each of some different batch sizes")
    if points[0][1] <= 1:
        return BreakEven(relation=Relation.BELOW, batch=points[0][0])
    for (batch, speedup), (larger, slower) in pairwise(points):
        if slower <= 1:
            share = (speedup - 1) / (speedup - slower)
            return BreakEven(relation=Relation.AT, batch=batch * 2 ** (share * log2(larger / batch)))
    return BreakEven(relation=Relation.BEYOND, batch=points[-1][0])
