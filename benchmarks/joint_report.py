"""What a target gains or loses by a head that is trained with it, and how the head drafts: tables and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.even_decoding import tokens_per_step
from paceline.bench.columns import Column
from paceline.bench.raw import Record
from paceline.bench.statistics import LEVEL, Estimate
from paceline.core.stats import Summary

ALONE = "alone"
JOINTLY, AFTERWARDS, DISTILLED = "jointly", "afterwards", "afterwards, distilled"
WAYS = (JOINTLY, AFTERWARDS, DISTILLED)
SAMPLED_AT = (0.0, 1.0)  # temperatures


@dataclass(frozen=True, slots=True)
class LossLine:
    """What a head did to the target's loss."""

    head: str
    loss: float  # mean of the seeds
    difference: Estimate | None  # from that of the target that was trained alone; seeds in pairs
    seeds: str


@dataclass(frozen=True, slots=True)
class HeadLine:
    """How a head drafts, over all seeds."""

    head: str
    how: str
    greedy: Estimate | None  # tokens per step; None: all outputs loop
    sampled: Estimate | None
    num_looping: int


def _difference(values: Sequence[float]) -> str:
    return ", ".join(f"{value:+.4f}" for value in values)


LOSS_COLUMNS: list[Column[LossLine]] = [
    Column("trained with", "head", left=True),
    Column("held-out loss", "loss", ".4f"),
    Column("from alone", "difference", "+.4f", estimate=True),
    Column("of each seed", "seeds", left=True),
]
HEAD_COLUMNS: list[Column[HeadLine]] = [
    Column("head", "head", left=True),
    Column("trained", "how", left=True),
    Column("tokens per step, greedy", "greedy", ".2f", estimate=True),
    Column("at temperature 1", "sampled", ".2f", estimate=True),
    Column("looping", "num_looping"),
]


def _by_seed(records: Sequence[Record], head: str) -> dict[int, Record]:
    """The records of targets that were trained with ``head``."""
    cells = ((record["cell"], record) for record in records)
    return {cell["seed"]: record for cell, record in cells if cell["head"] == head and cell["how"] == JOINTLY}


def heads_of(records: Sequence[Record]) -> list[str]:
    """The heads that are measured."""
    return [head for head in dict.fromkeys(record["cell"]["head"] for record in records) if head != ALONE]


def differences(records: Sequence[Record], head: str) -> dict[int, list[float]]:
    """Of every validation's loss, by seed: that of the target with ``head``, less that of the one without."""
    alone, own = _by_seed(records, ALONE), _by_seed(records, head)
    return {seed: list(np.subtract(own[seed]["curve"][1], alone[seed]["curve"][1])) for seed in own if seed in alone}


def loss_lines(records: Sequence[Record]) -> list[LossLine]:
    """Of the targets, the one trained alone first."""
    alone = {seed: mean(record["losses"]) for seed, record in _by_seed(records, ALONE).items()}
    lines = [LossLine(ALONE, mean(alone.values()), None, "")] if alone else []
    for head in heads_of(records):
        own = {seed: mean(record["losses"]) for seed, record in _by_seed(records, head).items()}
        changed = [own[seed] - alone[seed] for seed in own if seed in alone]
        if changed:
            lines.append(LossLine(head, mean(own.values()), over_seeds(changed), _difference(changed)))
    return lines


def head_lines(records: Sequence[Record]) -> list[HeadLine]:
    """Of every head, in every way that it was trained."""
    lines = []
    for head, how in product(heads_of(records), WAYS):
        own = [
            record["summaries"] for record in records if record["cell"]["head"] == head and record["cell"]["how"] == how
        ]
        if own:
            greedy, sampled = (_tokens_per_step(own, str(temperature)) for temperature in SAMPLED_AT)
            looping = sum(one[str(temperature)]["num_looping"] for one in own for temperature in SAMPLED_AT)
            lines.append(HeadLine(head, how, greedy, sampled, looping))
    return lines


def _tokens_per_step(measured: Sequence[Mapping[str, Any]], temperature: str) -> Estimate | None:
    found = [Summary(**one) for every in measured for one in every[temperature]["sound"]]
    return tokens_per_step(found) if found else None


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean, and its t interval: seeds are few. Unbounded for one seed."""
    from scipy.stats import t

    middle = mean(values)
    if len(values) < 2:
        return Estimate(value=middle, low=-float("inf"), high=float("inf"))
    far = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Estimate(value=middle, low=middle - far, high=middle + far)


def draw(records: Sequence[Record], *, title: str) -> str:
    """The difference in loss over the steps, a line for each seed, and tokens per step at temperature 1."""
    from paceline.bench import drawing  # needs the optional matplotlib

    heads, lines = heads_of(records), head_lines(records)

    def panels(axes: Sequence[Any]) -> None:
        for at, head in enumerate(heads):
            steps = next(iter(_by_seed(records, head).values()))["curve"][0]
            for number, changed in enumerate(differences(records, head).values()):
                label = {"label": head} if number == 0 else {}
                axes[0].plot(steps, changed, linewidth=1, **label, **drawing.series(at))
        drawing.baseline(axes[0], 0.0)
        drawing.finish(axes[0], x="step", y="held-out loss, from alone (nats)", columns=3)
        for at, how in enumerate(WAYS):
            own = [line for line in lines if line.how == how and line.sampled is not None]
            places = [heads.index(line.head) + 0.2 * (at - 1) for line in own]
            values = [line.sampled for line in own if line.sampled is not None]
            drawing.error_bars(axes[1], places, values, how, **{**drawing.series(at), "linestyle": ""})
        axes[1].set_xticks(range(len(heads)), heads)
        axes[1].set_xlim(-0.5, len(heads) - 0.5)
        drawing.finish(axes[1], y="tokens per step, temperature 1", columns=1)

    caption = (
        "Left: what a head that is trained with the target does to the target's loss, a line for each seed; below 0 "
        "the target is better for it. Right: how that head drafts, beside one trained on the finished target."
    )
    return drawing.draw_panels(panels, size=(9.0, 4.2), title=title, caption=caption, columns=2)
