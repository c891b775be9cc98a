"""The progress bar of a run, shown on a terminal only."""

import time
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@final
class TrainProgress:
    """Steps, loss, tokens per step, tokens per second and the time left. A context manager."""

    def __init__(self, *, total: int, done: int, shown: bool) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        self._progress = Progress(*columns, console=console, disable=not (shown and console.is_terminal))
        self._task = self._progress.add_task("", total=total, completed=done, status="")
        self._start, self._num_tokens = time.perf_counter(), 0
        self._acceptance = ""

    def __enter__(self) -> "TrainProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def tokens_per_second(self) -> float:
        """Since the run started or resumed."""
        return self._num_tokens / (time.perf_counter() - self._start)

    def advance(self, *, loss: float, num_tokens: int) -> None:
        """Record a step."""
        self._num_tokens += num_tokens
        status = f"loss {loss:.3f}  {self.tokens_per_second:,.0f} tokens/s{self._acceptance}"
        self._progress.update(self._task, advance=1, status=status)

    def show_acceptance(self, length: float | None) -> None:
        """Show the tokens per step of the last validation, if any were measured."""
        self._acceptance = "" if length is None else f"  {length:.2f} tokens/step"
