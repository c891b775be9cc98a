"""What a conversation prints: answers and what was asked for on standard output, all else on standard error."""

import sys
from dataclasses import dataclass
from typing import final

from rich.console import Console, RenderableType
from rich.text import Text

from paceline.api import Piece, Source
from paceline.cli.show import AsText, SourcePrinter, has_colour, origin_style, print_origins


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """``notes`` is standard error. ``quiet`` leaves out what is said beside answers, as does standard output that is
    no terminal.
    """

    console: Console
    notes: Console
    quiet: bool = False

    @property
    def talks(self) -> bool:
        """Whether more is said than what was asked for."""
        return self.console.is_terminal and not self.quiet

    def writer(self, origins: tuple[str, ...]) -> "Writer":
        """What prints an answer whose drafters are ``origins``."""
        printer = SourcePrinter(console=self.console) if self.console.is_terminal else AsText(sys.stdout)
        return Writer(printer, origins)

    def show(self, shown: RenderableType) -> None:
        """What was asked for."""
        self.console.print(Text(shown) if isinstance(shown, str) else shown, soft_wrap=isinstance(shown, str))

    def note(self, text: str) -> None:
        """What is worth knowing."""
        if self.talks:
            self.notes.print(Text(text, "dim"), soft_wrap=True)

    def error(self, text: str) -> None:
        """What was wrong."""
        self.notes.print(Text(f"paceline: {text}", "red"), soft_wrap=True)

    def legend(self, origins: tuple[str, ...]) -> None:
        """What the colours mean, where there are any."""
        if self.talks and origins and has_colour(self.console):
            print_origins(self.notes, origins)


@final
class Writer:
    """Prints an answer, each token in the colour of the drafter that proposed it."""

    def __init__(self, printer: SourcePrinter | AsText, origins: tuple[str, ...]) -> None:
        self._printer, self._origins = printer, origins
        self.num_shown = 0  # characters

    def put(self, piece: Piece, text: str) -> None:
        """The next token, of whose text ``text`` is shown."""
        self.num_shown += len(piece.text)
        if isinstance(self._printer, AsText):
            self._printer.put(text, piece.source, piece.rejected)
        else:
            style = origin_style(piece.origin, self._origins)
            self._printer.put(text, piece.source, piece.rejected, style=style)

    def end(self, text: str) -> None:
        """The rest of the answer ``text``, which was held back."""
        rest = text[self.num_shown :]
        if isinstance(self._printer, AsText):
            self._printer.put(rest, Source.PLAIN)
        else:
            self._printer.put(rest, Source.PLAIN, style="")
        self._printer.end()
