"""Progress bars, on a terminal only."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from paceline.core.stats import Summary

PERIOD = 0.25  # seconds between two updates of the speed


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


@contextmanager
def waiting(console: Console, words: str) -> Iterator[Callable[[str], None]]:
    """Say what is being waited for: one line, and on a terminal a spinner with how far it is, which disappears.

    Gives what is called with how far it is.
    """
    if not console.is_terminal or not console.file.isatty():
        console.print(f"{words} ...", soft_wrap=True)
        yield lambda _: None
        return
    with console.status(f"{words} ...") as status:
        yield lambda progress: status.update(f"{words}: {progress} ...")


@final
class PromptProgress:
    """Prompts done, tokens per second, tokens per step and the time left; use as a context manager."""

    def __init__(self, *, console: Console, total: int, done: int, shown: bool, what: str = "prompts") -> None:
        self._shown = shown and console.is_terminal
        self._progress = make_progress(
            console,
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            shown=shown,
        )
        self._task = self._progress.add_task(what, total=total, completed=done, speed="")
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
