"""How a step grows with rows, nodes and context, beside its floor, and the time to the first token of a long prompt."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

import torch

from benchmarks.inflate.command import write
from benchmarks.inflate.model import inflate_to
from benchmarks.rates import floor_notes, rates_of
from benchmarks.scaling_calls import (
    CHAIN,
    CONTROL,
    FORWARD,
    KERNEL,
    PEER,
    STEP,
    TORCH,
    TREE,
    Axis,
    Point,
    axes_of,
    axis_turns,
    measure_first,
    measure_prefill,
)
from benchmarks.scaling_ragged import MIXES, Mix, measure_ragged
from benchmarks.study import (
    Precision,
    ProcessorTime,
    Progress,
    Repeats,
    Seconds,
    Study,
    Timing,
    conditions_of,
    counts,
    last_of,
    missing,
    native,
    option,
    sound,
    time_cells,
)
from paceline.api import embedded_pair, load
from paceline.api.loading import runnable
from paceline.bench.columns import Column, Section, follow, spread
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Bound, Work, bound
from paceline.models.loading import load as load_decoder

NUM_PARAMETERS = 200_000_000  # of the target by default
RATE_REPEATS = 15  # the best of them counts, and the machine may be busy
MIB, MS, GIGA = 1 << 20, 1000.0, 1e9
MILLISECONDS = spread(scale=MS)
SIZE = (4.2, 6.4)  # inches of a column
UNITS = {"rows": "rows", "nodes": "nodes per row", "context": "context (tokens)"}
CAPTION = (
    "Above: how near a step comes to the floor, the least time that this machine's memory and arithmetic allow; "
    "whiskers are 95 % intervals. Below: the caches grow with what is used, not with what is reserved."
)


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


def _mib(path: str, place: str = "sizes.") -> Any:
    return lambda line: follow(line, place + path) / MIB


STEPS: list[Column[PointFigures]] = [
    Column("rows", "point.rows"),
    Column("nodes", lambda line: f"{line.point.nodes} {line.point.shape}" if line.point.nodes > 1 else "1", left=True),
    Column("context", "point.context"),
    Column("floor ms", lambda line: MS * line.floor.seconds, ".1f"),
    Column("by", "floor.binding"),
    Column("forward ms", "forward", MILLISECONDS),
    Column("of floor", "share", ".0%"),
    Column("step ms", "step", MILLISECONDS),
    Column("rest", "rest", ".1%"),
    Column("cache MiB", _mib("cache_bytes"), ".1f"),
    Column("used", _mib("used_bytes"), ".1f"),
    Column("resident", _mib("resident_bytes"), ".1f"),
]


def _share(above: str, below: str) -> Any:
    return lambda record: record[above] / record[below]


RAGGED: list[Column[Record]] = [
    Column("mix", "mix.name", left=True),
    Column("rows", "mix.rows"),
    Column("reserved", "reserved_slots", ",.0f"),
    Column("used", "used_slots", ",.0f"),
    Column("reserved/used", _share("reserved_slots", "used_slots"), ".2f"),
    Column("written", "touched_slots", ",.0f"),
    Column("written/used", _share("touched_slots", "used_slots"), ".2f"),
    Column("written/most used", _share("touched_slots", "most_used_slots"), ".2f"),
    Column("reserved MiB", _mib("cache_bytes", ""), ".0f"),
    Column("resident MiB", _mib("resident_bytes", ""), ".0f"),
]


def prefill_columns(work: Work, rates: Rates) -> list[Column[tuple[int, Sequence[float]]]]:
    """Of tokens of a prompt, and seconds of a forward over it."""

    def speed(line: tuple[int, Sequence[float]]) -> float:
        length, seconds = line
        flops = length * (2 * work.num_weights + work.slot_flops * (length + 1) / 2)
        return flops / estimate(seconds).value

    peak = rates.products[work.dtype].peak
    return [
        Column("tokens", "0"),
        Column("ms", lambda line: estimate(line[1]), MILLISECONDS),
        Column("tokens/s", lambda line: line[0] / estimate(line[1]).value, ".0f"),
        Column("GFLOP/s", lambda line: speed(line) / GIGA, ".0f"),
        Column("of the products' best", lambda line: speed(line) / peak, ".0%"),
    ]


def _gflops(side: str) -> Any:
    return lambda line: estimate(line["flops"][side]).value / GIGA


PRODUCTS: list[Column[Record]] = [
    Column("matrix", lambda line: f"{line['matrix']} {line['shape'][0]} x {line['shape'][1]}", left=True),
    Column("rows", "rows"),
    Column("ours", _gflops(KERNEL), ".0f"),
    Column("torch's", _gflops(TORCH), ".0f"),
    Column(
        "ours over torch's",
        lambda line: estimate(paired_ratios(line["flops"][KERNEL], line["flops"][TORCH])),
        ".2f",
    ),
]


def _first_ratio(line: tuple[Record, str]) -> Estimate | None:
    record, name = line
    return None if name == PEER else estimate(paired_ratios(record["seconds"][PEER], record["seconds"][name]))


FIRST: list[Column[tuple[Record, str]]] = [
    Column("prompt", lambda line: f"{line[0]['num_tokens']} tokens"),
    Column(
        "who",
        lambda line: f"{PEER} again{' (void)' if line[0]['void'] else ''}" if line[1] == CONTROL else line[1],
        left=True,
    ),
    Column("ms", lambda line: estimate(line[0]["seconds"][line[1]]), MILLISECONDS),
    Column(f"{PEER}'s time over it", _first_ratio, ".2f"),
    Column("same token", lambda line: "yes" if line[0]["same"][line[1]] else "no"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Study):
    """How a step grows with rows, nodes and context; the time to the first token."""

    kind: ClassVar[str] = "axis"
    title: ClassVar[str] = "Scaling"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib",)

    target: Annotated[Path | None, option("Directory; the embedded target inflated to 200M by default.")] = None
    draft: Annotated[Path | None, option("Directory of its draft, for the time to the first token.")] = None
    dtype: Precision = "bfloat16"
    rows: Annotated[tuple[int, ...], counts("Of a batch.")] = (1, 2, 4, 8, 16, 32, 64)
    nodes: Annotated[tuple[int, ...], counts("Of a tree.")] = (1, 2, 4, 8, 16, 32, 64)
    context: Annotated[tuple[int, ...], counts("Tokens before a step.")] = (128, 256, 512, 1024, 2048, 4096, 8192)
    length: Annotated[tuple[int, ...], counts("Of prompts read at once.")] = (64, 256, 512, 1000)
    prompt: Annotated[int, option("Tokens before the first one.")] = 1000
    repeats: Repeats = 7
    seconds: Seconds = 10.0
    processor_time: ProcessorTime = False

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
        measure_first(self.prompt, target=target, draft=draft, path=path, timing=timing, **kept)
        lm = runnable(target)
        measure_prefill(self.length, target=lm, eager=decoder, timing=timing, **kept)
        # What a step costs does not depend on how long a context the model was trained for.
        axes = axes_of(self.rows, self.nodes, self.context)
        longest = max(point.context + point.nodes for axis in axes for point in axis.points) + 1
        decoder.max_positions = max(longest, decoder.max_positions)
        time_cells(
            axes, partial(axis_turns, target=lm), identify=partial(identify_axis, run), timing=timing, raw=raw, say=say
        )
        for mix, identity in missing(raw, MIXES, partial(_identify_mix, run), say):
            raw.append({**identity, **measure_ragged(mix, lm)})

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
        from paceline.bench import drawing  # needs the optional matplotlib

        work, rates = Work(**run["notes"]["work"]), rates_of(run)
        last = last_of(records, run["run"], "axis", lambda record: record["axis"])
        axes = [(axis, points_of(axis, work, rates)) for axis in sound(last)]
        void = [axis["axis"] for axis in last if axis["void"]]

        def panels(places: Sequence[Any]) -> None:
            for column, (axis, lines) in enumerate(axes):
                above, below = places[column], places[len(axes) + column]
                chains = [line for line in lines if line.point.shape == CHAIN]
                trees = [line for line in lines if line.point.shape == TREE]
                x = [getattr(line.point, axis["axis"]) for line in chains]
                style = {"scale": MS, "markersize": 3, "capsize": 2}
                drawing.error_bars(above, x, [line.step for line in chains], "step", **style)
                drawing.error_bars(above, x, [line.forward for line in chains], "the target's forward", **style)
                if trees:
                    at = [line.point.nodes for line in trees]
                    drawing.error_bars(above, at, [line.step for line in trees], "step, tree", **style)
                    drawing.error_bars(above, at, [line.forward for line in trees], "forward, tree", **style)
                for label, line_style, seconds in (
                    ("floor", {"color": "black", "linestyle": "-"}, [line.floor.seconds for line in chains]),
                    ("floor of memory", {"color": "0.4", "linestyle": ":"}, [line.floor.memory for line in chains]),
                ):
                    above.plot(x, [MS * one for one in seconds], **line_style, marker="", label=label)
                for label, name in (("resident growth", "resident"), ("reserved", "cache"), ("used slots", "used")):
                    sizes = [line.sizes[f"{name}_bytes"] / MIB for line in chains]
                    below.plot(x, sizes, markersize=3, label=label)
                for place, what in ((above, "ms per step"), (below, "MiB of caches")):
                    drawing.powers_of_two(place, x, [f"{size // 1024}k" if size >= 1024 else str(size) for size in x])
                    place.set_yscale("log")
                    drawing.plain_log(place.yaxis)
                    drawing.finish(place, x=UNITS[axis["axis"]], y=what)

        named = f"axes ({', '.join(void)})"
        return drawing.draw_panels(
            panels,
            size=(SIZE[0] * len(axes), SIZE[1]),
            title=title,
            caption=f"{CAPTION}{drawing.left_out(len(void), len(last), named)}",
            rows=2,
            columns=len(axes),
        )

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


def identify_axis(run: str, axis: Axis) -> Record:
    """What an axis of a run is known by."""
    return {"kind": "axis", "run": run, "axis": axis.name, "points": [asdict(point) for point in axis.points]}


def _identify_mix(run: str, mix: Mix) -> Record:
    return {"kind": "ragged", "run": run, "mix": asdict(mix)}
