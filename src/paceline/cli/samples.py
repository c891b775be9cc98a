"""The samples of one prompt as they are written, one after another. Decodes nothing itself."""

from collections import defaultdict, deque
from typing import Protocol, TextIO, final

from rich.console import Console

from paceline.api import Piece, Source, Stream
from paceline.cli.show import SourcePrinter


class Shower(Protocol):
    """Where text goes."""

    def begin(self, sample: int) -> None: ...

    def put(self, text: str, source: Source) -> None: ...

    def end(self) -> None: ...


def show_samples(texts: Stream, shower: Shower, *, num_samples: int) -> bool:
    """Show every sample as far as its turn has come; after an interruption all there was. Whether it ended by itself.

    Samples run together: what comes of one before its turn is shown when the one before has ended.
    """
    pending: defaultdict[int, deque[Piece]] = defaultdict(deque)
    num_shown = 0  # characters of the sample whose turn it is
    current = 0
    complete = True
    shower.begin(0)
    try:
        for piece in texts:
            pending[piece.sample].append(piece)
            while current < num_samples and pending[current]:
                first = pending[current].popleft()
                num_shown += len(first.text)
                shower.put(first.text, first.source)
                if first.finish_reason is not None:
                    shower.end()
                    current, num_shown = current + 1, 0
                    if current < num_samples:
                        shower.begin(current)
    except KeyboardInterrupt:
        complete = False
        texts.close()
    for result in texts.results()[current:]:  # what an interruption, or an error, has left open
        if result.sample > current:
            shower.begin(result.sample)
            num_shown = 0
        for piece in pending[result.sample]:
            num_shown += len(piece.text)
            shower.put(piece.text, piece.source)
        shower.put((result.text or "")[num_shown:], Source.PLAIN)  # held back until now
        shower.end()
    return complete


@final
class AsText:
    """The bare text; an empty line between samples."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def begin(self, sample: int) -> None:
        """Separate it from the one before."""
        if sample:
            self._file.write("\n")

    def put(self, text: str, source: Source) -> None:
        """Write it at once."""
        self._file.write(text)
        self._file.flush()

    def end(self) -> None:
        """Close the line."""
        self._file.write("\n")
        self._file.flush()


@final
class OnTerminal:
    """Coloured by source; a rule above each of several samples."""

    def __init__(self, console: Console, *, num_samples: int) -> None:
        self._console, self._num_samples = console, num_samples
        self._printer = SourcePrinter(console=console)

    def begin(self, sample: int) -> None:
        """Say which one comes."""
        if self._num_samples > 1:
            self._console.rule(f"sample {sample + 1} of {self._num_samples}", align="left", style="dim")

    def put(self, text: str, source: Source) -> None:
        """Write it at once."""
        self._printer.put(text, source)

    def end(self) -> None:
        """Close the line."""
        self._printer.end()
