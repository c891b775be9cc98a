"""The messages of a conversation, how they are changed, and the file that they are kept in.

The file is one JSON object in one line, {"messages": [{"role": ..., "content": ...}, ...]}: what clients of OpenAI's
interface send, and a line of a ``--prompt-file``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, final

from paceline.core.files import write_whole
from paceline.text.valid_json import to_json

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
ROLES = (SYSTEM, USER, ASSISTANT)
MOST_BYTES = 2**24  # of a file
Messages: TypeAlias = list[dict[str, str]]


@final
class Conversation:
    """Messages in their order, a system message only at the beginning. ``path`` (None) is its own file."""

    def __init__(self, messages: Sequence[Mapping[str, str]] = (), *, path: Path | None = None) -> None:
        self.messages: Messages = [dict(message) for message in messages]
        self.path = path

    @property
    def system(self) -> str | None:
        """The system message; None where there is none."""
        first = self.messages[0] if self.messages else {}
        return first["content"] if first.get("role") == SYSTEM else None

    @system.setter
    def system(self, content: str | None) -> None:
        said = self.messages[self.system is not None :]
        self.messages = [{"role": SYSTEM, "content": content}, *said] if content else said

    def asked(self, content: str) -> Messages:
        """The messages, and one more of the user."""
        return [*self.messages, {"role": USER, "content": content}]

    def before_last(self) -> Messages:
        """The messages before the user's last one. Raises ValueError where there is none."""
        for at in reversed(range(len(self.messages))):
            if self.messages[at]["role"] == USER:
                return self.messages[:at]
        raise ValueError("there is no message of yours yet: write one first")

    def last_asked(self) -> str:
        """The user's last message. Raises ValueError where there is none."""
        return self.messages[len(self.before_last())]["content"]

    def answer(self, messages: Messages, content: str) -> None:
        """Take ``messages`` for the conversation, with the model's answer."""
        self.messages = [*messages, {"role": ASSISTANT, "content": content}]

    def clear(self) -> None:
        """Forget all but the system message."""
        self.messages = self.messages[: self.system is not None]

    def save(self, path: Path | None) -> Path:
        """Write the conversation whole or not at all, to its own file for None; returns where.

        Raises ValueError for a file that exists and is not its own, and where no name is known.
        """
        path = path or self.path
        if path is None:
            raise ValueError("the conversation has no file yet: give /save FILE")
        if path != self.path and path.exists():
            raise ValueError(f"/save {path}: exists already; give another name, or remove it")
        try:
            write_whole(path, to_json({"messages": self.messages}) + "\n")
        except OSError as error:
            raise ValueError(f"/save {path}: {error.strerror}; give a file that can be written") from error
        self.path = path
        return path


def load(path: Path) -> Conversation:
    """The conversation in a file: an object with messages, or the list of them.

    Raises ValueError, with the place, for a file that cannot be read or holds anything else.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a file that can be read") from error
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: more than {MOST_BYTES >> 20} MiB; give a file with one conversation")
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8; convert it") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error}); give one object {{"messages": [...]}}') from error
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list) or not messages:
        raise ValueError(f'{path}: no messages in it; give {{"messages": [{{"role": ..., "content": ...}}]}}')
    return Conversation([_read(message, at, path) for at, message in enumerate(messages)], path=path)


def _read(message: object, at: int, path: Path) -> dict[str, str]:
    place = f"{path}: messages[{at}]"
    if not isinstance(message, dict):
        raise ValueError(f"{place} is no object: give one with a role and a content")
    role, content = message.get("role"), message.get("content")
    others = [key for key, value in message.items() if key not in ("role", "content") and value is not None]
    if others:
        raise ValueError(f"{place} has {others[0]}: a chat in the terminal has only role and content; remove it")
    if role not in ROLES:
        raise ValueError(f"{place} has role={role!r}: known are {', '.join(ROLES)}")
    if role == SYSTEM and at:
        raise ValueError(f"{place} is a system message: it is understood only at the beginning; move it there")
    if isinstance(content, list):
        content = _text_of(content)
    if not isinstance(content, str):
        raise ValueError(f"{place} has no content of text: give a string, or parts of type text")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place} has half a surrogate pair, which is no text: remove it") from error
    return {"role": role, "content": content}


def _text_of(parts: list[object]) -> str | None:
    """The text of a content in parts; None if one of them is no text."""
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if len(found) == len(parts) else None
