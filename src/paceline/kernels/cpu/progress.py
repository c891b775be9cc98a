"""The progress of a build of the kernel: a line on a terminal, which disappears when it is done; nothing elsewhere."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

logger = logging.getLogger("paceline")


@contextmanager
def build_progress(name: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives what is to be called after each of ``total`` files; as silent as the log of this package is."""
    console = Console(stderr=True)
    shown = console.is_terminal and logger.isEnabledFor(logging.WARNING)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("files,"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task(f"building the CPU kernel for {name}", total=total)
        yield lambda: progress.advance(task)
