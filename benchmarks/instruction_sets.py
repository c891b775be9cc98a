"""The products of a step by instruction set: t(n), the time of n rows, beside the time of reading the weights once.

A drafted step pays where t(n) stays near t(1); t(1) is at its floor where the weights are read at the memory's rate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.study import (
    Progress,
    Study,
    Taken,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    counts,
    date,
    option,
    run_cells,
    sound,
    time_cells,
)
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.kernels.cpu.instruction_set import available_sets, check_set, instruction_set
from paceline.models.cpu.packed_weights import gemm_with_layer, pack_linear
from paceline.models.loading import dtype_name
from paceline.models.native.quantization import SCHEMES, check_quantization

SHAPES = ((1536, 1024), (1024, 768), (6272, 1024), (1024, 3136))  # of a layer of 12 million weights
FLOATS = {dtype_name(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32)}
PRECISIONS = (*FLOATS, *SCHEMES)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
AGAIN, SUMS, GREATEST = "1, again", "read: sums", "read: greatest"
FEW = 8  # rows
SHOWN = (2, 4, 6, 8, 16, 64)  # rows
SIZE = (4.0, 4.0)  # inches of a panel
BESIDE = 3  # panels
CAPTION = (
    "How many times as long a product takes with n rows as with one: where a line is flat, further rows, and so "
    "drafted tokens, cost little. Whiskers are 95 % intervals."
)

Pass = Callable[[Mapping[int, Tensor]], object]  # of inputs by their number of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The products of one precision by one set's kernel."""

    isa: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.precision} on {self.isa}"


