"""What steps would take on a machine of another bandwidth, arithmetic or number of threads, by the roofline.

Reading and computing of the products is scaled by both, and what else the CPU kernel does in a forward, attention and
norms, by the arithmetic. What else a step takes stays as it was measured: choosing tokens, and the host's work; and in
forwards of torch's own operations, what is no product.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import final

import torch

from paceline.api.roofline import measure_model_rates
from paceline.core.step import PhaseSeconds
from paceline.engine.costs import StepWork
from paceline.hardware.rates import Progress, Rates
from paceline.hardware.roofline import Work
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work

GIGA = 1e9
KEYS = ("bandwidth", "flops", "threads")
TURNS = 3  # of the measurements that are compared
SHARPNESS = 3  # of the bend between memory-bound and compute-bound products, assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """An imagined machine; None is as it is."""

    bandwidth: float | None = None  # bytes per second at which weights are read
    flops: float | None = None  # operations per second of products of many rows
    threads: int | None = None

    def __str__(self) -> str:
        parts = (
            None if self.bandwidth is None else f"bandwidth={self.bandwidth / GIGA:g}",
            None if self.flops is None else f"flops={self.flops / GIGA:g}",
            None if self.threads is None else f"threads={self.threads}",
        )
        return ",".join(part for part in parts if part is not None)


def read_what_if(text: str) -> WhatIf:
    """The machine of "bandwidth=20,flops=300,threads=2", in GB/s and GFLOP/s.

    Raises ValueError for an unknown key, one that is given twice, and for what is no positive number.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in KEYS:
            raise ValueError(f"--what-if {text}: unknown key {key!r}; known: {', '.join(KEYS)}, as in bandwidth=20")
        if key in found:
            raise ValueError(f"--what-if {text}: {key} is given twice; give it once")
        try:
            number = int(value) if key == "threads" else float(value)
        except ValueError:
            number = 0
        if not 0 < number < inf:
            unit = {"bandwidth": "GB/s", "flops": "GFLOP/s", "threads": "threads"}[key]
            kind = "a whole number" if key == "threads" else "a number"
            raise ValueError(f"--what-if {text}: {key}={value}: give {kind} of {unit} above 0")
        found[key] = number
    return WhatIf(
        bandwidth=GIGA * found["bandwidth"] if "bandwidth" in found else None,
        flops=GIGA * found["flops"] if "flops" in found else None,
        threads=int(found["threads"]) if "threads" in found else None,
    )


def check_what_if(asked: WhatIf, lm: object, device: torch.device) -> None:
    """Raise ValueError where nothing is known of what a forward of ``lm`` reads, and for threads of a GPU."""
    if not isinstance(lm, DecoderLM):
        raise ValueError(
            f"--what-if {asked}: what a forward reads and computes is known of native models; load the model with "
            "--backend native, or leave it out"
        )
    if asked.threads is not None and device.type != "cpu":
        raise ValueError(f"--what-if {asked}: the models run on {device}; give --device cpu, or leave threads out")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The products of one model, as the machine runs them now and as the imagined one would."""

    work: Work
    now: Rates
    there: Rates
    kernel: bool  # whether the rest of a forward is the kernel's work, not the host's

    def scaled(self, seconds: float, rows: float) -> float:
        """Of ``seconds`` of a forward of ``rows`` rows, those that it would take there."""
        return seconds * self.factor(rows, self.share(seconds, rows))

    def share(self, seconds: float, rows: float) -> float:
        """The part of a forward's ``seconds`` that its products take."""
        return min(1.0, self._seconds(self.now, rows) / seconds) if seconds else 0.0

    def factor(self, rows: float, share: float) -> float:
        """How many times as long takes there what spends ``share`` of its time on products of ``rows`` rows."""
        peak = self.now.products[self.work.products].peak / self.there.products[self.work.products].peak
        products = self._seconds(self.there, rows) / self._seconds(self.now, rows)
        return share * products + (1 - share) * (peak if self.kernel else 1.0)

    def _seconds(self, rates: Rates, rows: float) -> float:
        products = rates.products[self.work.products]
        low = int(rows)
        share = rows - low
        each = (1 - share) * products.seconds_per_byte(low) + share * products.seconds_per_byte(low + 1)
        return self.work.weight_bytes * each


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Imagined:
    """Changes the measured seconds of steps to those on the imagined machine.

    ``draft`` is None for a drafter that runs no model of its own; ``drafts_with_target`` says whether it runs the
    target's layers then, whose products change alike.
    """

    target: Products
    draft: Products | None
    drafts_with_target: bool
    assumptions: Sequence[str]

    def __call__(self, work: StepWork, seconds: PhaseSeconds) -> PhaseSeconds:
        """The seconds of a step of ``work`` there."""
        drafting = seconds.draft
        if work.depth:
            rows = work.drafted / work.depth
            each = drafting / work.depth  # a forward for every token of the draft
            if self.draft is not None:
                drafting = work.depth * self.draft.scaled(each, rows)
            elif self.drafts_with_target:
                drafting *= self.target.factor(rows, self.target.share(seconds.score, work.nodes))
        return replace(seconds, draft=drafting, score=self.target.scaled(seconds.score, work.nodes))


