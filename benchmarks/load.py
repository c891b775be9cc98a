"""Does a server stay right, and its memory flat, under many clients of mixed requests; and what does it cost?

Clients ask ``paceline serve``, in a process of its own, for whole answers and streams with all sorts of options, and
some leave in the middle. Then every finished answer is decoded again by a plain engine in this process: the texts must
be equal. Beside that, eight clients that stream are timed against the same engine without a server, and against vLLM's.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any, ClassVar

import psutil

from benchmarks.load_clients import Answered, besiege, stream_all
from benchmarks.load_report import NOTES, RATES, SOAKS, VLLM, in_blocks, percentiles
from benchmarks.load_vllm import vllm_serving
from benchmarks.serving import (
    AGAIN,
    DRAFT_TOKENS,
    MODEL,
    NONE,
    OFFLINE,
    SERVED,
    serving,
    words_of,
)
from benchmarks.study import (
    Draft,
    Precision,
    Progress,
    Study,
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
from paceline.api import Engine, SamplingParams, load
from paceline.bench.columns import Section
from paceline.bench.peers.vllm import VARIABLE
from paceline.bench.raw import RawFile, Record

SOAK, RATE = "soak", "rate"
PROMPT = "def quicksort(items):\n"
MIB = 1 << 20
EVERY = 1.0  # seconds between two of them
SECONDS = 90.0  # that all calls of a rate take, at least
TOGETHER = 256  # answers that are decoded again together
SETTLING = 10.0  # seconds in which rows must be free again


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A siege, or the rate of so many clients with a drafter, beside vLLM in the precision ``vllm`` (None: without)."""

    what: str
    drafter: str
    num_clients: int
    vllm: str | None = None

    @property
    def name(self) -> str:
        beside = "" if self.vllm is None else f", vLLM in {self.vllm}"
        return f"{self.what}, {self.num_clients} clients, drafter: {self.drafter}{beside}"


class Memory(threading.Thread):
    """Samples what a process occupies, [seconds, MiB], until it is stopped."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.samples, self.over = psutil.Process(process), list[tuple[float, float]](), threading.Event()

    def run(self) -> None:
        begin = time.monotonic()
        while not self.over.wait(EVERY):
            self.samples.append((time.monotonic() - begin, self.process.memory_info().rss / MIB))


def differences(answered: Sequence[Answered], engine: Engine) -> list[str]:
    """Finished answers that are not the engine's, in words."""
    wrong: list[str] = []
    finished = [one for one in answered if one.texts is not None]
    for start in range(0, len(finished), TOGETHER):
        group = finished[start : start + TOGETHER]
        streams = [engine.submit(one.asked.prompt, SamplingParams(**one.asked.options)) for one in group]
        for one, stream in zip(group, streams, strict=True):
            results = stream.drain()
            texts, count = [result.text for result in results], sum(len(result.token_ids) for result in results)
            if texts != one.texts or count != one.num_tokens:
                said = f"{one.texts!r} of {one.num_tokens}"
                wrong.append(f"request {one.asked.number}: {said}, offline {texts!r} of {count}")
    return wrong


