"""Prompts from arguments, standard input and files of them. Reads and encodes; generates nothing."""

import codecs
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast

from paceline.api import Loaded
from paceline.api.prompts import Message, Prompt, encode

KEYS = ("prompt", "tokens", "messages")  # of an object in a .jsonl file; exactly one of them is given
FIXED = ("n",)  # the same for all lines, because their samples share one sequence of seeds
Options: TypeAlias = dict[str, object]
Reader: TypeAlias = Callable[[str], tuple[str | int | None, Prompt, Options]]  # of a line: its id, prompt and params


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a prompt file; ``error`` says why it is no prompt."""

    index: int
    id: str | int | None = None
    prompt: Prompt | None = None
    params: Options = field(default_factory=dict[str, object])  # in place of those of the command line
    error: str | None = None
    digest: str  # of the prompt and its own params, or of the line if it is no prompt

    @property
    def name(self) -> str:
        return f"line {self.index + 1}"


def read_prompt(argument: str | None) -> str:
    """The prompt of the command line: ``argument``, or all of standard input for "-" and where something is piped in.

    Raises ValueError where there is none, and for input that is not UTF-8.
    """
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise ValueError("no prompt: give one as argument, pipe one in, or give --prompt-file FILE")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt on standard input is not UTF-8 ({error}): convert it") from error


def as_chat(text: str, *, system: str | None) -> list[Message]:
    """The messages that ``text`` is if it is a JSON list of objects, else one user message; ``system`` goes first.

    Raises ValueError where there would be two system messages.
    """
    return _with_system(_messages_in(text) or [{"role": "user", "content": text}], system)


def read_prompts(path: Path, *, chat: bool, system: str | None, option: str = "--prompt-file") -> list[Entry]:
    """Every line of a file as a prompt: .jsonl holds objects, any other file plain text.

    With ``chat`` a plain prompt is a user message, and ``system`` goes before every conversation. A line that is
    invalid becomes an entry with its error. Raises ValueError for a file that is missing, holds no text or no lines.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}; give a file that can be read") from error
    content = content.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n")
    if b"\0" in content:  # as in UTF-16, and in files of other things than text
        raise ValueError(f"{option} {path}: not a file of UTF-8 text; convert it, for UTF-16: iconv -f UTF-16 -t UTF-8")
    lines = content.split(b"\n") if content else []
    if not lines:
        raise ValueError(f"{option} {path}: no prompts in it; give one per line")
    read = _read_object if path.suffix == ".jsonl" else _read_text
    return [_entry(index, line.removesuffix(b"\r"), read, chat, system) for index, line in enumerate(lines)]


def read_valid_prompts(path: Path, *, option: str = "--prompt-file") -> list[Prompt]:
    """The prompts of a file. Raises ValueError, too, where a line is invalid."""
    entries = read_prompts(path, chat=False, system=None, option=option)
    for entry in entries:
        if entry.error is not None:
            raise ValueError(f"{option} {path}: {entry.error}")
    return [entry.prompt for entry in entries if entry.prompt is not None]


def encode_entries(target: Loaded, entries: Sequence[Entry]) -> list[list[int] | str]:
    """Token ids of every entry, or the reason why it has none."""
    texts = [entry.prompt for entry in entries if isinstance(entry.prompt, str)]
    together: list[list[int]] | None = None
    if target.tokenizer is not None:
        try:
            together = target.tokenizer.encode_many(texts)
        except ValueError:  # one text that cannot be encoded, such as half a surrogate pair
            together = None
    found = iter(together or ())
    encoded: list[list[int] | str] = []
    for entry in entries:
        tokens = next(found) if together is not None and isinstance(entry.prompt, str) else []
        encoded.append(tokens or _encode(target, entry))
    return encoded


def _encode(target: Loaded, entry: Entry) -> list[int] | str:
    if entry.prompt is None:
        return entry.error or "no prompt"
    try:
        return encode(target, entry.prompt, name=entry.name)
    except ValueError as error:
        return str(error)


