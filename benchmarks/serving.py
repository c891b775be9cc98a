"""What does a server add to the time of a token, and how soon is it ready?

A client reads a stream, one request at a time, from ``paceline serve`` in a process of its own; beside it, in turn, the
same engine decodes the same prompt in this process. Both write the same text. A start is timed from the process's first
moment until it answers.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, final
from urllib.parse import urlsplit

from benchmarks.study import (
    Draft,
    Precision,
    Progress,
    Study,
    Taken,
    Target,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    date,
    named,
    option,
    pair_of,
    run_cells,
    time_cells,
)
from paceline.api import Engine, load
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import estimate, paired_ratios

OFFLINE, AGAIN, SERVED, START = "offline", "offline again", "served", "start"
NONE, MODEL = "none", "model"
PROMPT = "def quicksort(items):\n"
ROWS, DRAFT_TOKENS = 8, 4
SECONDS = 120.0  # that a server may take to be ready, or to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is measured: the tokens of a request with a drafter, or a start."""

    what: str
    drafter: str
    num_tokens: int

    @property
    def name(self) -> str:
        return START if self.what == START else f"{self.num_tokens} tokens, drafter: {self.drafter}"


def words_of(paths: Sequence[Path], drafter: str, dtype: str) -> list[str]:
    """The command that serves one of them, drafted for by the other or not, at any free port."""
    drafting = ["--drafter", NONE] if drafter == NONE else ["--draft", paths[1], "--num-draft-tokens", DRAFT_TOKENS]
    words = [sys.executable, "-m", "paceline", "serve", paths[0], *drafting, "--dtype", dtype, "--threads", 1]
    return [str(word) for word in (*words, "--max-num-seqs", ROWS, "--port", 0)]


