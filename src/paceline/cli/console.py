"""The consoles of standard output and standard error, tables, and the log, as every command prints them."""

import logging
from collections.abc import Iterable, Sequence
from typing import final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.draft_options import as_options

STYLES = {logging.DEBUG: "dim", logging.INFO: "dim", logging.WARNING: "yellow", logging.ERROR: "red"}


def open_console(color: str = "auto", *, stderr: bool = False) -> Console:
    """The console on standard output, or on standard error.

    ``color`` is "always" (as on a terminal, whatever NO_COLOR says), "never", or "auto" (on a terminal
    without NO_COLOR).
    """
    if color == "never":
        return Console(stderr=stderr, highlight=False, color_system=None)
    if color == "always":
        return Console(stderr=stderr, highlight=False, color_system="standard", force_terminal=True, no_color=False)
    return Console(stderr=stderr, highlight=False)


@final
class LogHandler(logging.Handler):
    """Shows records of the log through ``console``, one line each, beside a progress bar if there is one.

    They wait while a line of the output is being written, so that none is cut.
    """

    def __init__(self, *, console: Console) -> None:
        super().__init__()
        self.console = console
        self._waits = False
        self._waiting: list[Text] = []

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno >= logging.ERROR else f"{record.levelname.lower()}: "
        text = Text(f"paceline: {level}{as_options(record.getMessage())}", STYLES.get(record.levelno, ""))
        self._waiting.append(text)
        if not self._waits:
            self.flush()

    def wait(self, waits: bool) -> None:
        """Keep what comes from now on, or show what was kept."""
        self.acquire()
        try:
            self._waits = waits
            if not waits:
                self.flush()
        finally:
            self.release()

    def flush(self) -> None:
        """Show what was kept."""
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            self.console.print(text, soft_wrap=True)


def open_notes(*, quiet: bool, log_level: str | None, color: str = "auto") -> Console:
    """The console on standard error, which from now on shows the log of this package.

    ``log_level`` None is "warning", or "error" if ``quiet``; ``color`` is as in ``open_console``. Raises ValueError for
    a level with ``quiet``.
    """
    if quiet and log_level not in (None, "error"):
        raise ValueError(f"--quiet and --log-level {log_level}: give one of them")
    level = log_level or ("error" if quiet else "warning")
    console = open_console(color, stderr=True)
    logger = logging.getLogger("paceline")
    for handler in _handlers():  # of a command before, in the same process
        logger.removeHandler(handler)
    logger.addHandler(LogHandler(console=console))
    logger.setLevel(level.upper())
    return console


def note_open_line(is_open: bool) -> None:
    """Say whether a line of the output is begun and not ended; the log waits meanwhile."""
    for handler in _handlers():
        handler.wait(is_open)


def _handlers() -> list[LogHandler]:
    return [handler for handler in logging.getLogger("paceline").handlers if isinstance(handler, LogHandler)]


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