def _entry(index: int, line: bytes, read: Reader, chat: bool, system: str | None) -> Entry:
    number: str | int | None = None
    try:
        text = line.decode("utf-8")
        number, prompt, params = read(text)
        if chat:
            prompt = _as_messages(prompt, system)
    except ValueError as error:
        reason = "not UTF-8: convert the file" if isinstance(error, UnicodeDecodeError) else str(error)
        error_text, of_line = f"line {index + 1}: {reason}", digest({"line": line.hex()})
        return Entry(index=index, id=number, error=error_text, digest=of_line)
    hashed = {"prompt": prompt, "params": params} if params else {"prompt": prompt}
    return Entry(index=index, id=number, prompt=prompt, params=params, digest=digest(hashed))


def _read_text(line: str) -> tuple[None, Prompt, Options]:
    if not line:
        raise ValueError("empty line: remove it, or give a prompt")
    return None, line, {}


def _read_object(line: str) -> tuple[str | int | None, Prompt, Options]:
    """The id, the prompt and the params of an object. Raises ValueError for anything else."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f'not JSON ({error}): give an object like {{"prompt": "..."}}') from error
    if not isinstance(value, dict):
        raise ValueError(f'{_shorten(line)} is no JSON object: give one like {{"prompt": "..."}}')
    unknown = [key for key in value if key not in (*KEYS, "id", "params")]
    if unknown:
        raise ValueError(
            f"unknown key {unknown[0]!r}: known are {', '.join(KEYS)}, id and params, which holds options of the prompt"
        )
    number = value.get("id")
    if number is not None and (isinstance(number, bool) or not isinstance(number, str | int)):
        raise ValueError(f"id={_shorten(number)}: give a string or an integer")
    given = [key for key in KEYS if key in value]
    if len(given) != 1:
        raise ValueError(f"{' and '.join(given) or 'no prompt'}: give one of {', '.join(KEYS)}")
    prompt = value[given[0]]
    if given == ["prompt"] and not isinstance(prompt, str):
        raise ValueError(f"prompt={_shorten(prompt)}: give a string, or token ids as tokens")
    if given == ["tokens"] and not (isinstance(prompt, list) and all(type(token) is int for token in prompt)):
        raise ValueError(f"tokens={_shorten(prompt)}: give a list of token ids")
    if given == ["messages"] and not (prompt and _are_messages(prompt)):
        raise ValueError(f'messages={_shorten(prompt)}: give a list of {{"role": ..., "content": ...}} objects')
    return number, prompt, _read_params(value.get("params"))


def _read_params(params: object) -> Options:
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise ValueError(f'params={_shorten(params)}: give an object like {{"temperature": 0.5}}')
    for name in FIXED:
        if name in params:
            raise ValueError(f"params with {name}: it is the same for all prompts; give it on the command line")
    if "max_tokens" in params and params["max_tokens"] is None:
        raise ValueError("params with max_tokens=null: give a number, it determines the capacity for all prompts")
    if "seed" in params and params["seed"] in (None, -1):
        raise ValueError(f"params with seed={params['seed']}: it could not be resumed, give a seed from 0")
    return cast("Options", params)


def _as_messages(prompt: Prompt, system: str | None) -> list[Message]:
    if isinstance(prompt, str):
        return _with_system([{"role": "user", "content": prompt}], system)
    if not _are_messages(prompt):
        raise ValueError("tokens with --chat: give prompt or messages, or leave --chat out")
    return _with_system(cast("list[Message]", prompt), system)


def _with_system(messages: list[Message], system: str | None) -> list[Message]:
    if system is None:
        return messages
    if messages[0].get("role") == "system":
        raise ValueError("--system and messages that begin with a system message: give one of them")
    return [{"role": "system", "content": system}, *messages]


def _messages_in(text: str) -> list[Message] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return cast("list[Message]", value) if value and _are_messages(value) else None


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def digest(value: object) -> str:
    """A hash of what JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
