"""The study ``scaling``: loads the target, has steps, prompts and mixes measured, and shows them beside the floor."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

import torch

from benchmarks.inflate.command import write
from benchmarks.inflate.model import inflate_to
from benchmarks.rates import floor_notes, rates_of
from benchmarks.scaling import prompts, ragged, steps
from benchmarks.scaling.prompts import CONTROL, KERNEL, PEER, TORCH
from benchmarks.scaling.steps import FORWARD, STEP, Point, axes_of
from benchmarks.study import Progress, Study, Timing, conditions_of, counts, last_of, native, option
from paceline.api import embedded_pair, load
from paceline.api.loading import runnable
from paceline.bench.columns import Column, Section, interval, number, spread
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Bound, Work, bound
from paceline.models.loading import load as load_decoder

NUM_PARAMETERS = 200_000_000  # of the target by default
RATE_REPEATS = 15  # the best of them counts, and the machine may be busy
MIB, MS, GIGA = 1 << 20, 1000.0, 1e9
MILLISECONDS, RATIO = spread(scale=MS), interval(".2f", "{} ({}-{})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFigures:
    """One step; seconds and bytes."""

    point: Point
    forward: Estimate
    step: Estimate
    rest: float  # of the step, everything but the forward: the median over the turns
    floor: Bound  # of the forward
    sizes: Record

    @property
    def share(self) -> float:
        """Of the floor in the forward's time: 1 is the best there can be."""
        return self.floor.seconds / self.forward.value


def points_of(axis: Record, work: Work, rates: Rates) -> list[PointFigures]:
    """Of one axis, point by point."""
    return [
        PointFigures(
            point=(at := Point(**point)),
            forward=estimate(found[FORWARD]),
            step=estimate(found[STEP]),
            rest=1 - median(paired_ratios(found[FORWARD], found[STEP])),
            floor=bound(work, rates, rows=at.rows, nodes=at.nodes, slots=at.context),
            sizes=found,
        )
        for point, found in zip(axis["points"], axis["found"], strict=True)
    ]


def _bytes(name: str) -> Any:
    return lambda line: line.sizes[name] / MIB


ONE = number(".1f")
STEPS: list[Column[PointFigures]] = [
    Column(heading="rows", get=lambda line: line.point.rows),
    Column(
        heading="nodes",
        get=lambda line: f"{line.point.nodes} {line.point.shape}" if line.point.nodes > 1 else "1",
        left=True,
    ),
    Column(heading="context", get=lambda line: line.point.context),
    Column(heading="floor ms", get=lambda line: MS * line.floor.seconds, form=ONE),
    Column(heading="by", get=lambda line: line.floor.binding),
    Column(heading="forward ms", get=lambda line: line.forward, form=MILLISECONDS),
    Column(heading="of floor", get=lambda line: line.share, form=number(".0%")),
    Column(heading="step ms", get=lambda line: line.step, form=MILLISECONDS),
    Column(heading="rest", get=lambda line: line.rest, form=number(".1%")),
    Column(heading="cache MiB", get=_bytes("cache_bytes"), form=ONE),
    Column(heading="used", get=_bytes("used_bytes"), form=ONE),
    Column(heading="resident", get=_bytes("resident_bytes"), form=ONE),
]


def _share(above: str, below: str) -> Any:
    return lambda record: record[above] / record[below]


TWO, WHOLE = number(".2f"), number(",.0f")
RAGGED: list[Column[Record]] = [
    Column(heading="mix", get=lambda record: record["mix"]["name"], left=True),
    Column(heading="rows", get=lambda record: record["mix"]["rows"]),
    Column(heading="reserved", get=lambda record: record["reserved_slots"], form=WHOLE),
    Column(heading="used", get=lambda record: record["used_slots"], form=WHOLE),
    Column(heading="reserved/used", get=_share("reserved_slots", "used_slots"), form=TWO),
    Column(heading="written", get=lambda record: record["touched_slots"], form=WHOLE),
    Column(heading="written/used", get=_share("touched_slots", "used_slots"), form=TWO),
    Column(heading="written/most used", get=_share("touched_slots", "most_used_slots"), form=TWO),
    Column(heading="reserved MiB", get=lambda record: record["cache_bytes"] / MIB, form=number(".0f")),
    Column(heading="resident MiB", get=lambda record: record["resident_bytes"] / MIB, form=number(".0f")),
]


