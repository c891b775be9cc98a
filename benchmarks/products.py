"""The same matrices multiplied by every way there is, in turn.

The kernel's two packings beside torch's own product, oneDNN's with weights packed beforehand, and layers that torch
compiles with frozen weights, by its wrapper in Python or in C++, at first use or ahead of it into a package. Every way
multiplies the same layers one after another, as many as exceed the caches, so that a way's time is that of a step's
products.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package, aoti_load_package
from torch._inductor import config as inductor

from benchmarks.instruction_sets import SHAPES
from benchmarks.study import Threads, check_counts, counts, option
from paceline.bench.columns import Column, Section
from paceline.bench.machine import describe
from paceline.bench.statistics import estimate, paired_ratios
from paceline.bench.timing import time_in_turn
from paceline.models.cpu.gemm import gemm_with_weight

LAYERS, ROWS, REPEATS = 16, (1, 2, 4, 6, 8, 12, 16, 32), 9
PANELS, BY_ROW, EAGER, PACKED = "kernel, panels", "kernel, row by row", "torch", "oneDNN, packed before"
COMPILED, WRAPPED = "torch.compile, frozen", "torch.compile, frozen, in C++"
PACKAGED, TUNED = "AOTInductor", "AOTInductor, max-autotune"
TUNING = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}

Pass = Callable[[Mapping[int, Tensor]], object]  # of inputs by their number of columns


class Layers(nn.Module):
    """Matrices that are multiplied one after another, each with the input of its width."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight in weights)

    def forward(self, inputs: dict[int, Tensor]) -> list[Tensor]:
        return [F.linear(inputs[weight.shape[1]], weight) for weight in self.weights]


