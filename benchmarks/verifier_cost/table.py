"""What the records of timed rules say, as tables and as CSV. Measures nothing."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.verifier_cost.measure import CELL, PLAIN_PICK
from paceline.bench.raw import Record
from paceline.bench.statistics import Estimate, estimate, is_void, paired_ratios

COLUMNS = (
    "run",
    "rows",
    "vocab",
    "shape",
    "num_nodes",
    "rule",
    "temperature",
    "draw",
    "ms",
    "ms_low",
    "ms_high",
    "floor_ms",
    "times_floor",
    "plain_picks",
    "tokens_per_step",
    "repeats",
    "control",
    "void",
)
TIMES, FLOOR, PICKS = "ms", "floors", "picks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFigures:
    """One rule in one cell; times in milliseconds."""

    run: str
    num_rows: int
    vocab_size: int
    shape: str
    num_nodes: int
    rule: str
    temperature: float
    draw: str
    time: Estimate  # of a call
    floor: float  # what reading the bytes that it must read would take
    picks: float  # its time over that of a plain pick, repeat by repeat, median
    tokens_per_step: float
    num_repeats: int
    control: float  # the plain pick timed twice
    void: bool

    @property
    def times_floor(self) -> float:
        return self.time.value / self.floor


def rule_figures_of(records: Sequence[Record]) -> list[RuleFigures]:
    """Of every rule in every cell that it was timed in, plain picks first."""
    rate = records[0]["bytes_per_second"]
    found: list[RuleFigures] = []
    for cell in _cells(records):
        timed = cell["timed"]
        for name, line in timed.items():
            plain = timed[PLAIN_PICK if line["temperature"] else f"{PLAIN_PICK}, T = 0"]["seconds"]
            found.append(
                RuleFigures(
                    run=cell["run"],
                    num_rows=cell["rows"],
                    vocab_size=cell["vocab"],
                    shape=cell["shape"],
                    num_nodes=cell["num_nodes"],
                    rule=name,
                    temperature=line["temperature"],
                    draw=line["draw"],
                    time=estimate([1000 * value for value in line["seconds"]]),
                    floor=1000 * (line["logits_bytes"] + line["laws_bytes"]) / rate,
                    picks=median(paired_ratios(line["seconds"], plain)),
                    tokens_per_step=line["tokens_per_step"],
                    num_repeats=len(line["seconds"]),
                    control=cell["control"],
                    void=is_void([cell["control"]]),
                )
            )
    return found


def rule_tables(records: Sequence[Record]) -> list[Table]:
    """For all cells of as many rows and as large a vocabulary, a line for every rule and columns for every shape."""
    figures = {(line.num_rows, line.vocab_size, line.shape, line.rule): line for line in rule_figures_of(records)}
    sizes = list(dict.fromkeys((cell["rows"], cell["vocab"]) for cell in _cells(records)))
    rules = list(dict.fromkeys(name for cell in _cells(records) for name in (*cell["timed"], *cell["refused"])))
    tables: list[Table] = []
    for rows, vocab in sizes:
        cells = [cell for cell in _cells(records) if (cell["rows"], cell["vocab"]) == (rows, vocab)]
        table = Table(
            title=f"{rows} row{'s' if rows > 1 else ''}, vocabulary {vocab:,}",
            title_justify="left",
            box=SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        table.add_column("rule", no_wrap=True)
        for cell in cells:
            mark = " (void)" if is_void([cell["control"]]) else ""
            table.add_column(f"{cell['shape']}{mark}\n{TIMES}", justify="right", no_wrap=True)
            table.add_column(f"\n{FLOOR}", justify="right", no_wrap=True)
            table.add_column(f"\n{PICKS}", justify="right", no_wrap=True)
        for rule in rules:
            texts = [_texts(figures.get((rows, vocab, cell["shape"], rule))) for cell in cells]
            table.add_row(rule, *(text for three in texts for text in three))
        tables.append(table)
    return tables


def footnotes(records: Sequence[Record]) -> list[str]:
    """Why some rules have a dash in some cells, what the figures are, and how fast memory was read."""
    notes: dict[tuple[str, str], list[str]] = {}
    rules = list(dict.fromkeys(name for cell in _cells(records) for name in (*cell["timed"], *cell["refused"])))
    for cell in _cells(records):
        for rule in rules:
            if rule not in cell["timed"]:
                reason = cell["refused"].get(rule)
                place = cell["shape"] if reason else f"{cell['rows']} rows, vocabulary {cell['vocab']:,}"
                found = notes.setdefault((place, reason or "not asked for"), [])
                found += [] if rule in found else [rule]
    lines = [f"-: at {place}: {', '.join(names)}: {reason}" for (place, reason), names in notes.items()]
    void = [cell for cell in _cells(records) if is_void([cell["control"]])]
    if void:
        lines.append("(void): a plain pick timed against itself differed by more than 3 %; the machine was not quiet")
    return [
        *lines,
        f"{TIMES}: the median of a call, and how far its 95 % interval goes to the farther side",
        f"{FLOOR}: the time over that of reading, once, the target's logits and the draft's laws that the rule was "
        f"given, at the {records[0]['bytes_per_second'] / 1e9:.1f} GB/s that memory was read with",
        f"{PICKS}: the time over that of choosing one token for every row, as plain decoding does",
    ]


def rules_to_csv(records: Sequence[Record]) -> str:
    """One line for every rule in every cell that it was timed in."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in rule_figures_of(records):
        writer.writerow(
            [
                line.run,
                line.num_rows,
                line.vocab_size,
                line.shape,
                line.num_nodes,
                line.rule,
                f"{line.temperature:g}",
                line.draw,
                *(f"{value:.6g}" for value in (line.time.value, line.time.low, line.time.high, line.floor)),
                *(f"{value:.4g}" for value in (line.times_floor, line.picks, line.tokens_per_step)),
                line.num_repeats,
                f"{line.control:.4g}",
                int(line.void),
            ]
        )
    return text.getvalue()


def _cells(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["kind"] == CELL]


def _texts(line: RuleFigures | None) -> tuple[str, str, str]:
    if line is None:
        return "-", "", ""
    time = line.time
    return (
        f"{_short(time.value)} ±{max(time.high - time.value, time.value - time.low) / time.value:.0%}",
        _short(line.times_floor),
        _short(line.picks),
    )


def _short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