def prefill_columns(work: Work, rates: Rates) -> list[Column[tuple[int, Sequence[float]]]]:
    """Of tokens of a prompt, and seconds of a forward over it."""

    def speed(line: tuple[int, Sequence[float]]) -> float:
        length, seconds = line
        flops = length * (2 * work.num_weights + work.slot_flops * (length + 1) / 2)
        return flops / estimate(seconds).value

    peak = rates.products[work.dtype].peak
    return [
        Column(heading="tokens", get=lambda line: line[0]),
        Column(heading="ms", get=lambda line: estimate(line[1]), form=MILLISECONDS),
        Column(heading="tokens/s", get=lambda line: line[0] / estimate(line[1]).value, form=number(".0f")),
        Column(heading="GFLOP/s", get=lambda line: speed(line) / GIGA, form=number(".0f")),
        Column(heading="of the products' best", get=lambda line: speed(line) / peak, form=number(".0%")),
    ]


def _gflops(side: str) -> Any:
    return lambda line: estimate(line["flops"][side]).value / GIGA


PRODUCTS: list[Column[Record]] = [
    Column(heading="matrix", get=lambda line: f"{line['matrix']} {line['shape'][0]} x {line['shape'][1]}", left=True),
    Column(heading="rows", get=lambda line: line["rows"]),
    Column(heading="ours", get=_gflops(KERNEL), form=number(".0f")),
    Column(heading="torch's", get=_gflops(TORCH), form=number(".0f")),
    Column(
        heading="ours over torch's",
        get=lambda line: estimate(paired_ratios(line["flops"][KERNEL], line["flops"][TORCH])),
        form=RATIO,
    ),
]


def _first_ratio(line: tuple[Record, str]) -> Estimate | None:
    record, name = line
    return None if name == PEER else estimate(paired_ratios(record["seconds"][PEER], record["seconds"][name]))