def ways(weights: Sequence[Tensor]) -> Iterator[tuple[str, Callable[[int], Pass]]]:
    """Every way by its name, and what makes its pass over ``weights`` for a number of rows.

    Making one raises an exception, of whatever class a compiler raises, where this machine or torch has no such way.
    """

    def by_kernel(packed: bool) -> Pass:
        products = [(weight.shape[1], gemm_with_weight(weight, packed=packed)) for weight in weights]
        return lambda inputs: [multiply(inputs[width]) for width, multiply in products]

    def packed(rows: int) -> Pass:
        reorder, linear = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
        made = [(weight.shape[1], reorder(weight, rows)) for weight in weights]
        return lambda inputs: [linear(inputs[width], weight, None, "none", [], "") for width, weight in made]

    def compiled(wrapper: bool) -> Pass:
        torch.compiler.reset()
        run = torch.compile(Layers(weights), dynamic=False)

        def run_frozen(inputs: Mapping[int, Tensor]) -> object:
            with inductor.patch(freezing=True, cpp_wrapper=wrapper):
                return run(dict(inputs))

        return run_frozen

    def packaged(rows: int, options: Mapping[str, object]) -> Pass:
        inputs = {width: torch.zeros(rows, width, dtype=weights[0].dtype) for width in {w.shape[1] for w in weights}}
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode(False), torch.no_grad():
            # What is made in inference mode cannot be exported; a detached weight shares its memory.
            exported = torch.export.export(Layers([weight.detach().clone() for weight in weights]), (inputs,))
            # Constants are packed when the package is loaded; else, in this version, in every pass.
            settings = {"freezing": True, "aot_inductor.use_runtime_constant_folding": True, **options}
            path = aoti_compile_and_package(
                exported, package_path=str(Path(folder) / "layers.pt2"), inductor_configs=settings
            )
            run = aoti_load_package(path)
        return lambda inputs: run(dict(inputs))

    yield PANELS, lambda rows: by_kernel(packed=True)
    yield BY_ROW, lambda rows: by_kernel(packed=False)
    yield EAGER, lambda rows: lambda inputs: [F.linear(inputs[weight.shape[1]], weight) for weight in weights]
    yield PACKED, packed
    yield COMPILED, lambda rows: compiled(wrapper=False)
    yield WRAPPED, lambda rows: compiled(wrapper=True)
    yield PACKAGED, lambda rows: packaged(rows, {})
    yield TUNED, lambda rows: packaged(rows, TUNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of every pass of a way, or why it has none."""

    way: str
    rows: int
    seconds: tuple[float, ...] = ()
    missing: str = ""


@torch.inference_mode()
def measure(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    *,
    layers: int = LAYERS,
    rows: Sequence[int] = ROWS,
    repeats: int = REPEATS,
    dtype: torch.dtype = torch.bfloat16,
    only: Collection[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Timed]:
    """Every way at every number of ``rows``, in turn within a number; of ``only`` some ways, those and the first.

    Raises ValueError for rows or repeats below 1.
    """
    check_counts(rows=rows, repeats=repeats, layers=layers)
    weights = [torch.randn(shape).mul_(shape[1] ** -0.5).to(dtype) for _ in range(layers) for shape in shapes]
    found: list[Timed] = []
    for count in rows:
        inputs = {width: torch.randn(count, width).to(dtype) for width in {shape[1] for shape in shapes}}
        passes: dict[str, Callable[[], object]] = {}
        for way, make in ways(weights):
            if only and way not in {PANELS, *only}:
                continue
            progress(f"{count} rows: {way}")
            try:
                run = make(count)
                run(inputs)
            except Exception as error:  # compilers fail in ways of their own
                found.append(Timed(way=way, rows=count, missing=_reason(error)))
            else:
                passes[way] = lambda run=run, inputs=inputs: run(inputs)
        taken = time_in_turn(passes, repeats=repeats, seconds=0.0)
        found += [Timed(way=way, rows=count, seconds=seconds) for way, seconds in taken.items()]
    return found


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def section_of(found: Sequence[Timed], size: int) -> Section[str]:
    """GB/s of ``size`` bytes of weights by way and rows, medians, and what the first way's time is of each, paired."""
    timed = {(one.way, one.rows): one for one in found}

    def column(rows: int) -> Column[str]:
        def text(way: str) -> str:
            one, first = timed[way, rows], timed.get((PANELS, rows))
            if not one.seconds:
                return f"- {one.missing[:30]}"
            speed = f"{size / estimate(one.seconds).value / 1e9:.1f}"
            if first is None or way == PANELS:
                return speed
            return f"{speed} ({estimate(paired_ratios(one.seconds, first.seconds)).value:.2f})"

        return Column(f"{rows} rows", text)

    return Section(
        title="weights read, GB/s (time over that of the first)",
        columns=[Column("way", str, left=True), *map(column, sorted({one.rows for one in found}))],
        lines=list(dict.fromkeys(one.way for one in sorted(found, key=lambda one: one.way != PANELS))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The same matrices multiplied by every way there is, in turn."""

    rows: Annotated[tuple[int, ...], counts("Rows of the inputs.", consume_multiple=True)] = ROWS
    layers: Annotated[int, option("Of four matrices each.")] = LAYERS
    repeats: Annotated[int, option("Of every pass.")] = REPEATS
    way: Annotated[tuple[str, ...], option("Beside the first; all by default; may be repeated.")] = ()
    threads: Threads = None

    def run(self) -> int:
        """Measure and print."""
        names = [name for name, _ in ways([])]
        if not set(self.way) <= set(names):
            raise ValueError(f"--way {', '.join(self.way)}: known are {'; '.join(names)}")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        console, begin = Console(highlight=False), time.perf_counter()
        with console.status("") as status:
            found = measure(
                layers=self.layers, rows=self.rows, repeats=self.repeats, only=self.way, progress=status.update
            )
        machine = describe()
        console.print(f"{machine.processor}, {machine.num_threads} threads; torch {machine.versions['torch']}")
        size = 2 * self.layers * sum(outer * inner for outer, inner in SHAPES)
        console.print(section_of(found, size).table())
        console.print(f"{size / 1e6:.0f} MB of weights, {self.repeats} repeats, {time.perf_counter() - begin:.0f} s")
        return 0