@contextmanager
def serving(words: Sequence[str]) -> Iterator[HTTPConnection]:
    """A connection to the server that ``words`` start, which is ready. Raises RuntimeError where it is not."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            while not said or not said[-1].startswith("Paceline serves "):
                said.append(process.stderr.readline())
                if not said[-1]:
                    raise RuntimeError(f"the server did not start: {''.join(said)}")
            address = urlsplit(said[-1].split()[-1])
            connection = HTTPConnection(str(address.hostname), address.port, timeout=SECONDS)
            connection.request("GET", "/health")
            connection.getresponse().read()
            with closing(connection):
                yield connection
        finally:
            process.terminate()
            process.wait(SECONDS)


def start(words: Sequence[str], found: list[float]) -> None:
    """Add to ``found`` the seconds until a server answers, and end it."""
    began = time.perf_counter()
    with serving(words):
        found.append(time.perf_counter() - began)


def read_stream(connection: HTTPConnection, num_tokens: int) -> str:
    """The text of a stream of so many tokens."""
    body = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    texts: list[str] = []
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            texts.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(texts)


@final
class Sides:
    """Both ways to decode, one call each."""

    def __init__(self, cell: Cell, connection: HTTPConnection, engine: Engine) -> None:
        self.cell, self.connection, self.engine = cell, connection, engine
        self.texts: set[str] = set()

    def offline(self) -> None:
        """In this process."""
        pieces = self.engine.submit(PROMPT, max_tokens=self.cell.num_tokens, temperature=0, ignore_eos=True)
        self.texts.add("".join(piece.text for piece in pieces))

    def served(self) -> None:
        """By the server."""
        self.texts.add(read_stream(self.connection, self.cell.num_tokens))

    def found(self, taken: Taken) -> Record:
        """The seconds. Raises RuntimeError where the texts differ."""
        if len(self.texts) > 1:
            raise RuntimeError(f"{self.cell.name}: the server and the engine wrote different texts; please report it")
        return {"seconds": {name: list(values) for name, values in taken.items()}}

    @property
    def turns(self) -> Turns:
        """Both, in turn, and the engine again."""
        calls = {OFFLINE: self.offline, SERVED: self.served, AGAIN: self.offline}
        return Turns(calls=calls, controls={OFFLINE: AGAIN}, found=self.found)


def _per_token(name: str) -> Any:
    """Milliseconds of a token."""
    return lambda record: 1000 * estimate(record["seconds"][name]).value / record["cell"]["num_tokens"]


def overhead(record: Record) -> Any:
    """Milliseconds that the server adds to a token."""
    pairs = zip(record["seconds"][SERVED], record["seconds"][OFFLINE], strict=True)
    return estimate([1000 * (served - offline) / record["cell"]["num_tokens"] for served, offline in pairs])


def control(record: Record) -> float:
    """The engine without a server against itself: the median ratio of pairs, by which a record is void."""
    return median(paired_ratios(record["seconds"][OFFLINE], record["seconds"][AGAIN]))


def unless_void(get: Callable[[Record], Any], spec: str) -> Callable[[Record], str | None]:
    """What ``get`` finds in a record, as ``spec`` formats it; the word "void" where the control failed."""

    def text(record: Record) -> str | None:
        value = None if record.get("void") else get(record)
        return "void" if record.get("void") else None if value is None else format(value, spec)

    return text


TOKENS: list[Column[Record]] = [
    Column("drafter", "cell.drafter", left=True),
    Column("tokens", "cell.num_tokens"),
    Column("offline ms", _per_token(OFFLINE), ".3f"),
    Column("served ms", _per_token(SERVED), ".3f"),
    Column("overhead ms", unless_void(overhead, ".3f")),
    Column("control", control, ".3f"),
]
STARTS: list[Column[Record]] = [
    Column("until it answers, s", lambda record: estimate(record["seconds"][START]), ".2f"),
    Column("starts", lambda record: len(record["seconds"][START])),
]
NOTES = [
    "overhead: time of a token that a client reads, less that of one of the same engine without a server, at one "
    "request at a time; median [95 % interval] of paired repeats",
    "until it answers: from the start of the process, Python's own included, with the models in the system's cache and "
    "Python's modules compiled",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(Study):
    """What does a server add to the time of a token, and how soon is it ready?

    A client reads streams of `paceline serve`, and the same engine decodes the same prompt beside it, in turn.
    """

    kind: ClassVar[str] = "serving"
    title: ClassVar[str] = "Serving"

    target: Target = None
    draft: Draft = None
    dtype: Precision = "float32"
    num_tokens: Annotated[int, option("Tokens of a request.")] = 256
    repeats: Annotated[int, option("Of every request.")] = 15
    starts: Annotated[int, option("Of the process.")] = 5

    def check(self) -> None:
        """Raise ValueError for counts that leave nothing."""
        check_counts(num_tokens=self.num_tokens, repeats=self.repeats, starts=self.starts)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = pair_of(self.target, self.draft)
        run = raw.begin(conditions_of(named(paths), self.dtype, rows=ROWS, draft_tokens=DRAFT_TOKENS), date)
        keep = partial(time_cells, raw=raw, identify=run_cells(self.kind, run), say=say)
        seconds = list[float]()
        keep(
            [Cell(what=START, drafter=MODEL, num_tokens=0)],
            lambda _: Turns(
                calls={START: partial(start, words_of(paths, MODEL, self.dtype), seconds)},
                controls={},
                found=lambda taken: {"seconds": {START: seconds[-len(taken[START]) :]}},
            ),
            timing=Timing(repeats=self.starts, seconds=0.0),
        )
        target = load(paths[0], dtype=self.dtype, device="cpu")
        draft = load(paths[1], dtype=self.dtype, device="cpu")
        for drafter in (NONE, MODEL):
            cell = Cell(what=SERVED, drafter=drafter, num_tokens=self.num_tokens)
            engine = Engine(
                target,
                drafter=draft if drafter == MODEL else None,
                num_draft_tokens=DRAFT_TOKENS if drafter == MODEL else "auto",
                batch_size=ROWS,
            )
            with serving(words_of(paths, drafter, self.dtype)) as connection:
                keep(
                    [cell],
                    lambda cell, connection=connection, engine=engine: Sides(cell, connection, engine).turns,
                    timing=Timing(repeats=self.repeats, seconds=0.0),
                )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """Starts, and tokens."""
        found = self.last(run, records)
        lines = {what: [one for one in found if one["cell"]["what"] == what] for what in (START, SERVED)}
        return [
            Section(title="ready", columns=STARTS, lines=lines[START]),
            Section(title="one client, time of a token", columns=TOKENS, lines=lines[SERVED]),
        ]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return NOTES
