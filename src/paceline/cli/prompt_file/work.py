"""Runs prompts through an engine and hands their results to a sink."""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, final

from paceline.api import Engine, Result, SamplingParams, Stream
from paceline.cli.progress import PromptProgress
from paceline.cli.prompt_file.journal import Line
from paceline.cli.prompt_file.prompts import Entry
from paceline.cli.record import sample_object
from paceline.cli.stats import Totals
from paceline.core.noise import split_seed
from paceline.core.stats import Summary
from paceline.text.valid_json import to_json

AHEAD = 2  # times the rows: this many sequences are submitted, so that a free row is never idle


class Sink(Protocol):
    """Takes the lines of prompts, finished or interrupted."""

    def put(self, line: Line) -> None: ...

    def put_cancelled(self, line: Line) -> None: ...

    def close(self, *, complete: bool) -> None: ...


@final
class Work:
    """Prompts in an engine, a few at a time; ``engine`` is None if all prompts are invalid."""

    def __init__(
        self,
        *,
        engine: Engine | None,
        params: SamplingParams,
        run: str,
        sink: Sink,
        progress: PromptProgress,
        failed: Mapping[int, str],
    ) -> None:
        self.failed, self.totals, self.num_done, self.seconds = dict(failed), Totals(), 0, 0.0
        self._engine, self._params, self._run, self._sink, self._progress = engine, params, run, sink, progress
        self._running: dict[int, tuple[Entry, Stream]] = {}

    def through(self, entries: Sequence[Entry], prompts: Sequence[list[int] | str]) -> bool:
        """Continue ``entries``, whose tokens or errors ``prompts`` holds by index; whether all were finished.

        After an interruption or an error, partial outputs are saved as cancelled.
        """
        start = time.perf_counter()
        waiting = deque(entries)
        complete = False
        try:
            while waiting or self._running:
                self._submit(waiting, prompts)
                if self._running and self._engine is not None:
                    self._engine.advance()
                    self._collect()
                    self._progress.refresh(self._count)
            complete = True
        except KeyboardInterrupt:
            self._save_partial()
        except BaseException:
            with suppress(OSError):  # the first error is the one to report
                self._save_partial()
            raise
        finally:
            self.seconds = time.perf_counter() - start
            self._sink.close(complete=complete)
        return complete

    def _submit(self, waiting: deque[Entry], prompts: Sequence[list[int] | str]) -> None:
        """Queue as many as keep the rows busy; invalid ones are finished at once."""
        room = 0 if self._engine is None else AHEAD * self._engine.decoder.batch.rows
        while waiting and (not self._running or len(self._running) * self._params.n < room):
            entry = waiting[0]
            prompt = prompts[entry.index]
            try:
                if isinstance(prompt, str) or self._engine is None:
                    raise ValueError(prompt)
                options = self._options(entry)
                stream = self._engine.submit([prompt] * len(options), options, name=entry.name)
                self._running[entry.index] = entry, stream
            except ValueError as error:
                reason = str(error).removeprefix("prompt 0: ").removeprefix(f"{entry.name}: ")
                self._finish(entry, {"error": f"{entry.name}: {reason}"})
            waiting.popleft()

    def _options(self, entry: Entry) -> list[SamplingParams]:
        """Of each sample, with the seed it would have if all prompts were given in one call; or from the line's own."""
        params = self._params.updated(entry.params)
        first = 0 if "seed" in entry.params else entry.index * params.n
        assert params.seed is not None
        return [replace(params, n=1, seed=split_seed(params.seed, first + sample)) for sample in range(params.n)]

    def _collect(self) -> None:
        """Write what has ended."""
        for entry, stream in list(self._running.values()):
            if stream.done:
                results = stream.results()
                error = next((result.error for result in results if result.error is not None), None)
                outcome = {"error": f"{entry.name}: {error}"} if error is not None else _samples(results)
                self._finish(entry, outcome)
                del self._running[entry.index]
                for result in results:
                    self.totals.add(result)

    def _finish(self, entry: Entry, outcome: Mapping[str, object]) -> None:
        self._sink.put(self._line(entry, outcome))
        if "error" in outcome:
            self.failed[entry.index] = str(outcome["error"])
        self.num_done += 1
        self._progress.done()

    def _save_partial(self) -> None:
        """Save partial outputs."""
        for entry, stream in self._running.values():
            stream.close()
            results = stream.results()
            if any(result.token_ids for result in results):
                self._sink.put_cancelled(self._line(entry, _samples(results)))

    def _line(self, entry: Entry, outcome: Mapping[str, object]) -> Line:
        named = {} if entry.id is None else {"id": entry.id}
        return {"index": entry.index, **named, "run": self._run, "prompt_hash": entry.digest, **outcome}

    def _count(self) -> Summary | None:
        """Of all outputs, partial ones included."""
        totals = Totals(summary=self.totals.summary)
        for _, stream in self._running.values():
            for result in stream.results():
                totals.add(result)
        return totals.summary


@final
class PrintedLines:
    """Lines on standard output in the order of their prompts; interrupted ones come last."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, Line] = {}

    def put(self, line: Line) -> None:
        """Print it once all before it have been."""
        self._waiting[line["index"]] = line
        while self._next in self._waiting:
            self._print(self._waiting.pop(self._next))
            self._next += 1

    def put_cancelled(self, line: Line) -> None:
        """Print it when nothing more comes."""
        if line["index"] >= self._next:
            self._waiting[line["index"]] = line

    def close(self, *, complete: bool) -> None:
        """Print what is left."""
        for index in sorted(self._waiting):
            self._print(self._waiting[index])

    def _print(self, line: Line) -> None:
        sys.stdout.write(to_json(line) + "\n")
        sys.stdout.flush()


def _samples(results: Sequence[Result]) -> dict[str, object]:
    return {
        "num_prompt_tokens": len(results[0].prompt_tokens),
        "samples": [sample_object(result) for result in results],
    }
