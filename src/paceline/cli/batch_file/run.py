"""One run over a file of requests: what is missing is answered, by one engine or several."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from paceline.api import Engine
from paceline.api.build import build_drafting
from paceline.api.draft_length import longest_draft, room
from paceline.api.engine import LONGEST
from paceline.api.engine_for import MOST_ROWS, engine_for
from paceline.api.profiles import ProfileLike
from paceline.cli.batch_file.answers import LAYOUT, answered, unsent
from paceline.cli.batch_file.lines import BatchLine, Survey, read_lines, survey
from paceline.cli.batch_file.on_ray import Cluster, work_through_on_ray
from paceline.cli.batch_file.work import AHEAD, Answered, work_through
from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import ModelOptions
from paceline.cli.progress import PromptProgress
from paceline.cli.prompt_file.fingerprint import fingerprint
from paceline.cli.prompt_file.journal import Finished, ResultFile, read_finished
from paceline.cli.stats import Totals, stats_table
from paceline.serve.settings import Settings

WINDOW = 1024  # answers at most that wait, in memory and in the journal, for one that comes before them


@dataclass(slots=True, kw_only=True)
class Run:
    """The options of ``paceline batch run``; ``run`` returns the exit code.

    The workers of ``cluster`` answer; None: one engine, here.
    """

    input: Path
    output: Path
    errors: Path | None
    overwrite: bool
    model: ModelOptions
    drafting: DraftOptions
    batch_size: int | None
    max_model_len: int | None
    profile: ProfileLike
    cluster: Cluster | None
    stats: bool
    quiet: bool
    settings: Settings
    notes: Console
    totals: Totals = field(default_factory=Totals)

    def run(self) -> int:
        """Answer what is missing. All of the file is read and checked before a model is loaded."""
        found = survey(self.input, self.settings)
        if found.num_invalid == len(found):
            raise ValueError(f"{self.input}: all {len(found)} requests are invalid: {found.first_invalid}")
        names = {"names": self.settings.names, "max_model_len": self.max_model_len}
        run = fingerprint(self.model, self.drafting, names)
        finished = Finished()
        if not self.overwrite:
            finished = read_finished(self.output, run=run, digests=found.digests, errors=self.errors, layout=LAYOUT)
        num_done = finished.num_written + len(finished.waiting)
        self._note_before(found, num_done)
        make = partial(
            make_engine,
            self.model,
            self.drafting,
            batch_size=self.batch_size,
            max_model_len=self.max_model_len,
            profile=self.profile,
            num_outputs=found.num_outputs,
        )
        engine = make() if self.cluster is None and num_done < len(found) else None
        sink = ResultFile(self.output, finished=finished, errors=self.errors, layout=LAYOUT)
        failures = _Failures()
        for index, reason in (
            *finished.failed.items(),
            *((at, one.get("error")) for at, one in finished.waiting.items()),
        ):
            failures.add(index, reason)
        complete, start = False, time.perf_counter()
        with PromptProgress(
            console=self.notes, total=len(found), done=num_done, shown=not self.quiet, what="requests"
        ) as progress:

            def put(line: BatchLine, answer: Answered | None) -> None:
                made = unsent(line, run=run) if answer is None else answered(line, answer[:2], run=run)
                sink.put(made)
                failures.add(line.index, made.get("error"))
                counts = None if answer is None else answer[2]
                if counts is not None:
                    self.totals.num_outputs += 1
                    self.totals.summary = counts if self.totals.summary is None else self.totals.summary + counts
                progress.done()
                progress.refresh(lambda: self.totals.summary)

            def left() -> Iterator[BatchLine]:
                """What has no answer yet."""
                for line in read_lines(self.input, self.settings):
                    if line.index >= len(found) or line.digest != found.digests[line.index]:
                        raise ValueError(f"{self.input} has changed in line {line.number}: run the same command again")
                    if line.index >= finished.num_written and line.index not in finished.waiting:
                        yield line

            try:
                if engine is not None:
                    work_through(
                        engine, self.settings, left(), put, admit=lambda line: line.index < sink.num_written + WINDOW
                    )
                elif self.cluster is not None and num_done < len(found):
                    block = AHEAD * (self.batch_size or MOST_ROWS)
                    work_through_on_ray(self.cluster, make, self.settings, left(), put, block=block)
                complete = True
            except KeyboardInterrupt:
                pass
            finally:
                sink.close(complete=complete)
        return self._conclude(complete, failures, sink.num_written, len(found), time.perf_counter() - start)

    def _note_before(self, found: Survey, num_done: int) -> None:
        if found.num_invalid and not self.quiet:
            print(
                f"paceline: {found.num_invalid} of {len(found)} requests are invalid; {found.first_invalid}; --check "
                "lists them",
                file=sys.stderr,
            )
        if num_done:
            self._note(f"{num_done} of {len(found)} answers are in {self.output} already")

    def _conclude(self, complete: bool, failures: "_Failures", num_done: int, num_lines: int, seconds: float) -> int:
        if self.stats:
            self.notes.print(stats_table(self.totals, seconds=seconds))
        if not complete:
            self._note(
                f"interrupted: {num_done} of {num_lines} answers are there; the same command continues from there"
            )
            return EXIT_INTERRUPTED
        if failures.count:
            print(f"paceline: {failures.count} of {num_lines} requests failed; {failures.first[1]}", file=sys.stderr)
        return EXIT_DIFFERENT if failures.count else EXIT_OK

    def _note(self, text: str) -> None:
        """Print a note, on a terminal only."""
        if self.notes.is_terminal and not self.quiet:
            self.notes.print(text, style="dim", markup=False, soft_wrap=True)


@dataclass(slots=True)
class _Failures:
    """How many requests failed, and why the first of the file did."""

    count: int = 0
    first: tuple[int, str] = (sys.maxsize, "")

    def add(self, index: int, reason: str | None) -> None:
        """Count the request number ``index`` if it failed for a reason."""
        if reason is not None:
            self.count, self.first = self.count + 1, min(self.first, (index, reason))


def make_engine(
    model: ModelOptions,
    drafting: DraftOptions,
    *,
    batch_size: int | None,
    max_model_len: int | None,
    profile: ProfileLike,
    num_outputs: int,
) -> Engine:
    """Load the model. Rows are for all requests, done or not, so that every run has the same shapes."""
    target = model.load()
    built = build_drafting(drafting.choose(target), target=target)
    count = built.length(drafting.count)
    longest = room(target, built.drafter.max_nodes(longest_draft(count, built.drafter)))
    return engine_for(
        target,
        drafter=built.drafter,
        verifier=drafting.verifier,
        num_draft_tokens=count,
        batch_size=batch_size,
        num_texts=max(min(num_outputs, MOST_ROWS), batch_size or 1),
        max_length=max_model_len or min(LONGEST, longest),
        profile=profile,
    )
