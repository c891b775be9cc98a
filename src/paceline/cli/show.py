"""Generated text as it is printed: token by token, marked by source, one sample after another.

With colour the text is coloured; without, a line of marks follows each line of text.
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Protocol, TextIO, final

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.api import Piece, Source, Stream
from paceline.cli.console import note_open_line

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
REJECTED, REJECTED_MARK, REJECTED_MEANING = "dim red strike", "-", "drafted and rejected"
# Of drafted tokens by their drafter, in the order of a cascade's or of several candidates' names.
DRAFTERS = (STYLES[Source.DRAFTED], "magenta", "blue", "bright_red", "bright_yellow", "bright_cyan")
LOOK = 6  # times as long as an accepted token is looked at a rejected draft before it disappears
# Escape sequences in a generated text must not reach the terminal: they become visible symbols.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def has_colour(console: Console) -> bool:
    """Whether colours will be seen."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def can_animate(console: Console) -> bool:
    """Whether what was printed can be drawn anew: on a terminal with colours."""
    return has_colour(console) and console.file.isatty() and not console.is_dumb_terminal


def visible(text: str) -> str:
    """``text`` in one line."""
    return text.replace("\n", "\u21b5").translate(_VISIBLE)


def in_brackets(text: str) -> str:
    """Rejected text where nothing can be struck through."""
    return f"[-{text}-]"


def print_legend(console: Console, *, rejected: bool = False) -> None:
    """What the colours or marks mean; ``rejected`` tokens are among them if shown."""
    entries = [(STYLES[source], MARKS[source], meaning) for source, meaning in MEANINGS.items()]
    if rejected:
        entries.append((REJECTED, REJECTED_MARK, REJECTED_MEANING))
    colour = has_colour(console)
    samples = [Text(meaning, style) if colour else Text(f"{mark * 2} {meaning}") for style, mark, meaning in entries]
    console.print(Text("tokens: ") + Text("   ").join(samples), soft_wrap=True)


def origin_style(origin: str | None, origins: Sequence[str]) -> str:
    """The style of a token that ``origin``, one of ``origins``, proposed; the target's own, for None, is plain."""
    return "" if origin is None else DRAFTERS[origins.index(origin) % len(DRAFTERS)]


def print_origins(console: Console, origins: Sequence[str]) -> None:
    """What the colours of ``origin_style`` mean."""
    drafted = [Text(f"drafted by {origin}", origin_style(origin, origins)) for origin in origins]
    console.print(Text("tokens: ") + Text("   ").join([*drafted, Text("the target's own")]), soft_wrap=True)


class Printer(Protocol):
    """Where samples are printed."""

    def begin(self, sample: int) -> None: ...

    def put(self, text: str, source: Source, rejected: str = "") -> None: ...

    def end(self) -> None: ...


@final
class SourcePrinter:
    """Prints text as it comes, marked by source, with a rule above each of several samples.

    With ``pace``, the seconds that a token is looked at, the line being written is drawn anew for every token, and what
    was rejected disappears again. Needs a terminal.
    """

    def __init__(self, *, console: Console, num_samples: int = 1, pace: float | None = None) -> None:
        self.console, self._num_samples = console, num_samples
        self.colour = has_colour(console)
        self._line, self._marks = Text(tab_size=8), ""  # being written
        self._pace = 0.0 if pace is None else pace
        self._live = None if pace is None else Live(console=console, auto_refresh=False, transient=True)

    def begin(self, sample: int) -> None:
        """Print its number, if there are several."""
        if self._num_samples > 1:
            self.console.rule(f"sample {sample + 1} of {self._num_samples}", align="left", style="dim")

    def prompt(self, text: str, *, alone: bool = False) -> None:
        """Print the prompt, which the first sample goes on from unless it is to stay ``alone`` in its line."""
        self._put(text, "dim", " ")
        if alone:
            self.end()

    def put(self, text: str, source: Source, rejected: str = "", *, style: str | None = None) -> None:
        """Generated text, of one source, and what the draft proposed instead of it.

        With ``style`` the text has that in place of its source's, and no marks.
        """
        if rejected:
            self._reject(visible(rejected))
        self._put(text, *((STYLES[source], MARKS[source]) if style is None else (style, " ")))
        if self._live is not None:
            self._draw(self._live, Text())

    def end(self) -> None:
        """Finish the line, if one is open."""
        if self._line:
            self._newline()
        if self._live is not None:
            self._live.stop()
            note_open_line(False)

    def _reject(self, text: str) -> None:
        shown = Text(text, REJECTED) if self.colour else Text(in_brackets(text))
        if self._live is None:
            self._write(shown, REJECTED_MARK * cell_len(shown.plain))
        else:
            self._draw(self._live, shown, times=LOOK)

    def _put(self, text: str, style: str, mark: str) -> None:
        for at, part in enumerate(text.translate(_VISIBLE).split("\n")):
            if at:
                self._newline()
            if part:
                marks = "".join("\t" if c == "\t" else mark * cell_len(c) for c in part)
                self._write(Text(part, style if self.colour else ""), marks)

    def _write(self, part: Text, marks: str) -> None:
        if not self._line:
            note_open_line(True)
        self._line.append_text(part)
        self._marks += marks
        if self._live is None:
            self._print(part)

    def _newline(self) -> None:
        if self._live is None:
            self._print(Text("\n"))
        else:
            self._live.update(Text(), refresh=True)
            self._print(self._line, end="\n")
        if not self.colour and self._marks.strip():
            self._print(Text(self._marks.rstrip()), end="\n")
        self._line, self._marks = Text(tab_size=8), ""
        if self._live is None:
            note_open_line(False)

    def _print(self, text: Text, end: str = "") -> None:
        text.tab_size = 8
        self.console.print(text, end=end, soft_wrap=True)
        self.console.file.flush()

    def _draw(self, live: Live, tail: Text, *, times: int = 1) -> None:
        """Draw the line with ``tail`` behind it, and let it be looked at."""
        live.start()
        live.update(self._line + tail, refresh=True)
        time.sleep(times * self._pace)


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
                printer.put(first.text, first.source, first.rejected)
                if first.finish_reason is not None:
                    printer.end()
                    current, num_shown = current + 1, 0
                    if current < num_samples:
                        printer.begin(current)
    except KeyboardInterrupt:
        complete = False
        texts.close()
    except Exception:
        printer.end()  # so that what is said of it has a line of its own
        raise
    for result in texts.results()[current:]:  # what an interruption, or an error, has left open
        if result.sample > current:
            printer.begin(result.sample)
            num_shown = 0
        for piece in pending[result.sample]:
            num_shown += len(piece.text)
            printer.put(piece.text, piece.source, piece.rejected)
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

    def put(self, text: str, source: Source, rejected: str = "") -> None:
        """Write it at once."""
        text = (in_brackets(visible(rejected)) if rejected else "") + text
        self._file.write(text)
        self._file.flush()
        if text:
            note_open_line(not text.endswith("\n"))

    def end(self) -> None:
        """Close the line."""
        self._file.write("\n")
        self._file.flush()
        note_open_line(False)
