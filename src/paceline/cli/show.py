"""Generated text on a terminal, every token marked by who chose it. Decodes nothing.

With colour the text is coloured; without, a line of marks stands under each line of text.
"""

from typing import final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from paceline.api import Source

STYLES = {
    Source.DRAFTED: "green",
    Source.CORRECTED: "bold yellow",
    Source.BONUS: "bold cyan",
    Source.PLAIN: "",
}
MARKS = {Source.DRAFTED: "~", Source.CORRECTED: "^", Source.BONUS: "+", Source.PLAIN: " "}
MEANINGS = {
    Source.DRAFTED: "drafted and kept",
    Source.CORRECTED: "the target's correction",
    Source.BONUS: "the target's bonus after a whole draft",
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


@final
class SourcePrinter:
    """Prints text as it comes; ``end`` closes the last line."""

    def __init__(self, *, console: Console) -> None:
        self.console = console
        self.colour = has_colour(console)
        self._marks = ""  # of the line being written
        self._open = False  # whether that line holds anything

    def prompt(self, text: str) -> None:
        """Text that was given, not generated."""
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
