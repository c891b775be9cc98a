"""What records of scaling say: times beside the floor, memory beside what is used. Times nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.scaling.measure import CONTROL, FORWARD, KERNEL, STEP, TORCH, rates_of
from benchmarks.scaling.points import Point
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import AXIS, FIRST, PREFILL, RAGGED, RUN, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Bound, Work, bound

MIB, MS, GIGA = 1 << 20, 1000.0, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFigures:
    """One step; seconds and bytes."""

    point: Point
    forward: Estimate
    step: Estimate
    rest: float  # of the step, everything but the forward: the median over the turns
    floor: Bound  # of the forward
    cache_bytes: int
    used_bytes: int
    resident_bytes: int

    @property
    def share(self) -> float:
        """Of the floor in the forward's time: 1 is the best there can be."""
        return self.floor.seconds / self.forward.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisFigures:
    """One axis, point by point."""

    name: str
    lines: tuple[PointFigures, ...]
    control: float
    void: bool


def last_run(records: Sequence[Record]) -> Record:
    """The last run of scaling in ``records``. Raises ValueError for none."""
    runs = [record for record in records if record["kind"] == RUN and "rates" in record.get("notes", {})]
    if not runs:
        raise ValueError("no figures of scaling in this file: give one that python -m benchmarks.scaling wrote")
    return runs[-1]


def axes_in(records: Sequence[Record]) -> list[AxisFigures]:
    """Of the last run, every axis by its last measurement, a sound one if there is one."""
    run = last_run(records)
    rates, work = rates_of(run), Work(**run["notes"]["work"])
    return [
        AxisFigures(
            name=record["axis"],
            control=record["control"],
            void=record["void"],
            lines=tuple(
                _figures(Point(**point), found, work, rates)
                for point, found in zip(record["points"], record["found"], strict=True)
            ),
        )
        for record in _last(records, run, AXIS, "axis")
    ]


def _figures(point: Point, found: Record, work: Work, rates: Rates) -> PointFigures:
    return PointFigures(
        point=point,
        forward=estimate(found[FORWARD]),
        step=estimate(found[STEP]),
        rest=1 - median(paired_ratios(found[FORWARD], found[STEP])),
        floor=bound(work, rates, rows=point.rows, nodes=point.nodes, slots=point.context),
        cache_bytes=found["cache_bytes"],
        used_bytes=found["used_bytes"],
        resident_bytes=found["resident_bytes"],
    )


def _last(records: Sequence[Record], run: Record, kind: str, field: str) -> list[Record]:
    chosen: dict[str, Record] = {}
    for record in records:
        if record["kind"] == kind and record["run"] == run["run"]:
            name = str(record[field])
            if name not in chosen or chosen[name].get("void") or not record.get("void"):
                chosen[name] = record
    return list(chosen.values())


def tables_of(records: Sequence[Record]) -> list[Table]:
    """Every table that the last run in ``records`` gives."""
    run = last_run(records)
    tables = [_axis_table(axis) for axis in axes_in(records)]
    ragged = _last(records, run, RAGGED, "mix")
    tables += [_ragged_table(ragged)] if ragged else []
    work, rates = Work(**run["notes"]["work"]), rates_of(run)
    for record in _last(records, run, PREFILL, "lengths"):
        tables += [_prefill_table(record, work, rates), _products_table(record)]
    first = _last(records, run, FIRST, "num_tokens")
    return [*tables, _first_table(first)] if first else tables


