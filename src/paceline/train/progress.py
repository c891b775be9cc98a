"""A bar over the steps of a run, on a terminal only. Knows nothing of what is trained."""

import time
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@final
class TrainProgress:
    """Steps, loss, acceptance, tokens per second and the time left; use as a context manager."""

    def __init__(self, *, total: int, done: int, shown: bool) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        self._progress = Progress(*columns, console=console, disable=not (shown and console.is_terminal))
        self._task = self._progress.add_task("", total=total, completed=done, said="")
        self._began, self._seen = time.perf_counter(), 0
        self._accepted = ""

    def __enter__(self) -> "TrainProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def speed(self) -> float:
        """Tokens per second since the run began or went on."""
        return self._seen / (time.perf_counter() - self._began)

    def advance(self, *, loss: float, num_tokens: int) -> None:
        """One more step."""
        self._seen += num_tokens
        said = f"loss {loss:.3f}  {self.speed:,.0f} tokens/s{self._accepted}"
        self._progress.update(self._task, advance=1, said=said)

    def accepted(self, length: float | None) -> None:
        """Tokens per step of the last validation, where one was measured."""
        self._accepted = "" if length is None else f"  {length:.2f} tokens/step"
