"""The study ``sampling-cost``: has steps with every option timed in turn, and shows what each adds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

from benchmarks.sampling_cost.options import GREEDY, SAMPLED, Cell, Steps
from benchmarks.study import (
    Progress,
    Study,
    Timing,
    conditions_of,
    counts,
    date,
    last_of,
    missing,
    named,
    option,
)
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, is_void, paired_ratios
from paceline.bench.timing import read_rate, time_in_turn

AGAIN = {GREEDY: f"{GREEDY}, again", SAMPLED: f"{SAMPLED}, again"}  # the controls
COMMON = 0.03  # share of a step that options of everyday use are meant to stay under


def measure_cells(
    cells: Sequence[Cell],
    prepare: Callable[[Cell], Steps],
    *,
    raw: RawFile,
    run: str,
    timing: Timing,
    say: Progress = lambda _: None,
) -> None:
    """Put into ``raw`` what it lacks of ``cells``: seconds of a step for every option, all of them in turn.

    The references are timed twice a turn.
    """

    def identify(cell: Cell) -> Record:
        return {"kind": SamplingCost.kind, "run": run, "rows": cell.num_rows, "k": cell.num_draft_tokens}

    for cell, identity in missing(raw, cells, identify, say):
        steps = prepare(cell)
        names = {**{name: name for name in steps.options}, **{again: name for name, again in AGAIN.items()}}
        taken = time_in_turn(
            {name: steps.step for name in names},
            before={name: partial(steps.rewind, option) for name, option in names.items()},
            repeats=timing.repeats,
            seconds=timing.seconds,
            clock=timing.clock,
        )
        controls = {name: median(paired_ratios(taken[name], taken[again])) for name, again in AGAIN.items()}
        raw.append(
            {
                **identity,
                "vocab": steps.vocab_size,
                "logits_bytes": steps.logits_bytes,
                "controls": controls,
                "void": is_void(list(controls.values())),
                "references": {name: option.reference for name, option in steps.options.items() if option.reference},
                "common": [name for name, option in steps.options.items() if option.reference and option.common],
                "seconds": {name: list(values) for name, values in taken.items()},
            }
        )


def added(record: Record, option: str) -> Estimate | None:
    """What one option, or a control, adds to a step, as a share of it; 0.01 is a hundredth."""
    pairs = {**{again: name for name, again in AGAIN.items()}, **record["references"]}
    if option not in pairs:
        return None
    ratio = estimate(paired_ratios(record["seconds"][option], record["seconds"][pairs[option]]))
    return Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)


def _column(record: Record, rate: float) -> Column[str]:
    def text(line: str) -> str | None:
        if line in (GREEDY, SAMPLED):
            return f"{1000 * estimate(record['seconds'][line]).value:.1f} ms"
        if line == "floor":
            reading = record["logits_bytes"] / rate  # once more, the logits that a step chooses from
            return f"+{reading / estimate(record['seconds'][GREEDY]).value:.2%}"
        found = added(record, line)
        if found is None:
            return None
        mark = "!" if line in record["common"] and found.value > COMMON else ""
        return f"{mark}{found.value:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"

    name = Cell(num_rows=record["rows"], num_draft_tokens=record["k"]).name
    return Column(heading=name + (" (void)" if record["void"] else ""), get=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCost(Study):
    """What a step pays for each sampling option, by rows, draft and vocabulary.

    Whole steps with the option and without take turns. A pair is a target and its draft; more than one may be given.
    """

    kind: ClassVar[str] = "options"
    title: ClassVar[str] = "Sampling options"

    target: Annotated[tuple[Path, ...], option("Directory; may be repeated, each with a --draft.")] = ()
    draft: Annotated[tuple[Path, ...], option("Directory of its draft model.")] = ()
    dtype: Annotated[Literal["bfloat16", "float32"], option("Precision.")] = "bfloat16"
    rows: Annotated[tuple[int, ...], counts("Of a batch.")] = (1, 8)
    k: Annotated[tuple[int, ...], counts("Draft tokens, 0 for plain decoding.")] = (0, 5)
    repeats: Annotated[int, option("Of every step at least.")] = 15
    seconds: Annotated[float, option("That a cell takes at least.")] = 25.0
    processor_time: Annotated[bool, option("Count what the thread computed, where other programs run.")] = False

    def check(self) -> None:
        """Raise ValueError for models that make no pairs."""
        if not self.report and not 0 < len(self.target) == len(self.draft):
            raise ValueError("give --target and --draft, once for each pair, or --report to print what the file holds")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks, pair by pair."""
        timing = Timing(repeats=self.repeats, seconds=self.seconds, processor_time=self.processor_time)
        cells = [Cell(num_rows=rows, num_draft_tokens=k) for rows in self.rows for k in self.k]
        for paths in zip(self.target, self.draft, strict=True):
            target, draft = (load(path, dtype=self.dtype, device="cpu") for path in paths)
            if target.tokenizer is None:
                raise ValueError(f"--target {paths[0]}: it has no tokenizer, and prompts are texts")
            choices = {name: getattr(self, name) for name in ("repeats", "seconds", "processor_time")}
            run = raw.begin(
                conditions_of(named(paths), target.dtype, **choices),
                lambda: {**date(), "bytes_per_second": read_rate()},
            )
            lms = {"target": runnable(target), "draft": runnable(draft)}
            prepare = partial(Steps, **lms, tokenizer=target.tokenizer, itemsize=target.dtype.itemsize)
            measure_cells(cells, prepare, raw=raw, run=run, timing=timing, say=say)

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any]]:
        """A line for every option, a column for every cell."""
        cells = last_of(records, run["run"], self.kind, lambda record: (record["rows"], record["k"]))
        references, common = cells[0]["references"], cells[0]["common"]

        def name(line: str) -> str:
            if line in (GREEDY, SAMPLED):
                return f"step, {line}"
            base = references.get(line) or (SAMPLED if line == AGAIN[SAMPLED] else GREEDY)
            return line + (" (T)" if base == SAMPLED else "") + (" *" if line in common else "")

        columns = [Column(heading="option", get=name, left=True)]
        columns += [_column(record, run["notes"]["bytes_per_second"]) for record in cells]
        lines = [GREEDY, SAMPLED, "floor", *AGAIN.values(), *references]
        return [Section(title=f"vocabulary {cells[0]['vocab']:,}", columns=columns, lines=lines, ends=[2])]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            "what an option adds to a step, median [95 % interval] of paired ratios; "
            f"to a {GREEDY} one, or (T) to one at {SAMPLED}",
            f"*: in everyday use; over {COMMON:.0%} is marked with !; (void): a reference differed from itself by over "
            "3 %",
            "floor: reading all logits of a step, the draft's included, once more at the rate that memory was read",
        ]
