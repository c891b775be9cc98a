"""What further workers of a cluster add: the same requests by one and by several engines of one thread each."""

# Ray is an extra, and its decorators have no types.
# pyright: reportMissingImports=false

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar

from benchmarks.study import (
    Draft,
    Progress,
    Study,
    Taken,
    Target,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    counts,
    date,
    named,
    option,
    pair_of,
    plural,
    run_cells,
    sound,
    time_cells,
)
from paceline.api import Engine, load
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import estimate
from paceline.cli.batch_file.on_ray import AT_ONCE, Worker
from paceline.serve.settings import Settings

WORK, AGAIN = "work", "work, again"
PROMPT = "def function_{}(first, second):"
HUNDRED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """So many workers, of so many rows each. Raises ValueError for counts below 1."""

    num_workers: int
    num_rows: int

    def __post_init__(self) -> None:
        check_counts(**asdict(self))

    @property
    def name(self) -> str:
        return f"{plural(self.num_workers, 'worker')} of {plural(self.num_rows)}"


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Workers on this machine, and the requests that they answer."""

    cell: Cell
    workers: Sequence[Any]
    requests: Sequence[dict[str, Any]]

    def work(self) -> int:
        """Answer all requests, blocks in turn to whoever is free; the tokens that were written."""
        from ray.util import ActorPool

        pool = ActorPool([worker for worker in self.workers for _ in range(AT_ONCE)])
        size = AT_ONCE * self.cell.num_rows
        parts = [self.requests[at : at + size] for at in range(0, len(self.requests), size)]
        blocks = [{name: [row[name] for row in part] for name in ("index", "request")} for part in parts]
        done = pool.map_unordered(lambda worker, block: worker.__call__.remote(block), blocks)
        bodies = [json.loads(text)[1] for block in done for text in block["answer"]]
        return sum(body["usage"]["completion_tokens"] for body in bodies)


def _engine(target: str, draft: str, dtype: str, rows: int) -> Engine:
    loaded = load(target, dtype=dtype)
    return Engine(loaded, drafter=load(draft, dtype=loaded.dtype), batch_size=rows, max_length=512)


def _rate(record: Record) -> Any:
    return estimate([record["num_tokens"] / seconds for seconds in record["seconds"][WORK]])


COLUMNS: list[Column[Record]] = [
    Column("workers", "cell.num_workers"),
    Column("rows of each", "cell.num_rows"),
    Column("tokens/s", _rate, ".1f"),
    Column("of a worker", lambda record: _rate(record).value / record["cell"]["num_workers"], ".1f"),
    Column("control", lambda record: "void" if record["void"] else "held"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas(Study):
    """What further workers of a cluster add.

    Every worker is a process of Ray's with an engine of one thread. All workers together answer the same requests, as
    `paceline batch run --ray` lets them; loading is not timed. Needs Ray, and a core for every worker.
    """

    kind: ClassVar[str] = "replicas"
    title: ClassVar[str] = "Workers of a cluster"

    target: Target = None
    draft: Draft = None
    workers: Annotated[tuple[int, ...], counts("Workers.")] = (1, 2)
    batch: Annotated[tuple[int, ...], counts("Rows of a worker.")] = (8,)
    num_requests: Annotated[int, option("Requests.")] = 128
    max_tokens: Annotated[int, option("Tokens of every answer.")] = 64
    repeats: Annotated[int, option("Of every call.")] = 9
    dtype: Annotated[str, option("Precision.")] = "float32"

    def check(self) -> None:
        """Raise ValueError for counts below 1, and without Ray."""
        check_counts(num_requests=self.num_requests, max_tokens=self.max_tokens, repeats=self.repeats)
        self.cells()

    def cells(self) -> list[Cell]:
        """All combinations."""
        return [Cell(num_workers=workers, num_rows=rows) for rows, workers in product(self.batch, self.workers)]

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        try:
            import ray
        except ImportError as error:
            raise ValueError("the study needs Ray: run pip install 'paceline[ray]'") from error
        paths = pair_of(self.target, self.draft)
        work = {"num_requests": self.num_requests, "max_tokens": self.max_tokens}
        run = raw.begin(conditions_of(named(paths), self.dtype, **work), date)
        ray.init(address="local", num_cpus=max(self.workers) + 1, include_dashboard=False, log_to_driver=False)
        try:
            time_cells(
                self.cells(),
                partial(self._turns, make=partial(_engine, str(paths[0]), str(paths[1]), self.dtype)),
                raw=raw,
                identify=run_cells(self.kind, run),
                timing=Timing(repeats=self.repeats, seconds=0.0),
                say=say,
            )
        finally:
            ray.shutdown()

    def _turns(self, cell: Cell, *, make: Any) -> Turns:
        import ray

        bodies = [
            {"prompt": PROMPT.format(number), "max_tokens": self.max_tokens, "seed": number, "ignore_eos": True}
            for number in range(self.num_requests)
        ]
        requests = [
            {"index": number, "request": json.dumps(["/v1/completions", body])} for number, body in enumerate(bodies)
        ]
        options = {"num_cpus": 1, "max_concurrency": AT_ONCE}
        given = (partial(make, rows=cell.num_rows), Settings(names=("it",)), AT_ONCE**2 * cell.num_rows)
        workers = [ray.remote(**options)(Worker).remote(*given) for _ in range(cell.num_workers)]
        cluster = _Cluster(cell, workers, requests)
        num_tokens = cluster.work()  # once all are there

        def found(taken: Taken) -> Record:
            for worker in workers:
                ray.kill(worker)
            return {"num_tokens": num_tokens, "seconds": {name: list(values) for name, values in taken.items()}}

        return Turns(calls={WORK: cluster.work, AGAIN: cluster.work}, controls={WORK: AGAIN}, found=found)

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """A line for every cell."""
        return [Section(title="one thread each", columns=COLUMNS, lines=self.last(run, records))]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What follows for a hundred workers, of cells whose control held."""
        held = sound(self.last(run, records))
        rates = {(c["cell"]["num_rows"], c["cell"]["num_workers"]): _rate(c) for c in held}
        notes = ["tokens/s: of all workers together, the median [95 % interval] of the repeats; loading is not timed"]
        for rows in self.batch:
            one, most = rates.get((rows, 1)), max((n for r, n in rates if r == rows), default=1)
            if one is None or most == 1:
                continue
            kept = rates[rows, most].value / (most * one.value)
            serial = max(0.0, (1 / kept - 1) / (most - 1))  # Amdahl: time that is not divided
            times = HUNDRED / (1 + serial * (HUNDRED - 1))
            notes.append(
                f"{plural(rows)}: {most} workers keep {kept:.0%} of what each gives alone. If what is lost is a serial "
                f"share ({serial:.1%}), {HUNDRED} give {times:.0f} times one: {times * one.value:.0f} tokens/s, and "
                f"{HUNDRED * 1e6 / 3600 / (times * one.value):.1f} core hours for a million tokens"
            )
        return notes
