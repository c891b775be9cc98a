"""Messages from a terminal: several lines, completion of commands, and a history that only the user can read.

Needs the extra ``chat``.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from paceline.cli.chat.commands import COMMANDS
from paceline.cli.chat.settings import NAMES
from paceline.core.files import cache_folder
from paceline.drafters import DRAFTERS

PROMPT, CONTINUED = "> ", ". "


@final
class PrivateHistory(FileHistory):
    """The history in ``path``, which no one else can read. Raises OSError where it cannot be written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.name == "posix":
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        """Keep it, without what is no text."""
        super().store_string(string.encode(errors="replace").decode())


@final
class CommandCompleter(Completer):
    """Commands, and what comes after them: options, drafters, files."""

    def __init__(self) -> None:
        texts = {f"/{name}": command.help for name, command in COMMANDS.items()}
        self._names = WordCompleter(list(texts), meta_dict=texts, sentence=True)
        self._after: dict[str, Completer] = {
            "set": WordCompleter(list(NAMES), sentence=True),
            "drafter": WordCompleter(["on", "off", *DRAFTERS]),
            "depth": WordCompleter(["auto"]),
            "save": PathCompleter(expanduser=True),
            "load": PathCompleter(expanduser=True),
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Those for what stands before the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/"):
            return ()
        name, space, rest = text[1:].partition(" ")
        if not space:
            return self._names.get_completions(document, complete_event)
        completer = self._after.get(name)
        return () if completer is None else completer.get_completions(Document(rest.lstrip()), complete_event)


def history_path() -> Path:
    """Where what was written is kept."""
    return cache_folder("chat") / "history"


def open_history(path: Path | None, warn: Callable[[str], None]) -> History:
    """The history in ``path``; one that is forgotten for None, and where it cannot be written, which ``warn`` says."""
    if path is None:
        return InMemoryHistory()
    try:
        return PrivateHistory(path)
    except OSError as error:
        warn(f"{path}: {error.strerror}; what you write is not kept")
        return InMemoryHistory()


@final
class TerminalReader:
    """Reads from the terminal. Enter sends, Alt-Enter and Ctrl-J begin a new line, Ctrl-C discards what is written.

    ``input`` and ``output`` (None: the terminal) are those of prompt_toolkit.
    """

    def __init__(self, *, history: History, input: Input | None = None, output: Output | None = None) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=history,
            completer=CommandCompleter(),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            multiline=True,
            prompt_continuation=lambda width, *_: CONTINUED.rjust(width),
            key_bindings=_keys(),
            input=input,
            output=output,
        )

    def read(self, default: str) -> str | None:
        """What the user sends; None for Ctrl-D. Raises KeyboardInterrupt for Ctrl-C where nothing is written."""
        try:
            said = self._session.prompt(default=default)
        except EOFError:
            return None
        try:
            said.encode()
        except UnicodeEncodeError as error:
            raise ValueError("that is not UTF-8: set the terminal to UTF-8, and write it again") from error
        return said


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys
