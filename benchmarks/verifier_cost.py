"""What a call of each verifier costs, by rows, vocabulary and draft. No model runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

import torch

from benchmarks.study import (
    ProcessorTime,
    Progress,
    Repeats,
    Seconds,
    Study,
    Taken,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    counts,
    date,
    last_of,
    option,
    plural,
    time_cells,
)
from benchmarks.verifier_calls import DISTANCE, SPREAD, Call, Calls, Cell, Timed
from paceline.bench.columns import Column, Section, to_csv
from paceline.bench.raw import RUN, RawFile, Record
from paceline.bench.statistics import Estimate, estimate, is_void, paired_ratios
from paceline.bench.timing import read_rate
from paceline.verifiers import VERIFIERS

PLAIN_PICK, CONTROL = "plain pick", "plain pick again"
MANY_ROWS, MANY_VOCAB = 32, 131072
COMMON = ("coupled", "rejection")  # timed at many rows, and greedily too


def name_of(name: str, temperature: float) -> str:
    return name if temperature else f"{name}, T = 0"


def turns_of(calls: Calls, verifiers: Sequence[Timed]) -> Turns:
    """Every verifier in a cell, in turn, beside a plain pick, which is timed twice as the control."""
    ready: dict[str, tuple[float, Call]] = {
        name_of(PLAIN_PICK, at): (at, calls.plain(at))
        for at in dict.fromkeys([1.0, *(temperature for _, temperature in verifiers)])
    }
    refused: dict[str, str] = {}
    for name, temperature in verifiers:
        try:
            ready[name_of(name, temperature)] = temperature, calls.call(name, temperature)
        except ValueError as error:
            refused[name_of(name, temperature)] = str(error)
    with torch.inference_mode():  # the warm-up, too
        tokens = {name: float(call.run().num_committed.double().mean()) for name, (_, call) in ready.items()}

    def found(taken: Taken) -> Record:
        return {
            "num_nodes": calls.topology.num_drafted + 1,
            "control": median(paired_ratios(taken[PLAIN_PICK], taken[CONTROL])),
            "timed": {
                name: {
                    "temperature": temperature,
                    "draw": call.draw.name.lower(),
                    "logits_bytes": call.logits_bytes,
                    "draft_probs_bytes": call.draft_probs_bytes,
                    "tokens_per_step": tokens[name],
                    "seconds": list(taken[name]),
                }
                for name, (temperature, call) in ready.items()
            },
            "refused": refused,
        }

    runs = {name: call.run for name, (_, call) in ready.items()}
    return Turns(calls={**runs, CONTROL: runs[PLAIN_PICK]}, controls={PLAIN_PICK: CONTROL}, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFigures:
    """One verifier in one cell; times in milliseconds."""

    record: Record
    name: str
    time: Estimate  # of a call
    floor: float  # what reading the bytes that it must read would take
    picks: float  # its time over that of a plain pick, repeat by repeat, median

    @property
    def timed(self) -> Record:
        """What its cell's record says of it."""
        return self.record["timed"][self.name]


def figures_of(records: Sequence[Record]) -> list[VerifierFigures]:
    """Of every verifier in every cell that it was timed in, plain picks first."""
    rates = {record["run"]: record["notes"]["bytes_per_second"] for record in records if record["kind"] == RUN}
    found: list[VerifierFigures] = []
    for record in records:
        timed: Mapping[str, Any] = record.get("timed", {})
        for name, line in timed.items():
            plain = timed[name_of(PLAIN_PICK, line["temperature"])]["seconds"]
            found.append(
                VerifierFigures(
                    record=record,
                    name=name,
                    time=estimate([1000 * value for value in line["seconds"]]),
                    floor=1000 * (line["logits_bytes"] + line["draft_probs_bytes"]) / rates[record["run"]],
                    picks=median(paired_ratios(line["seconds"], plain)),
                )
            )
    return found


COLUMNS: list[Column[VerifierFigures]] = [
    *(Column(None, f"record.{name}", name=name) for name in ("run", "rows", "vocab", "shape", "num_nodes")),
    Column(None, "name", name="verifier"),
    Column(None, lambda line: f"{line.timed['temperature']:g}", name="temperature"),
    Column(None, "timed.draw", name="draw"),
    Column(None, "time", name="ms", estimate=True),
    Column(None, "floor", name="floor_ms"),
    Column(None, lambda line: f"{line.time.value / line.floor:.4g}", name="times_floor"),
    Column(None, lambda line: f"{line.picks:.4g}", name="plain_picks"),
    Column(None, lambda line: f"{line.timed['tokens_per_step']:.4g}", name="tokens_per_step"),
    Column(None, lambda line: len(line.timed["seconds"]), name="repeats"),
    Column(None, lambda line: f"{line.record['control']:.4g}", name="control"),
    Column(None, lambda line: int(is_void([line.record["control"]])), name="void"),
]


