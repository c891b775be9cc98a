"""The progress bar of ``paceline transcribe``, over seconds of sound."""

from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@final
class SoundProgress:
    """Seconds of sound done, of those of the files that were read so far; use as a context manager."""

    def __init__(self, *, console: Console, files: int, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not (shown and console.is_terminal),
            transient=True,
        )
        self._files, self._done = files, 0
        self._seconds: dict[int, tuple[float, float]] = {}  # done, and in all, by the file's number
        self._task = self._progress.add_task(self._description, total=0)

    def __enter__(self) -> "SoundProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def reached(self, number: int, seconds: float, total: float) -> None:
        """So many seconds of file ``number`` are done, of ``total``."""
        self._seconds[number] = (seconds, total)
        done, whole = (sum(column) for column in zip(*self._seconds.values(), strict=True))
        self._progress.update(self._task, completed=done, total=whole)

    def done(self) -> None:
        """One more file has ended."""
        self._done += 1
        self._progress.update(self._task, description=self._description)

    @property
    def _description(self) -> str:
        return f"file {min(self._done + 1, self._files)} of {self._files}"
