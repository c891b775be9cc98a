"""How does the speed-up depend on draft length and on the length of the output?

A target and a draft model continue the same prompts plainly, twice, and with every draft length, greedily and sampled.
The time until so many tokens are there is read on the way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from benchmarks.decoders import longest
from benchmarks.even_decoding import CONTROL, PLAIN, Decoded, decode_sides
from benchmarks.head_cells import engine_of, prompts_that_fit, sampling_of
from benchmarks.study import (
    Draft,
    Precision,
    Progress,
    Study,
    Suite,
    Target,
    Timing,
    check_counts,
    check_temperatures,
    conditions_of,
    counts,
    date,
    missing,
    named,
    option,
    pair_of,
    run_cells,
)
from paceline.api import load
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, is_void, pooled_ratio
from paceline.kernels.cpu.instruction_set import current_set
from paceline.text.loops import is_looping

WARM_UP = 24  # tokens of the first prompt that are decoded before, for the first step of all is slow
SAMPLED = {"top_k": 50, "top_p": 0.95}  # beside a temperature above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is decoded."""

    temperature: float
    max_tokens: int

    @property
    def name(self) -> str:
        return mode(self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One output length."""

    mode: str
    length: int
    speedups: Mapping[int, Estimate]  # by draft length
    num_looping: int  # outputs that mostly repeat themselves
    control: float
    void: bool


def mode(temperature: float) -> str:
    """How tokens are chosen, in words."""
    cut = ", ".join(f"{name} {value:g}" for name, value in SAMPLED.items())
    return f"{sampling_of(temperature)}, {cut}" if temperature else sampling_of(temperature)


def at_lengths(parts: Sequence[Decoded], lengths: Sequence[int]) -> list[list[float]]:
    """Seconds until so many tokens were there, of every prompt."""
    return [[part.by_token[length - 1] for length in lengths] for part in parts]


def lines_of(record: Record) -> list[Line]:
    """What is shown of a cell."""
    seconds, lengths = record["seconds"], record["lengths"]

    def ratio(name: str, at: int) -> Estimate:
        return pooled_ratio([one[at] for one in seconds[PLAIN]], [one[at] for one in seconds[name]])

    controls = [ratio(CONTROL, at).value for at in range(len(lengths))]
    return [
        Line(
            mode=mode(record["cell"]["temperature"]),
            length=length,
            speedups={int(name): ratio(name, at) for name in seconds if name.isdigit()},
            num_looping=record["num_looping"][at],
            control=controls[at],
            void=is_void([controls[at]]),
        )
        for at, length in enumerate(lengths)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Study):
    """How does the speed-up depend on draft length and on the length of the output?"""

    kind: ClassVar[str] = "lengths"
    title: ClassVar[str] = "Draft and output lengths"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib",)

    target: Target = None
    draft: Draft = None
    dtype: Precision = "bfloat16"
    suite: Suite = "code"
    depths: Annotated[tuple[int, ...], counts("Draft lengths.")] = (1, 2, 4, 8)
    lengths: Annotated[tuple[int, ...], counts("Tokens of an output.")] = (50, 100, 200, 500)
    temperatures: Annotated[tuple[float, ...], option("Greedy is 0.")] = (0.0, 0.8)
    num_prompts: Annotated[int, option("Prompts, one at a time.")] = 2

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(depths=self.depths, lengths=self.lengths, num_prompts=self.num_prompts)
        pair_of(self.target, self.draft)
        check_temperatures(self.temperatures)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = pair_of(self.target, self.draft)
        target, draft = (load(path, dtype=self.dtype, device="cpu") for path in paths)
        choices = {"isa": current_set(), "suite": self.suite, "num_prompts": self.num_prompts}
        run = raw.begin(
            conditions_of(named(paths), target.dtype, depths=list(self.depths), lengths=list(self.lengths), **choices),
            date,
        )
        cells = [Cell(temperature=t, max_tokens=max(self.lengths)) for t in self.temperatures]
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            # Long greedy outputs of small targets all loop, so none is left out here, and loops are counted.
            prompts, params = prompts_that_fit(
                target, self.suite, cell, 4 * self.num_prompts, longest_draft=max(self.depths), **SAMPLED
            )
            prompts, params = prompts[: self.num_prompts], params[: self.num_prompts]
            depths: dict[str, int | None] = {PLAIN: None, **{str(depth): depth for depth in self.depths}, CONTROL: None}
            room = {"batch_size": 1, "length": longest(prompts) + cell.max_tokens}
            decode = partial(
                decode_sides,
                {name: partial(engine_of, target, draft, depth, **room) for name, depth in depths.items()},
                what=cell.name,
                batch_size=1,
                timing=Timing(repeats=1, seconds=0.0),
                warm_up=False,
            )
            decode(prompts[:1], [replace(params[0], max_tokens=min(WARM_UP, cell.max_tokens))])
            sides = decode(prompts, params)
            seconds = {name: at_lengths(repeats[-1], self.lengths) for name, repeats in sides.decoded.items()}
            summaries = {name: [part.summary for part in repeats[-1]] for name, repeats in sides.decoded.items()}
            raw.append(
                {
                    **identity,
                    "void": sides.void,
                    "lengths": list(self.lengths),
                    "num_looping": [
                        sum(is_looping(part.tokens[0][:length]) for part in sides.decoded[PLAIN][-1])
                        for length in self.lengths
                    ],
                    "seconds": seconds,
                    "tokens_per_step": {
                        name: sum(one.emitted for one in rows) / sum(one.steps for one in rows)
                        for name, rows in summaries.items()
                    },
                }
            )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Line]]:
        """A table for greedy and for sampled outputs: a line for each output length, a column for each draft length."""
        columns: list[Column[Line]] = [
            Column("tokens", "length"),
            *(
                Column(f"k = {depth}", partial(_speedup, depth), ".2f", timed=True, estimate=True)
                for depth in run["conditions"]["depths"]
            ),
            Column("looping", "num_looping"),
            Column("control", "control", ".3f"),
        ]
        return [
            Section(
                title=f"{mode(record['cell']['temperature'])}, {run['conditions']['isa']}; tokens per step "
                + ", ".join(f"{value:.2f}" for name, value in record["tokens_per_step"].items() if name.isdigit()),
                columns=columns,
                lines=lines_of(record),
            )
            for record in self.last(run, records)
        ]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are, and their mean."""
        lines = [line for record in self.last(run, records) for line in lines_of(record) if not line.void]
        notes = []
        for depth in run["conditions"]["depths"]:
            values = [line.speedups[depth].value for line in lines]
            if values:
                average = sum(values) / len(values)
                notes.append(
                    f"k = {depth}: {average:.2f} of plain decoding's speed on average, {min(values):.2f} to "
                    f"{max(values):.2f}"
                )
        notes.append(f"looping: of {run['conditions']['num_prompts']} outputs, those that mostly repeat themselves")
        return [*notes, "[ ]: 95 % interval over prompts; void: plain decoding differs from itself by more than 3 %"]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Speed-up over the draft length, a line for each output length."""
        from paceline.bench import drawing  # needs the optional matplotlib

        measured = [lines_of(record) for record in self.last(run, records)]
        num_void = sum(line.void for lines in measured for line in lines)

        def panels(axes: Sequence[Any]) -> None:
            for panel, lines in zip(axes, measured, strict=True):
                for at, line in enumerate(lines):
                    if not line.void:
                        values, label = list(line.speedups.values()), f"{line.length} tokens"
                        x = [depth * 1.04**at for depth in line.speedups]  # beside each other
                        drawing.error_bars(panel, x, values, label, **drawing.series(at))
                drawing.baseline(panel)
                drawing.powers_of_two(panel, list(run["conditions"]["depths"]))
                drawing.finish(panel, x="drafted tokens", y="speed over plain decoding", title=lines[0].mode)

        return drawing.draw_panels(
            panels,
            size=(4.6 * max(1, len(measured)), 4.2),
            title=title,
            caption="Time until so many tokens were there."
            + drawing.left_out(num_void, sum(map(len, measured)), "lines"),
            columns=len(measured),
        )


def _speedup(depth: int, line: Line) -> Estimate:
    return line.speedups[depth]