FIRST: list[Column[tuple[Record, str]]] = [
    Column(heading="prompt", get=lambda line: f"{line[0]['num_tokens']} tokens"),
    Column(
        heading="who",
        get=lambda line: f"{PEER} again{' (void)' if line[0]['void'] else ''}" if line[1] == CONTROL else line[1],
        left=True,
    ),
    Column(heading="ms", get=lambda line: estimate(line[0]["seconds"][line[1]]), form=MILLISECONDS),
    Column(heading=f"{PEER}'s time over it", get=_first_ratio, form=RATIO),
    Column(heading="same token", get=lambda line: "yes" if line[0]["same"][line[1]] else "no"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Study):
    """How a step grows with rows, nodes and context; the time to the first token."""

    kind: ClassVar[str] = "axis"
    title: ClassVar[str] = "Scaling"
    needs_drawing: ClassVar[bool] = True

    target: Annotated[Path | None, option("Directory; the embedded target inflated to 200M by default.")] = None
    draft: Annotated[Path | None, option("Directory of its draft, for the time to the first token.")] = None
    dtype: Annotated[Literal["bfloat16", "float32"], option("Precision.")] = "bfloat16"
    rows: Annotated[tuple[int, ...], counts("Of a batch.")] = (1, 2, 4, 8, 16, 32, 64)
    nodes: Annotated[tuple[int, ...], counts("Of a tree.")] = (1, 2, 4, 8, 16, 32, 64)
    context: Annotated[tuple[int, ...], counts("Tokens before a step.")] = (128, 256, 512, 1024, 2048, 4096, 8192)
    length: Annotated[tuple[int, ...], counts("Of prompts read at once.")] = (64, 256, 512, 1000)
    prompt: Annotated[int, option("Tokens before the first one.")] = 1000
    repeats: Annotated[int, option("Of every call at least.")] = 7
    seconds: Annotated[float, option("That an axis takes at least.")] = 10.0
    processor_time: Annotated[bool, option("Count what the thread computed, where other programs run.")] = False

    def check(self) -> None:
        """Raise ValueError for counts below 1, and a draft without a target."""
        axes_of(self.rows, self.nodes, self.context)
        if self.draft is not None and self.target is None:
            raise ValueError(f"--draft {self.draft}: give --target too, or neither for the embedded pair, inflated")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        timing = Timing(repeats=self.repeats, seconds=self.seconds, processor_time=self.processor_time)
        path, draft_path = self._models(say)
        target = load(path, dtype=self.dtype, device="cpu")
        draft = None if draft_path is None else load(draft_path, dtype=target.dtype, device="cpu")
        decoder = native(target, path)
        run = raw.begin(
            conditions_of({"target": path, "draft": draft_path}, target.dtype, **asdict(timing)),
            lambda: floor_notes(decoder, say, repeats=RATE_REPEATS, clock=timing.clock),
        )
        kept = {"raw": raw, "run": run, "say": say}
        prompts.measure_first(self.prompt, target=target, draft=draft, path=path, timing=timing, **kept)
        lm = runnable(target)
        prompts.measure_prefill(self.length, target=lm, eager=decoder, timing=timing, **kept)
        # What a step costs does not depend on how long a context the model was trained for.
        axes = axes_of(self.rows, self.nodes, self.context)
        longest = max(point.context + point.nodes for axis in axes for point in axis.points) + 1
        decoder.config = replace(decoder.config, max_positions=max(longest, decoder.config.max_positions))
        steps.measure_axes(axes, target=lm, timing=timing, **kept)
        ragged.measure_mixes(ragged.MIXES, target=lm, **kept)

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any]]:
        """Steps beside their floor, mixes, prompts, products, and the first token."""
        work, rates = Work(**run["notes"]["work"]), rates_of(run)

        def last(kind: str, field: str) -> list[Record]:
            return last_of(records, run["run"], kind, lambda record: str(record[field]))

        found: list[Section[Any]] = []
        for axis in last("axis", "axis"):
            mark = ", void: a step differed from itself" if axis["void"] else ""
            title = f"{axis['axis']} (a step over itself: {axis['control']:.2f}{mark})"
            found.append(Section(title=title, columns=STEPS, lines=points_of(axis, work, rates)))
        found.append(Section(title="ragged lengths: slots of all rows", columns=RAGGED, lines=last("ragged", "mix")))
        for record in last("prefill", "lengths"):
            lines = list(zip(record["lengths"], record["seconds"], strict=True))
            columns = prefill_columns(work, rates)
            found.append(Section(title="a prompt in one forward, without the head", columns=columns, lines=lines))
            title = "products of many rows, GFLOP/s"
            found.append(Section(title=title, columns=PRODUCTS, lines=record["products"]))
        first = [(record, name) for record in last("first", "num_tokens") for name in record["seconds"]]
        found.append(Section(title="time to the first token", columns=FIRST, lines=first))
        return [section for section in found if section.lines]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the floor is made of."""
        rates = rates_of(run)
        peak = rates.products[run["conditions"]["dtype"]].peak
        return [f"floor: reads {rates.read / GIGA:.1f} GB/s, multiplies at {peak / GIGA:.0f} GFLOP/s"]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Times above, memory below, a column for every axis."""
        from benchmarks.scaling.plot import draw  # needs the optional matplotlib

        work, rates = Work(**run["notes"]["work"]), rates_of(run)
        axes = last_of(records, run["run"], "axis", lambda record: record["axis"])
        return draw([(axis, points_of(axis, work, rates)) for axis in axes], title=title)

    def _models(self, say: Progress) -> tuple[Path, Path | None]:
        """Directories of the target and of its draft."""
        if self.target is not None:
            return self.target, self.draft
        small, draft = embedded_pair()
        folder = Path(tempfile.gettempdir()) / "paceline-demo-200M"
        if not (folder / "config.json").exists():
            say("inflating the embedded target to 200M")
            lm = inflate_to(load_decoder(small, dtype=torch.bfloat16), num_parameters=NUM_PARAMETERS)
            write(lm, folder, source=small, name="paceline-demo-target")
        return folder, draft
