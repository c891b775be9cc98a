"""Tables, progress bars and the log, as every command prints them."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from paceline.core.stats import Summary

PERIOD = 0.25  # seconds between two updates of the speed
STYLES = {logging.DEBUG: "dim", logging.INFO: "dim", logging.WARNING: "yellow", logging.ERROR: "red"}


@final
class LogHandler(logging.Handler):
    """Shows records of the log through ``console``, one line each, beside a progress bar if there is one."""

    def __init__(self, *, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        self.console.print(Text(text, STYLES.get(record.levelno, "")), soft_wrap=True)


def open_notes(*, quiet: bool, log_level: str | None) -> Console:
    """The console on standard error, which from now on shows the log of this package.

    ``log_level`` None is "warning", or "error" if ``quiet``. Raises ValueError for a level with ``quiet``.
    """
    if quiet and log_level not in (None, "error"):
        raise ValueError(f"--quiet and --log-level {log_level}: give one of them")
    level = log_level or ("error" if quiet else "warning")
    console = Console(stderr=True, highlight=False)
    logger = logging.getLogger("paceline")
    for handler in list(logger.handlers):
        if isinstance(handler, LogHandler):  # of a command before, in the same process
            logger.removeHandler(handler)
    logger.addHandler(LogHandler(console=console))
    logger.setLevel(level.upper())
    return console


def make_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, num_left: int = 1, space: int = 2) -> Table:
    """A table without lines; the first ``num_left`` columns are aligned to the left and may be folded."""
    table = Table(box=None, padding=(0, space, 0, 0))
    for number, title in enumerate(titles):
        table.add_column(
            title,
            justify="left" if number < num_left else "right",
            overflow="fold",
            no_wrap=number >= num_left,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def make_progress(console: Console, *columns: ProgressColumn, shown: bool = True) -> Progress:
    """A progress bar that disappears when it is done; shown on a terminal only."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        console=console,
        disable=not (shown and console.is_terminal),
        transient=True,
    )


@final
class PromptProgress:
    """Prompts done, tokens per second, tokens per step and the time left; use as a context manager."""

    def __init__(self, *, console: Console, total: int, done: int, shown: bool) -> None:
        self._shown = shown and console.is_terminal
        self._progress = make_progress(
            console,
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            shown=shown,
        )
        self._task = self._progress.add_task("prompts", total=total, completed=done, speed="")
        self._start = self._refreshed = time.perf_counter()

    def __enter__(self) -> "PromptProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def done(self) -> None:
        """One more prompt has ended."""
        self._progress.advance(self._task)

    def refresh(self, count: "Callable[[], Summary | None]") -> None:
        """Show the speed so far, at most once per PERIOD; ``count`` is called only then."""
        now = time.perf_counter()
        if not self._shown or now - self._refreshed < PERIOD:
            return
        self._refreshed = now
        counts = count()
        if counts is not None and counts.steps:
            speed = counts.emitted / (now - self._start)
            text = f"{speed:.0f} tokens/s, {counts.mean_acceptance_length:.2f} tokens/step"
            self._progress.update(self._task, speed=text)