def short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierCost(Study):
    """What a call of each verifier costs, by rows, vocabulary and draft. No model runs.

    In a report, --rows and --vocab choose what is shown.
    """

    kind: ClassVar[str] = "verifier"
    title: ClassVar[str] = "Verifiers"

    output: Annotated[Path, option("File of raw figures; what it holds already is not measured again.")] = Path(
        "verifier-cost.jsonl"
    )
    rows: Annotated[tuple[int, ...], counts("Of a call; 1 and 8 by default, and some of many rows.")] = ()
    vocab: Annotated[tuple[int, ...], counts("4096, 32768 and 131072 by default.")] = ()
    k: Annotated[tuple[int, ...], counts("Lengths of chains.")] = (1, 4, 8)
    verifier: Annotated[tuple[str, ...], option("All that are registered by default; may be repeated.")] = ()
    repeats: Repeats = 7
    seconds: Seconds = 2.0
    processor_time: ProcessorTime = False
    quick: Annotated[bool, option("2 rows and a vocabulary of 512, unless given.")] = False

    def work(self) -> list[tuple[Cell, list[Timed]]]:
        """Every cell with the verifiers to time there. Raises ValueError for counts that leave nothing to verify."""
        check_counts(k=self.k)
        names = self.verifier or tuple(VERIFIERS)
        for name in names:
            VERIFIERS.find(name)
        every = [(name, 1.0) for name in names] + [(name, 0.0) for name in COMMON if name in names]
        shapes = [*self.k, 0]
        rows, vocabs = (
            self.rows or ((2,) if self.quick else (1, 8)),
            self.vocab or ((512,) if self.quick else (4096, 32768, 131072)),
        )
        work = [
            (Cell(num_rows=count, vocab_size=vocab, num_draft_tokens=k), every)
            for count in rows
            for vocab in vocabs
            for k in shapes
        ]
        common = [timed for timed in every if timed[0] in COMMON]
        if common and not (self.rows or self.vocab or self.quick):
            work += [(Cell(num_rows=MANY_ROWS, vocab_size=MANY_VOCAB, num_draft_tokens=k), common) for k in self.k]
        return work

    def check(self) -> None:
        """Raise ValueError for counts that mean nothing."""
        self.work()

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        timing = Timing(repeats=self.repeats, seconds=self.seconds, processor_time=self.processor_time)
        work = dict(self.work())
        names = {"repeats": self.repeats, "seconds": self.seconds, "processor_time": self.processor_time}
        choices = {**names, "seed": 0, "spread": SPREAD, "distance": DISTANCE, "verifiers": list(self.verifier)}
        notes = {"bytes_per_second": read_rate(clock=timing.clock)}
        run = raw.begin(conditions_of({}, "float32", **choices), lambda: {**date(), **notes})

        def identify(cell: Cell) -> Record:
            size = {"rows": cell.num_rows, "vocab": cell.vocab_size, "shape": cell.shape}
            return {"kind": self.kind, "run": run, **size}

        time_cells(
            list(work),
            lambda cell: turns_of(Calls(cell), work[cell]),
            raw=raw,
            identify=identify,
            timing=timing,
            warm_up=0,
            say=say,
        )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any]]:
        """For all cells of as many rows and as large a vocabulary, a line for every verifier."""
        cells = self._cells(run, records)
        names = list(dict.fromkeys(name for cell in cells for name in (*cell["timed"], *cell["refused"])))
        figures = {(id(line.record), line.name): line for line in figures_of([run, *cells])}
        sizes = dict.fromkeys((cell["rows"], cell["vocab"]) for cell in cells)
        found: list[Section[Any]] = []
        for rows, vocab in sizes:
            columns: list[Column[str]] = [Column("verifier", str, left=True)]
            for cell in cells:
                if (cell["rows"], cell["vocab"]) == (rows, vocab):
                    columns += self._columns(cell, figures)
            found.append(Section(title=f"{plural(rows)}, vocabulary {vocab:,}", columns=columns, lines=names))
        return found

    def _columns(self, cell: Record, figures: Mapping[Any, VerifierFigures]) -> list[Column[str]]:
        def column(heading: str, get: Callable[[VerifierFigures], Any], form: Callable[[Any], str]) -> Column[str]:
            def value(name: str) -> Any:
                line = figures.get((id(cell), name))
                return None if line is None else get(line)

            return Column(heading, value, form)

        mark = " (void)" if is_void([cell["control"]]) else ""
        return [
            column(f"{cell['shape']}{mark}\nms", lambda line: line.time, _spread),
            column("\nfloors", lambda line: line.time.value / line.floor, short),
            column("\npicks", lambda line: line.picks, short),
        ]

    def _cells(self, run: Record, records: Sequence[Record]) -> list[Record]:
        cells = last_of(records, run["run"], self.kind, lambda cell: (cell["rows"], cell["vocab"], cell["shape"]))
        chosen = [
            cell
            for cell in cells
            if cell["rows"] in (self.rows or [cell["rows"]]) and cell["vocab"] in (self.vocab or [cell["vocab"]])
        ]
        if not chosen:
            sizes = ", ".join(dict.fromkeys(f"{cell['rows']} x {cell['vocab']}" for cell in cells))
            raise ValueError(f"{self.output} has no such cells; its rows and vocabularies: {sizes}")
        return chosen

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """Why some verifiers have a dash in some cells, what the figures are, and how fast memory was read."""
        refused: dict[str, list[str]] = {}
        for cell in self._cells(run, records):
            for name, reason in cell["refused"].items():
                found = refused.setdefault(f"{cell['shape']}: {reason}", [])
                found += [] if name in found else [name]
        return [
            *(f"-: at {place}: {', '.join(names)}" for place, names in refused.items()),
            "T = 1 unless T = 0 is said; (void): a plain pick timed against itself differed by more than 3 %",
            "ms: the median of a call, and how far its 95 % interval goes to the farther side",
            "floors: the time over that of reading, once, the target's logits and the draft's distributions that the "
            f"verifier was given, at the {run['notes']['bytes_per_second'] / 1e9:.1f} GB/s that memory was read with",
            "picks: the time over that of choosing one token for every row, as plain decoding does",
        ]

    def texts(self, records: Sequence[Record]) -> dict[str, str]:
        """A CSV with a line for every verifier in every cell that it was timed in."""
        run = next(record for record in records if record["kind"] == RUN)
        return {".csv": to_csv(COLUMNS, figures_of([run, *self._cells(run, records)]))}


def _spread(time: Estimate) -> str:
    return f"{short(time.value)} ±{max(time.high - time.value, time.value - time.low) / time.value:.0%}"
