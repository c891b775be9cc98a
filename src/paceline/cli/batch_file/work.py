"""Requests of a file through an engine of this process, which is kept full."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from paceline.api import Engine
from paceline.api.async_engine import AsyncEngine
from paceline.api.results import total
from paceline.cli.batch_file.lines import BatchLine
from paceline.core.stats import Summary
from paceline.serve.generation import Server
from paceline.serve.offline import answer
from paceline.serve.settings import Settings

AHEAD = 2  # times the rows: this many requests are submitted, so that a free row is never idle
Answered: TypeAlias = tuple[int, dict[str, object], Summary | None]  # status, body, counts of its outputs
Put: TypeAlias = Callable[[BatchLine, Answered | None], None]  # None for what is no request
Admit: TypeAlias = Callable[[BatchLine], bool]  # whether a request may be begun before others have ended


def work_through(engine: Engine, settings: Settings, lines: Iterable[BatchLine], put: Put, *, admit: Admit) -> None:
    """Answer ``lines``, in any order; ``put`` is called with each. Raises what it raises, EngineError when the engine
    has ended, and KeyboardInterrupt; what runs then is given up.
    """
    asyncio.run(_work_through(engine, settings, lines, put, admit))


async def _work_through(engine: Engine, settings: Settings, lines: Iterable[BatchLine], put: Put, admit: Admit) -> None:
    most = AHEAD * engine.decoder.rows
    running: dict[asyncio.Task[Answered], BatchLine] = {}

    async def collect() -> None:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            put(running.pop(task), task.result())

    async with AsyncEngine(engine, max_waiting=most) as served:
        server = Server(served, settings)
        try:
            for line in lines:
                while running and (len(running) >= most or not admit(line)):
                    await collect()
                if line.error is not None:
                    put(line, None)
                    continue
                running[asyncio.create_task(answer_line(server, line))] = line
            while running:
                await collect()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await server.grammars.close()


async def answer_line(server: Server, line: BatchLine) -> Answered:
    """The answer to one request."""
    status, body, results = await answer(server, line.url, line.body)
    return status, body, total(results) if results else None
