"""What the records of timed options say, as tables. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.sampling_cost.cases import COMMON, GREEDY, SAMPLED, Cell
from benchmarks.sampling_cost.measure import AGAIN
from paceline.bench.raw import OPTIONS, RUN, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionFigures:
    """What one option adds to a step, as a share of it; 0.01 is a hundredth."""

    option: str
    reference: str
    common: bool
    added: Estimate


def figures_of(record: Record) -> list[OptionFigures]:
    """Of every option in one cell, the controls first."""
    seconds, common = record["seconds"], set(record["common"])
    pairs = {**{again: name for name, again in AGAIN.items()}, **record["references"]}
    return [
        OptionFigures(
            option=option,
            reference=reference,
            common=option in common,
            added=_added(estimate(paired_ratios(seconds[option], seconds[reference]))),
        )
        for option, reference in pairs.items()
    ]


def floor_of(record: Record, bytes_per_second: float) -> float:
    """Reading, once more, the logits that a step chooses from, as a share of the step."""
    return record["logits_bytes"] / bytes_per_second / estimate(record["seconds"][GREEDY]).value


def tables_of(records: Sequence[Record]) -> list[Table]:
    """A table for every run: a line for every option, a column for every cell."""
    tables: list[Table] = []
    for run in [record for record in records if record["kind"] == RUN]:
        cells = [record for record in records if record["kind"] == OPTIONS and record["run"] == run["run"]]
        if cells:
            tables.append(_table(run, cells))
    return tables


def footnotes() -> list[str]:
    """What the figures are."""
    return [
        "what an option adds to a step, median [95 % interval] of paired ratios; "
        f"to a {GREEDY} one, or (T) to one at {SAMPLED}",
        f"*: in everyday use; over {COMMON:.0%} is marked with !; (void): a reference differed from itself by over 3 %",
        "floor: reading all logits of a step, the draft's included, once more at the rate that memory was read with",
    ]


def _table(run: Record, cells: Sequence[Record]) -> Table:
    conditions = run["conditions"]
    title = (
        f"{conditions['target']['name']} with {conditions['draft']['name']}, vocabulary {cells[0]['vocab']:,}, "
        f"{conditions['dtype']}, threads: {conditions['num_threads']}, "
        f"{'processor time' if conditions['processor_time'] else 'time that passed'}"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("option", no_wrap=True)
    for cell in cells:
        name = Cell(num_rows=cell["rows"], num_draft_tokens=cell["k"]).name
        table.add_column(name + (" (void)" if cell["void"] else ""), justify="right", no_wrap=True)
    for name in (GREEDY, SAMPLED):
        steps = [estimate(cell["seconds"][name]).value for cell in cells]
        table.add_row(f"step, {name}", *(f"{1000 * value:.1f} ms" for value in steps))
    rate = run["notes"]["bytes_per_second"]
    table.add_row("floor", *(f"+{floor_of(cell, rate):.2%}" for cell in cells), end_section=True)
    figures = [{line.option: line for line in figures_of(cell)} for cell in cells]
    for option, line in figures[0].items():
        mark = (" (T)" if line.reference == SAMPLED else "") + (" *" if line.common else "")
        table.add_row(option + mark, *(_text(column.get(option)) for column in figures))
    return table


def _added(ratio: Estimate) -> Estimate:
    """From a step's time with an option over that without: what it adds."""
    return Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)


def _text(line: OptionFigures | None) -> str:
    if line is None:
        return "-"
    mark = "!" if line.common and line.added.value > COMMON else ""
    return f"{mark}{line.added.value:+.1%} [{line.added.low:+.1%}, {line.added.high:+.1%}]"
