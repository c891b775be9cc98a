"""Requests of a file through the engines of a Ray cluster: Ray Data hands blocks of them to workers that each hold an
engine, starts a lost worker anew and gives its blocks to it or to others.
"""

# Ray is an extra, and its decorators have no types.
# pyright: reportMissingImports=false

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar, final

from paceline.api import Engine
from paceline.api.async_engine import AsyncEngine
from paceline.cli.batch_file.lines import BatchLine
from paceline.cli.batch_file.work import Put, answer_line
from paceline.core.stats import Summary
from paceline.serve.generation import Server
from paceline.serve.settings import Settings

LOCAL = "local"  # the address that starts a cluster on this machine, for this run
AT_ONCE = 2  # blocks that a worker has: one keeps the rows full while the other ends
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where requests are answered, by how many workers, and what each of them takes."""

    address: str
    workers: int = 1
    cpus: int = 1
    gpus: float = 0


def work_through_on_ray(
    cluster: Cluster,
    make: Callable[[], Engine],
    settings: Settings,
    lines: Iterable[BatchLine],
    put: Put,
    *,
    block: int,
) -> None:
    """Answer ``lines`` as ``work_through`` does, ``block`` of them at a time by workers that each ``make`` an engine.

    Of a block that was begun twice, because its worker was lost, ``put`` is called once. Raises ValueError where there
    is no cluster, and RuntimeError if answers are missing in the end.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError("--ray: it needs Ray; pip install 'paceline[ray]'") from error
    local = {"num_cpus": cluster.workers * cluster.cpus + 1, "include_dashboard": False}
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(local if cluster.address == LOCAL else {}),
        )
    except Exception as error:  # of no common class
        raise ValueError(f"--ray {cluster.address}: no cluster there ({error}); start one, or give {LOCAL}") from error
    try:
        open_lines: dict[int, BatchLine] = {}
        for row in _answers(cluster, make, settings, _sent(lines, open_lines, put), block):
            line = open_lines.pop(row["index"], None)
            if line is not None:
                status, body, counts = json.loads(row["answer"])
                put(line, (status, body, None if counts is None else Summary(**counts)))
        if open_lines:
            raise RuntimeError(f"{len(open_lines)} requests have no answer: run the same command again")
    finally:
        ray.shutdown()


def _sent(lines: Iterable[BatchLine], open_lines: dict[int, BatchLine], put: Put) -> Iterator[dict[str, Any]]:
    """The rows of ``lines``, which without their bodies become ``open_lines``."""
    for line in lines:
        if line.error is not None:
            put(line, None)
            continue
        open_lines[line.index] = BatchLine(
            index=line.index, number=line.number, custom_id=line.custom_id, url=line.url, body={}, digest=line.digest
        )
        yield {"index": line.index, "request": json.dumps([line.url, line.body])}


def _answers(
    cluster: Cluster, make: Callable[[], Engine], settings: Settings, rows: Iterator[dict[str, Any]], block: int
) -> Iterator[dict[str, Any]]:
    import pyarrow
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    DataContext.get_current().enable_progress_bars = False
    blocks = []
    while some := list(islice(rows, block)):  # kept by Ray's object store, on disk where memory ends
        blocks.append(ray.put(pyarrow.Table.from_pylist(some)))
    if not blocks:
        return
    answers = ray.data.from_arrow_refs(blocks).map_batches(
        Worker,
        fn_constructor_args=(make, settings, AT_ONCE * block),
        batch_size=None,
        num_cpus=cluster.cpus,
        num_gpus=cluster.gpus or None,
        compute=ActorPoolStrategy(
            size=cluster.workers, max_tasks_in_flight_per_actor=2 * AT_ONCE, max_concurrent_calls_per_actor=AT_ONCE
        ),
    )
    yield from answers.iter_rows()


@final
class Worker:
    """An engine in a process of Ray's, called with blocks of requests, several at once."""

    def __init__(self, make: Callable[[], Engine], settings: Settings, most: int) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = Server(self._run(AsyncEngine(make(), max_waiting=most).__aenter__()), settings)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """The answers to a block, in its order: a block that is begun again has the same."""
        return self._run(self._answer(rows))

    async def _answer(self, rows: dict[str, Any]) -> dict[str, Any]:
        indices = [int(index) for index in rows["index"]]
        made = [self._line(index, text) for index, text in zip(indices, rows["request"], strict=True)]
        found = await asyncio.gather(*(answer_line(self._server, line) for line in made))
        texts = [json.dumps([status, body, counts and asdict(counts)]) for status, body, counts in found]
        return {"index": indices, "answer": texts}

    def _line(self, index: int, text: str) -> BatchLine:
        url, body = json.loads(text)
        return BatchLine(index=index, number=0, custom_id="", url=url, body=body, digest="")

    def _run(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
