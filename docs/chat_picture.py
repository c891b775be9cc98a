"""Draws chat.svg, a session of ``paceline chat`` with the embedded pair: ``python docs/chat_picture.py``."""

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from paceline.api import SamplingParams, embedded_pair, load
from paceline.cli.chat.answering import Answerer
from paceline.cli.chat.conversation import Conversation
from paceline.cli.chat.dialogue import Dialogue
from paceline.cli.chat.forms import Form
from paceline.cli.chat.screen import Screen
from paceline.cli.draft_options import DraftOptions

SAID = ("def read_lines(path):", "/set max_tokens 40", "class Queue:", "/drafter off", "/retry")
FONTS = re.compile(r"\s*@font-face \{.*?\}", re.S)  # would be loaded from elsewhere


class Typed:
    """Shows what a user would have typed."""

    def __init__(self, console: Console) -> None:
        self._console, self._left = console, list(SAID)

    def read(self, default: str) -> str | None:
        """The next of SAID."""
        if not self._left:
            return None
        self._console.print(f"[bold]>[/bold] {self._left[0]}")
        return self._left.pop(0)


def main() -> None:
    """Draw it."""
    console = Console(
        record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor", width=128, highlight=False
    )
    target, draft = (str(path) for path in embedded_pair())
    screen = Screen(console=console, notes=console)
    answerer = Answerer(load(target, dtype="float32", threads=1), form=Form.TEXT, options=DraftOptions(draft=draft))
    screen.legend(tuple(answerer.origins))
    Dialogue(
        answerer=answerer,
        conversation=Conversation(),
        params=SamplingParams(temperature=0.0, max_tokens=60),
        screen=screen,
        reader=Typed(console),
        stays=True,
    ).run()
    drawn = console.export_svg(title="paceline chat", theme=MONOKAI, unique_id="chat")
    Path(__file__).with_name("chat.svg").write_text(FONTS.sub("", drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
