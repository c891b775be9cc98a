"""What the studies share: their options, how cells are timed and kept, and how figures are shown.

A study is a file: cells, the calls that are timed in turn for each of them, and columns of what was found.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import torch
from cyclopts import Parameter, Token
from rich.console import Console
from rich.table import Table

from paceline.api import Loaded, embedded_pair
from paceline.bench.columns import Section
from paceline.bench.machine import describe, hash_source
from paceline.bench.raw import RUN, RawFile, Record, hash_model
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import Clock, time_in_turn
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM

WIDTH = 150  # of the tables where there is no terminal

Progress = Callable[[str], None]


def option(help: str, **given: Any) -> Any:
    """An option's help, for an annotation."""
    return Parameter(help=help, negative="", **given)


def read_counts(type_: object, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Counts such as "1,2,8-10". Raises ValueError for anything else."""
    found: list[int] = []
    for token in tokens:
        for part in token.value.split(","):
            first, _, last = part.strip().partition("-")
            if not first.isdigit() or not (last or first).isdigit():
                raise ValueError(f"{token.value}: give numbers such as 1,2,4 or 1-8")
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(dict.fromkeys(found))


def counts(help: str, **given: Any) -> Any:
    """An option of several counts, such as "1,2,8-10"; may be repeated too."""
    return Parameter(help=help, converter=read_counts, negative="", **given)


Target = Annotated[Path | None, option("Directory of the target; the embedded pair by default.")]
Draft = Annotated[Path | None, option("Directory of its draft model.")]
Precision = Annotated[Literal["bfloat16", "float32"], option("Precision.")]
Suite = Annotated[str, option("Prompts, as those of paceline bench.")]
Repeats = Annotated[int, option("Of every call at least.")]
Seconds = Annotated[float, option("That the repeats of a cell take at least.")]
ProcessorTime = Annotated[bool, option("Count what one thread computed, where other programs run.")]
Threads = Annotated[int | None, option("Of torch; its own choice by default.")]


def check_counts(least: int = 1, **given: int | Sequence[int]) -> None:
    """Raise ValueError for numbers below ``least``, or none."""
    for name, values in given.items():
        several = [values] if isinstance(values, int) else list(values)
        if not several or min(several) < least:
            raise ValueError(f"{name}={values}: give at least {least}")


def check_temperatures(temperatures: Sequence[float]) -> None:
    """Raise ValueError for one below 0, or none."""
    if not temperatures or min(temperatures) < 0:
        raise ValueError(f"temperatures={temperatures}: give at least one, of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often a call is timed, ``repeats`` at least and more until those of a group took ``seconds``, and by what.

    ``processor_time`` counts what the one thread computed, not what passed. Raises ValueError for fewer repeats than 1,
    less than no seconds, and processor time on several threads.
    """

    repeats: int = 7
    seconds: float = 10.0
    processor_time: bool = False

    def __post_init__(self) -> None:
        check_counts(repeats=self.repeats)
        if not self.seconds >= 0:
            raise ValueError(f"seconds={self.seconds}: give 0 or more")
        if self.processor_time and torch.get_num_threads() > 1:
            raise ValueError(f"processor time of {torch.get_num_threads()} threads is the sum of theirs: take one")

    @property
    def clock(self) -> Clock:
        return time.process_time if self.processor_time else time.perf_counter


def date() -> dict[str, object]:
    """The notes of a run: when it was."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")}


def conditions_of(
    models: Mapping[str, Path] | Mapping[str, Path | None], dtype: torch.dtype | str, **choices: object
) -> Record:
    """What must be equal for figures to belong together: ``models`` by what they are for, and the study's choices."""
    return {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "dtype": dtype if isinstance(dtype, str) else dtype_name(dtype),
        **{use: path and {"name": path.name, "hash": hash_model(path)} for use, path in models.items()},
        **choices,
    }


def pair_of(target: Path | None, draft: Path | None) -> tuple[Path, Path]:
    """Directories of target and draft; the embedded pair by default. Raises ValueError for one of them alone."""
    if target is None and draft is None:
        return embedded_pair()
    if target is None or draft is None:
        raise ValueError("--target and --draft: give both, or neither for the embedded pair")
    return target, draft


def named(paths: Sequence[Path]) -> dict[str, Path]:
    """Directories of target and draft, by what they are for."""
    return {"target": paths[0], "draft": paths[1]}


def native(loaded: Loaded, path: Path) -> DecoderLM:
    """The model's decoder. Raises ValueError where transformers' own code runs it."""
    if not isinstance(loaded.lm, DecoderLM):
        raise ValueError(f"{path}: transformers' own code runs all layers; give a natively known model")
    return loaded.lm


def sound(records: Sequence[Record]) -> list[Record]:
    """Those whose control held."""
    return [record for record in records if not record["void"]]


class Cell(Protocol):
    """What is measured and recorded at once: a frozen dataclass."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Cell)


def missing(
    raw: RawFile, cells: Sequence[C], identify: Callable[[C], Record], say: Progress
) -> Iterator[tuple[C, Record]]:
    """The cells that ``raw`` does not hold of a quiet machine, with the fields that their records are known by."""
    for number, cell in enumerate(cells, start=1):
        identity = identify(cell)
        if not raw.has(identity):
            say(f"{cell.name} ({number} of {len(cells)})")
            yield cell, identity


Taken = Mapping[str, Sequence[float]]  # seconds of every repeat, by call


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What is timed in turn for a cell.

    ``before`` runs untimed before a call's turn. ``controls`` are calls of the same work by two names: where they
    differ by over 3 %, the machine was not quiet. ``found`` makes of the seconds what the cell's record says.
    """

    calls: Mapping[str, Callable[[], object]]
    found: Callable[[Taken], Record]
    controls: Mapping[str, str]
    before: Mapping[str, Callable[[], object]] | None = None


def time_cells(
    cells: Sequence[C],
    prepare: Callable[[C], Turns],
    *,
    raw: RawFile,
    identify: Callable[[C], Record],
    timing: Timing,
    say: Progress = lambda _: None,
    warm_up: int = 1,
) -> None:
    """Put into ``raw`` what it lacks of ``cells``: what ``prepare`` makes of a cell is timed in turn."""
    for cell, identity in missing(raw, cells, identify, say):
        turns = prepare(cell)
        taken = time_in_turn(
            turns.calls,
            before=turns.before,
            repeats=timing.repeats,
            seconds=timing.seconds,
            warm_up=warm_up,
            clock=timing.clock,
        )
        void = any(is_void(paired_ratios(taken[name], taken[again])) for name, again in turns.controls.items())
        raw.append({**identity, "void": void, **turns.found(taken)})


def run_cells(kind: str, run: str) -> Callable[[Any], Record]:
    """Identities of cells that are dataclasses."""
    return lambda cell: {"kind": kind, "run": run, "cell": asdict(cell)}


def last_of(records: Sequence[Record], run: str, kind: str, key: Callable[[Record], Any]) -> list[Record]:
    """The last measurement of every ``key`` in a run, one whose control held if there is one."""
    chosen: dict[Any, Record] = {}
    for record in records:
        if record["kind"] == kind and record["run"] == run:
            found = chosen.get(key(record))
            if found is None or found.get("void") or not record.get("void"):
                chosen[key(record)] = record
    return list(chosen.values())


def plural(count: int, what: str = "row") -> str:
    """ "1 row" or "2 rows"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(ABC):
    """A study whose raw figures are kept in a file, and continued if it is there."""

    kind: ClassVar[str]  # of the records that its tables are made of
    title: ClassVar[str]  # of its drawing
    needs: ClassVar[tuple[str, ...]] = ()  # optional packages without which it cannot be shown

    output: Annotated[Path, option("File of raw figures; what it holds already is not measured again.")]
    report: Annotated[bool, option("Measure nothing: show what the file holds.")] = False
    threads: Annotated[int | None, option("Of torch.")] = 1

    def check(self) -> None:  # noqa: B027
        """Raise ValueError for options that mean nothing, before anything is read."""

    @abstractmethod
    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""

    @abstractmethod
    def sections(self, run: Record, records: Sequence[Record]) -> Sequence[Section[Any] | Table]:
        """The tables of one run."""

    def last(self, run: Record, records: Sequence[Record]) -> list[Record]:
        """The last measurement of every cell in a run, one whose control held if there is one."""
        return last_of(records, run["run"], self.kind, lambda record: tuple(record["cell"].items()))

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are, and what follows from them."""
        return []

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str | None:
        """The SVG drawing of one run; matplotlib is there."""
        return None

    def texts(self, records: Sequence[Record]) -> Mapping[str, str]:
        """Files to be written beside the raw figures, by their suffixes."""
        return {}

    def run(self) -> int:
        """Measure what the file lacks, unless only a report is asked for, and show what it holds; the exit code."""
        self.check()
        if self.threads is not None:
            check_counts(threads=self.threads)
        lacking = " ".join(package for package in self.needs if find_spec(package) is None)
        if lacking:
            raise ValueError(f"this study needs {lacking}: run pip install {lacking}")
        raw = RawFile(self.output)
        if not self.report:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            with Console(stderr=True, highlight=False).status("measuring ...") as status:
                self.measure(raw, status.update)
        self.show(raw.records)
        return 0

    def show(self, records: Sequence[Record]) -> None:
        """Print the tables of ``records`` and write what lies beside the file. Raises ValueError for no figures."""
        measured = {record["run"] for record in records if record["kind"] == self.kind}
        runs = [record for record in records if record["kind"] == RUN and record["run"] in measured]
        if not runs:
            raise ValueError(f"{self.output} holds no figures of this study; measure some first, without --report")
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        of_run = {run["run"]: [record for record in records if record["run"] == run["run"]] for run in runs}
        for run in runs:
            console.print(self.header(run), soft_wrap=True, markup=False)
            for section in self.sections(run, of_run[run["run"]]):
                console.print(section.table() if isinstance(section, Section) else section)
                console.print()
        for line in self.notes(runs[-1], of_run[runs[-1]["run"]]):
            console.print(line, soft_wrap=True, markup=False)
        written = list(self._write(runs[-1], of_run[runs[-1]["run"]]))
        files = f"; written: {', '.join(map(str, written))}" if written else ""
        console.print(f"raw figures: {self.output}{files}", soft_wrap=True, markup=False)

    def header(self, run: Record) -> str:
        """The conditions of a run in words."""
        conditions = run["conditions"]
        names = " with ".join(conditions[use]["name"] for use in ("target", "draft") if conditions.get(use))
        clock = ", processor time" if conditions.get("processor_time") else ""
        machine = conditions["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
        return (
            f"{names and f'{names}, '}{conditions['dtype']}, threads: {conditions['num_threads']}{clock}; "
            f"{machine['processor']}, {machine['num_cores']} cores; {versions}\n"
        )

    def _write(self, run: Record, records: Sequence[Record]) -> Iterator[Path]:
        texts = dict(self.texts(records))
        if find_spec("matplotlib") is not None:
            name = run["conditions"].get("target") or {"name": ""}
            about = ", ".join(filter(None, (name["name"], run["conditions"]["dtype"])))
            drawing = self.draw(run, records, title=f"{self.title}: {about}")
            texts |= {} if drawing is None else {".svg": drawing}
        for suffix, text in texts.items():
            self.output.with_suffix(suffix).write_text(text, encoding="utf-8")
            yield self.output.with_suffix(suffix)