def _axis_table(axis: AxisFigures) -> Table:
    mark = ", void: a step differed from itself" if axis.void else ""
    table = _table(f"{axis.name} (a step over itself: {axis.control:.2f}{mark})", "rows", "nodes", "context")
    for title in ("floor ms", "by", "forward ms", "of floor", "step ms", "rest", "cache MiB", "used", "resident"):
        table.add_column(title, justify="right", no_wrap=True)
    for line in axis.lines:
        point = line.point
        table.add_row(
            str(point.rows),
            f"{point.nodes} {point.shape}" if point.nodes > 1 else "1",
            str(point.context),
            f"{MS * line.floor.seconds:.1f}",
            line.floor.binding,
            _spread(line.forward),
            f"{line.share:.0%}",
            _spread(line.step),
            f"{line.rest:.1%}",
            *(f"{size / MIB:.1f}" for size in (line.cache_bytes, line.used_bytes, line.resident_bytes)),
        )
    return table


def _ragged_table(records: Sequence[Record]) -> Table:
    table = _table("ragged lengths: slots of all rows", "mix", "rows")
    for title in ("reserved", "used", "reserved/used", "written", "written/used", "written/most used"):
        table.add_column(title, justify="right")
    for title in ("reserved MiB", "resident MiB"):
        table.add_column(title, justify="right")
    for record in records:
        used = record["used_slots"]
        table.add_row(
            record["mix"]["name"],
            str(record["mix"]["rows"]),
            f"{record['reserved_slots']:,}",
            f"{used:,.0f}",
            f"{record['reserved_slots'] / used:.2f}",
            f"{record['touched_slots']:,}",
            f"{record['touched_slots'] / used:.2f}",
            f"{record['touched_slots'] / record['most_used_slots']:.2f}",
            f"{record['cache_bytes'] / MIB:.0f}",
            f"{record['resident_bytes'] / MIB:.0f}",
        )
    return table


def _prefill_table(record: Record, work: Work, rates: Rates) -> Table:
    table = _table("a prompt in one forward, without the head", "tokens")
    for title in ("ms", "tokens/s", "GFLOP/s", "of the products' best"):
        table.add_column(title, justify="right")
    for length, seconds in zip(record["lengths"], record["seconds"], strict=True):
        spent = estimate(seconds)
        flops = length * (2 * work.num_weights + work.slot_flops * (length + 1) / 2)
        speed = flops / spent.value
        table.add_row(
            str(length),
            _spread(spent),
            f"{length / spent.value:.0f}",
            f"{speed / GIGA:.0f}",
            f"{speed / rates.products[work.dtype].peak:.0%}",
        )
    return table


def _products_table(record: Record) -> Table:
    table = _table("products of many rows, GFLOP/s", "matrix", "rows")
    for title in ("ours", "torch's", "ours over torch's"):
        table.add_column(title, justify="right")
    for line in record["products"]:
        own, other = line["flops"][KERNEL], line["flops"][TORCH]
        ratio = estimate([one / two for one, two in zip(own, other, strict=True)])
        table.add_row(
            f"{line['matrix']} {line['shape'][0]} x {line['shape'][1]}",
            str(line["rows"]),
            f"{estimate(own).value / GIGA:.0f}",
            f"{estimate(other).value / GIGA:.0f}",
            _interval(ratio),
        )
    return table


def _first_table(records: Sequence[Record]) -> Table:
    table = _table("time to the first token", "prompt", "who")
    for title in ("ms", f"{PEER}'s time over it", "same token"):
        table.add_column(title, justify="right")
    for record in records:
        theirs = record["seconds"][PEER]
        for name, seconds in record["seconds"].items():
            title = f"{PEER} again" + (" (void)" if record["void"] else "") if name == CONTROL else name
            ratio = estimate(paired_ratios(theirs, seconds))
            table.add_row(
                f"{record['num_tokens']} tokens",
                title,
                _spread(estimate(seconds)),
                "1" if name == PEER else _interval(ratio),
                "yes" if record["same"][name] else "no",
            )
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _spread(found: Estimate) -> str:
    """In milliseconds, with how far the interval goes to its farther side."""
    far = max(found.high - found.value, found.value - found.low) / found.value
    return f"{MS * found.value:.1f} ±{far:.0%}"


def _interval(found: Estimate) -> str:
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"