def num_running(connection: HTTPConnection) -> int:
    """Requests that the server has, after it had time to let those go whose clients have left."""
    end = time.monotonic() + SETTLING
    while True:
        connection.request("GET", "/load")
        found = int(json.loads(connection.getresponse().read())["server_load"])
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Study):
    """Does a server stay right, and its memory flat, under many clients of mixed requests; and what does it cost?"""

    kind: ClassVar[str] = "load"
    title: ClassVar[str] = "Load"

    target: Target = None
    draft: Draft = None
    dtype: Precision = "float32"
    minutes: Annotated[float, option("Of the siege; 0 leaves it out.")] = 20.0
    clients: Annotated[int, option("Of the siege.")] = 32
    streams: Annotated[int, option("Clients whose rate is measured.")] = 8
    num_tokens: Annotated[int, option("Of each of their requests.")] = 128
    repeats: Annotated[int, option("Of these.")] = 9
    vllm: Annotated[Path | None, option(f"Python of vLLM, whose server is timed too; or {VARIABLE}.")] = None
    vllm_dtype: Annotated[Precision | None, option("Of vLLM; that of --dtype where it is not given.")] = None

    def check(self) -> None:
        """Raise ValueError for counts that leave nothing."""
        check_counts(clients=self.clients, streams=self.streams, num_tokens=self.num_tokens, repeats=self.repeats)
        if not self.minutes >= 0:
            raise ValueError(f"--minutes {self.minutes}: give a number of at least 0")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = pair_of(self.target, self.draft)
        conditions = conditions_of(named(paths), self.dtype, rows=self.streams, draft_tokens=DRAFT_TOKENS)
        run = raw.begin(conditions, date)
        keep = partial(time_cells, raw=raw, identify=run_cells(self.kind, run), say=say)
        if self.minutes:
            cell = Cell(what=SOAK, drafter=MODEL, num_clients=self.clients)
            found: list[Record] = []
            soak = partial(self._soak, paths, found, say)
            turns = Turns(calls={SERVED: soak}, controls={}, found=lambda taken: found[-1])
            keep([cell], lambda _: turns, timing=Timing(repeats=1, seconds=0.0), warm_up=0)
        for drafter in (NONE, MODEL):
            beside = None if self._python is None else self.vllm_dtype or self.dtype
            cell = Cell(what=RATE, drafter=drafter, num_clients=self.streams, vllm=beside)
            with ExitStack() as stack:
                keep([cell], partial(self._rates, paths, stack), timing=Timing(repeats=self.repeats, seconds=SECONDS))

    @property
    def _python(self) -> Path | None:
        given = self.vllm or os.environ.get(VARIABLE)
        return None if given is None else Path(given)

    def _soak(self, paths: Sequence[Path], found: list[Record], say: Progress) -> None:
        with serving(words_of(paths, MODEL, self.dtype)) as connection:
            owner = next(one.pid for one in psutil.Process().children() if "serve" in one.cmdline())
            memory = Memory(owner)
            memory.start()
            url, seconds = f"http://{connection.host}:{connection.port}", 60 * self.minutes
            answered = asyncio.run(besiege(url, num_clients=self.clients, seconds=seconds))
            memory.over.set()
            connection.close()
            running = num_running(connection)
        say("comparing every answer with the offline engine's")
        engine = Engine(load(paths[0], dtype=self.dtype, device="cpu"), drafter="none", batch_size=16)
        wrong = differences(answered, engine)
        failed = [one.error for one in answered if one.error is not None]
        finished = [one for one in answered if one.texts is not None]
        first = [one.first for one in answered if one.first is not None]
        per_token = [one.per_token for one in answered if one.per_token is not None]
        found.append(
            {
                "seconds_run": seconds,
                "finished": len(finished),
                "left": len(answered) - len(finished) - len(failed),
                "failed": len(failed),
                "failures": failed[:5],
                "different": len(wrong),
                "differences": wrong[:5],
                "running": running,
                "memory": memory.samples,
                "first": percentiles(first),
                "first_blocks": in_blocks(first),
                "per_token": percentiles(per_token),
                "per_token_blocks": in_blocks(per_token),
                "gaps": percentiles([gap for one in answered for gap in one.gaps]),
            }
        )

    def _rates(self, paths: Sequence[Path], stack: ExitStack, cell: Cell) -> Turns:
        prompts = [PROMPT] * cell.num_clients
        body: dict[str, Any] = {"max_tokens": self.num_tokens, "temperature": 0.0, "ignore_eos": True}
        options = SamplingParams(**body)
        target = load(paths[0], dtype=self.dtype, device="cpu")
        draft = load(paths[1], dtype=self.dtype, device="cpu") if cell.drafter == MODEL else None
        count = DRAFT_TOKENS if cell.drafter == MODEL else "auto"
        engine = Engine(target, drafter=draft, num_draft_tokens=count, batch_size=cell.num_clients)
        connection = stack.enter_context(serving(words_of(paths, cell.drafter, self.dtype)))
        url = f"http://{connection.host}:{connection.port}"

        def offline() -> None:
            engine.submit(prompts, options).drain()

        calls = {OFFLINE: offline, SERVED: lambda: _stream(url, prompts, body), AGAIN: offline}
        if self._python is not None and cell.vllm is not None:
            other = vllm_serving(self._python, paths, cell.drafter, cell.vllm, cell.num_clients)
            theirs = stack.enter_context(other)
            calls[VLLM] = lambda: _stream(theirs, prompts, {**body, "model": "model"})
        total = cell.num_clients * self.num_tokens
        return Turns(
            calls=calls,
            controls={OFFLINE: AGAIN},
            found=lambda taken: {"seconds": {name: list(one) for name, one in taken.items()}, "num_tokens": total},
        )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """The siege, and rates."""
        found = self.last(run, records)
        lines = {what: [one for one in found if one["cell"]["what"] == what] for what in (SOAK, RATE)}
        sections = [
            Section(title="many clients, mixed requests", columns=SOAKS, lines=lines[SOAK]),
            Section(title="clients that stream", columns=RATES, lines=lines[RATE]),
        ]
        return [section for section in sections if section.lines]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are, and what went wrong."""
        soaks = [one for one in self.last(run, records) if one["cell"]["what"] == SOAK]
        return [*NOTES, *(line for one in soaks for line in (*one["failures"], *one["differences"]))]


def _stream(url: str, prompts: Sequence[str], body: dict[str, Any]) -> None:
    count = asyncio.run(stream_all(url, prompts, body))
    if count != len(prompts) * body["max_tokens"]:
        raise RuntimeError(f"{url} wrote {count} tokens, not {len(prompts) * body['max_tokens']}")