def imagine(
    asked: WhatIf,
    *,
    target: DecoderLM,
    draft: DecoderLM | None,
    drafts_with_target: bool,
    kernel: bool,
    progress: Progress,
    measured: dict[DecoderLM, tuple[Rates, Rates]] | None = None,
) -> Imagined:
    """The machine that is ``asked`` for, beside this one, whose rates are measured for what the models read.

    ``kernel`` says whether both models run in the CPU kernel. ``measured`` (None: nothing) has the rates that earlier
    calls measured for the same machine, and takes those of this one.
    """
    assumptions: list[str] = []
    pairs: list[Products] = []
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    wanted = threads if asked.threads is None else asked.threads
    usable = min(wanted, cores)
    known = {} if measured is None else measured
    for lm in (target,) if draft is None else (target, draft):
        if lm not in known:
            known[lm] = _measure(lm, (threads, usable), progress)
        now, there = known[lm]
        there = _scaled(there, memory=1.0, arithmetic=usable / wanted)
        pairs.append(Products(work=forward_work(lm), now=now, there=there, kernel=kernel))
    if wanted > usable:
        assumptions.append(
            f"{wanted} threads are more than the {cores} cores here: arithmetic grows with the threads, and the "
            f"bandwidth stays that of {cores}"
        )
    read, peak = pairs[0].there.read, pairs[0].there.products[pairs[0].work.products].peak
    slower = 1.0 if asked.bandwidth is None else read / asked.bandwidth
    longer = 1.0 if asked.flops is None else peak / asked.flops
    pairs = [replace(pair, there=_scaled(pair.there, memory=slower, arithmetic=longer)) for pair in pairs]
    assumptions.append(
        f"products with the target's weights: {_describe(pairs[0].now, pairs[0].work)} here, "
        f"{_describe(pairs[0].there, pairs[0].work)} there"
    )
    assumptions.append(
        "attention and norms take as much longer as the arithmetic, and all else in a step takes as long as here"
        if kernel
        else "all else in a step takes as long as here"
    )
    return Imagined(
        target=pairs[0],
        draft=pairs[1] if draft is not None else None,
        drafts_with_target=drafts_with_target,
        assumptions=list(dict.fromkeys(assumptions)),
    )


def _measure(lm: DecoderLM, threads: tuple[int, int], progress: Progress) -> tuple[Rates, Rates]:
    """Rates with each number of ``threads``, the best of TURNS in turn: other programs only make them lower."""
    found: dict[int, Rates] = {}
    for _ in range(TURNS):
        for count in dict.fromkeys(threads):
            with _threads(count):
                rates = measure_model_rates(lm, progress=progress)
            found[count] = rates if count not in found else _best(found[count], rates)
    return found[threads[0]], found[threads[1]]


def _best(one: Rates, other: Rates) -> Rates:
    """The higher of every rate."""
    products = {
        name: replace(
            found,
            bytes_per_second=tuple(map(max, found.bytes_per_second, other.products[name].bytes_per_second)),
            peak=max(found.peak, other.products[name].peak),
        )
        for name, found in one.products.items()
    }
    return replace(one, read=max(one.read, other.read), copy=max(one.copy, other.copy), products=products)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _scaled(rates: Rates, *, memory: float, arithmetic: float) -> Rates:
    """``rates`` where reading takes ``memory`` times as long, and computing ``arithmetic`` times."""
    products = {
        name: replace(
            one,
            bytes_per_second=tuple(
                speed
                * _bend(1 / rates.read, 2 * rows / one.itemsize / one.peak)
                / _bend(memory / rates.read, arithmetic * 2 * rows / one.itemsize / one.peak)
                for rows, speed in zip(one.rows, one.bytes_per_second, strict=True)
            ),
            peak=one.peak / arithmetic,
        )
        for name, one in rates.products.items()
    }
    return replace(rates, read=rates.read / memory, copy=rates.copy / memory, products=products)


def _bend(memory: float, arithmetic: float) -> float:
    """Seconds where both take so long and overlap, but not wholly where they are near each other."""
    return (memory**SHARPNESS + arithmetic**SHARPNESS) ** (1 / SHARPNESS)


def _describe(rates: Rates, work: Work) -> str:
    return f"{rates.read / GIGA:.3g} GB/s and {rates.products[work.products].peak / GIGA:.3g} GFLOP/s"
