"""Generated text as it is printed: token by token, marked by source, one sample after another.

With colour the text is coloured; without, a line of marks follows each line of text.
"""

from collections import defaultdict, deque
from typing import Protocol, TextIO, final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from paceline.api import Piece, Source, Stream

STYLES = {
    Source.DRAFTED: "green",
    Source.CORRECTED: "bold yellow",
    Source.BONUS: "bold cyan",
    Source.PLAIN: "",
}
MARKS = {Source.DRAFTED: "~", Source.CORRECTED: "^", Source.BONUS: "+", Source.PLAIN: " "}
MEANINGS = {
    Source.DRAFTED: "drafted and accepted",
    Source.CORRECTED: "the target's correction",
    Source.BONUS: "the target's bonus token after a fully accepted draft",
}
# Escape sequences in a generated text must not reach the terminal: they become visible symbols.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def has_colour(console: Console) -> bool:
    """Whether colours will be seen."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def print_legend(console: Console) -> None:
    """What the colours or marks mean."""
    colour = has_colour(console)
    samples = [
        Text(meaning, STYLES[source]) if colour else Text(f"{MARKS[source] * 2} {meaning}")
        for source, meaning in MEANINGS.items()
    ]
    console.print(Text("tokens: ") + Text("   ").join(samples), soft_wrap=True)


class Printer(Protocol):
    """Where samples are printed."""

    def begin(self, sample: int) -> None: ...

    def put(self, text: str, source: Source) -> None: ...

    def end(self) -> None: ...


@final
class SourcePrinter:
    """Prints text as it comes, marked by source, with a rule above each of several samples."""

    def __init__(self, *, console: Console, num_samples: int = 1) -> None:
        self.console, self._num_samples = console, num_samples
        self.colour = has_colour(console)
        self._marks = ""  # of the line being written
        self._open = False  # whether that line holds anything

    def begin(self, sample: int) -> None:
        """Print its number, if there are several."""
        if self._num_samples > 1:
            self.console.rule(f"sample {sample + 1} of {self._num_samples}", align="left", style="dim")

    def prompt(self, text: str) -> None:
        """Print the prompt."""
        self._put(text, "dim", " ")

    def put(self, text: str, source: Source) -> None:
        """Generated text, of one source."""
        self._put(text, STYLES[source], MARKS[source])

    def end(self) -> None:
        """Finish the line, if one is open."""
        if self._open:
            self._newline()

    def _put(self, text: str, style: str, mark: str) -> None:
        for at, part in enumerate(text.translate(_VISIBLE).split("\n")):
            if at:
                self._newline()
            if part:
                self._open = True
                self._write(Text(part, style if self.colour else ""))
                self._marks += "".join("\t" if c == "\t" else mark * cell_len(c) for c in part)

    def _newline(self) -> None:
        self._write(Text("\n"))
        if not self.colour and self._marks.strip():
            self._write(Text(self._marks.rstrip() + "\n"))
        self._marks, self._open = "", False

    def _write(self, text: Text) -> None:
        text.tab_size = 8
        self.console.print(text, end="", soft_wrap=True, highlight=False)
        self.console.file.flush()


def show_samples(texts: Stream, printer: Printer, *, num_samples: int) -> bool:
    """Print the samples in order; after an interruption, what there is of each. False after an interruption.

    Samples run in one batch: what one generates early is shown when the sample before has ended.
    """
    pending: defaultdict[int, deque[Piece]] = defaultdict(deque)
    num_shown = 0  # characters of the sample whose turn it is
    current = 0
    complete = True
    printer.begin(0)
    try:
        for piece in texts:
            pending[piece.sample].append(piece)
            while current < num_samples and pending[current]:
                first = pending[current].popleft()
                num_shown += len(first.text)
                printer.put(first.text, first.source)
                if first.finish_reason is not None:
                    printer.end()
                    current, num_shown = current + 1, 0
                    if current < num_samples:
                        printer.begin(current)
    except KeyboardInterrupt:
        complete = False
        texts.close()
    for result in texts.results()[current:]:  # what an interruption, or an error, has left open
        if result.sample > current:
            printer.begin(result.sample)
            num_shown = 0
        for piece in pending[result.sample]:
            num_shown += len(piece.text)
            printer.put(piece.text, piece.source)
        printer.put((result.text or "")[num_shown:], Source.PLAIN)  # held back until now
        printer.end()
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
