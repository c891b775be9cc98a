"""Tables and the log, as every command prints them."""

import logging
from collections.abc import Iterable, Sequence
from typing import final

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