@torch.inference_mode()
def turns_of(cell: Cell, *, layers: int, rows: Sequence[int]) -> Turns:
    """A pass over all layers for every number of rows, and two ways to read as many bytes as the weights have."""
    dtype = FLOATS.get(cell.precision, torch.bfloat16)
    with instruction_set(cell.isa):
        products = [_product(shape, cell.precision, dtype) for _ in range(layers) for shape in SHAPES]
    size = sum(one.size for one in products)
    memory = torch.ones(-(-size // 4), dtype=torch.float32)
    whole = memory.view(torch.int32)

    def passing(count: int) -> Callable[[], object]:
        inputs = {width: torch.randn(count, width).to(dtype) for width in {shape[1] for shape in SHAPES}}
        return lambda: [one.multiply(inputs[one.width]) for one in products]

    def found(taken: Taken) -> Record:
        return {"bytes": size, "seconds": {name: list(values) for name, values in taken.items()}}

    few, many = ([count for count in rows if (count <= FEW) == wanted] for wanted in (True, False))
    calls = {str(count): passing(count) for count in few}
    calls[AGAIN] = passing(1)  # before many rows, after which processors lower their clock
    calls |= {str(count): passing(count) for count in many} | {SUMS: memory.sum, GREATEST: whole.amax}
    return Turns(calls=calls, controls={"1": AGAIN}, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    width: int
    size: int  # bytes of the weights, scales included
    multiply: Callable[[Tensor], Tensor]


def _product(shape: tuple[int, int], precision: str, dtype: torch.dtype) -> _Product:
    outer, inner = shape
    layer = nn.Linear(inner, outer, bias=False, device="meta")
    weight = torch.randn(shape).mul_(inner**-0.5).to(dtype)
    if precision in SCHEMES:
        layer = SCHEMES[precision](inner, outer, bias=False)
        for name, tensor in SCHEMES[precision].quantise(weight).items():
            setattr(layer, name, nn.Parameter(tensor, requires_grad=False))
    else:
        layer.weight = nn.Parameter(weight, requires_grad=False)
    size = sum(part.nbytes for part in layer.parameters())
    return _Product(width=inner, size=size, multiply=gemm_with_layer(pack_linear(layer, dtype), dtype))


def growth(record: Record, rows: int) -> Estimate:
    """t(rows) / t(1)."""
    return estimate(paired_ratios(record["seconds"][str(rows)], record["seconds"]["1"]))


def _middle(record: Record, rows: int) -> float:
    return growth(record, rows).value


def share(record: Record) -> Estimate:
    """Time of reading the weights' bytes, by the faster way, over t(1)."""
    seconds = record["seconds"]
    return estimate(paired_ratios(list(map(min, seconds[SUMS], seconds[GREATEST])), seconds["1"]))


def control(record: Record) -> str:
    """t(1) against itself."""
    ratio = estimate(paired_ratios(record["seconds"][AGAIN], record["seconds"]["1"])).value
    return f"{ratio:.3f}{' (void)' if record['void'] else ''}"


def columns_of(rows: Sequence[int]) -> list[Column[Record]]:
    """A record's figures; t(n)/t(1) of ``rows``."""

    def speed(*names: str) -> Callable[[Record], float]:
        return lambda one: one["bytes"] / min(estimate(one["seconds"][name]).value for name in names) / 1e9

    return [
        Column("set", "cell.isa", left=True),
        Column("precision", "cell.precision", left=True),
        Column("read GB/s", speed(SUMS, GREATEST), ".1f"),
        Column("t(1) GB/s", speed("1"), ".1f"),
        Column("share", lambda one: share(one).value, ".0%"),
        *(Column(f"t({count})", partial(_middle, rows=count), ".2f") for count in rows),
        Column("control", control),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSets(Study):
    """The kernel's products by instruction set: t(n)/t(1), and the share of the memory's read rate at one row.

    Each set and precision is timed with all its numbers of rows in turn, and with two ways to read as many bytes.
    """

    kind: ClassVar[str] = "instruction set"
    title: ClassVar[str] = "Products by instruction set"

    isa: Annotated[tuple[str, ...], option("Instruction set; all that the processor has by default.")] = ()
    dtype: Annotated[tuple[str, ...], option(f"Precision: {', '.join(PRECISIONS)}; may be repeated.")] = PRECISIONS
    rows: Annotated[tuple[int, ...], counts("Rows of the inputs; 1 is always among them.")] = ROWS
    layers: Annotated[int, option("Of 12 million weights each.")] = 16
    repeats: Annotated[int, option("Of every pass at least.")] = 9
    seconds: Annotated[float, option("That the repeats of a set and precision take at least.")] = 5.0

    def check(self) -> None:
        """Raise ValueError for sets and precisions that there are not."""
        check_counts(rows=self.rows, layers=self.layers, repeats=self.repeats)
        for isa in self.isa:
            check_set(isa, "--isa")
        for name in self.dtype:
            if name not in PRECISIONS:
                raise ValueError(f"--dtype {name}: known are {', '.join(PRECISIONS)}")
            check_quantization(name if name in SCHEMES else None)

    def cells(self) -> Iterator[Cell]:
        """Every set with every precision."""
        for precision, isa in product(self.dtype, self.isa or available_sets()):
            yield Cell(isa=isa, precision=precision)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        rows = sorted({1, *self.rows})
        run = raw.begin(conditions_of({}, "several precisions", layers=self.layers, rows=rows), date)
        time_cells(
            list(self.cells()),
            partial(turns_of, layers=self.layers, rows=rows),
            raw=raw,
            identify=run_cells(self.kind, run),
            timing=Timing(repeats=self.repeats, seconds=self.seconds),
            say=say,
        )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """A line for every set and precision."""
        rows = [count for count in SHOWN if count in run["conditions"]["rows"]]
        return [Section(title="products", columns=columns_of(rows), lines=self.last(run, records))]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            "share: time of reading the weights' bytes once, by the faster of two ways, over t(1); t(n): times t(1); "
            "medians of ratios within a repeat, whose 95 % intervals are drawn",
            "control: t(1) against itself; (void) where it differed by over 3 %",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """t(n)/t(1) over n: a panel for every precision, a line for every set."""
        from paceline.bench import drawing  # needs the optional matplotlib

        measured, rows = self.last(run, records), run["conditions"]["rows"]
        lines = sound(measured)
        sets = list(dict.fromkeys(one["cell"]["isa"] for one in measured))
        precisions = list(dict.fromkeys(one["cell"]["precision"] for one in lines))

        def panels(axes: Sequence[Any]) -> None:
            for place in axes[len(precisions) :]:
                place.set_axis_off()
            for place, precision in zip(axes, precisions, strict=False):
                for one in (one for one in lines if one["cell"]["precision"] == precision):
                    label = f"{one['cell']['isa']}, {share(one).value:.0%} of the read rate"
                    drawing.error_bars(
                        place,
                        rows,
                        [growth(one, count) for count in rows],
                        label,
                        markersize=3,
                        **drawing.series(sets.index(one["cell"]["isa"])),
                    )
                drawing.powers_of_two(place, [count for count in rows if count & (count - 1) == 0])
                place.set_yscale("log", base=2)
                drawing.plain_log(place.yaxis)
                drawing.finish(place, x="rows n", y="t(n) / t(1)", title=precision, columns=1)

        columns = min(BESIDE, len(precisions))
        high = -(-len(precisions) // columns) if columns else 0
        return drawing.draw_panels(
            panels,
            size=(SIZE[0] * columns, SIZE[1] * high),
            title=f"{run['conditions']['machine']['processor']}; {title}",
            caption=f"{CAPTION}{drawing.left_out(len(measured) - len(lines), len(measured), 'lines')}",
            rows=high,
            columns=columns,
            sharey=True,
        )
