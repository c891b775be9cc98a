"""Files of requests: read line by line, and looked through once before any work is done. Holds no more of a file of any
length than sixteen bytes a line.
"""

import codecs
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, final, overload

from paceline.cli.prompt_file.prompts import digest
from paceline.serve.errors import ApiError
from paceline.serve.offline import ROUTES, read_body
from paceline.serve.schema import CompletionBody, GenerationBody
from paceline.serve.settings import Settings

LINE_BYTES = 1 << 12  # of a line, beside its body


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One request. ``error`` says why it is none that could be sent to a server; it has no answer but this."""

    index: int  # among the requests
    number: int  # of the line in the file, from 1: empty lines count
    custom_id: str
    url: str
    body: Mapping[str, Any]
    digest: str  # of the whole line
    error: str | None = None

    @property
    def name(self) -> str:
        return f"line {self.number} ({self.custom_id!r:.60})"


@final
class Digests(Sequence[str]):
    """Those of all lines, eight bytes each."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def append(self, one: str) -> None:
        """Add the digest of the next line."""
        self._bytes += bytes.fromhex(one)

    def __len__(self) -> int:
        return len(self._bytes) // 8

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        return self._bytes[8 * index : 8 * index + 8].hex()


@dataclass(slots=True)
class Survey:
    """What a file holds."""

    digests: Digests = field(default_factory=Digests)
    num_outputs: int = 0  # that valid requests ask for
    num_invalid: int = 0
    first_invalid: str = ""  # and why

    def __len__(self) -> int:
        return len(self.digests)


def survey(path: Path, settings: Settings, *, tell: Callable[[BatchLine, ApiError], None] | None = None) -> Survey:
    """Read all of a file and check everything that needs no model. ``tell`` is called for every invalid request.

    Raises ValueError, naming the line, where the file as a whole cannot be worked through: a line is no request with a
    custom_id, or one custom_id stands twice.
    """
    found, ids = Survey(), array("Q")
    for line in read_lines(path, settings):
        found.digests.append(line.digest)
        ids.append(_hash(line.custom_id))
        try:
            found.num_outputs += check(line, settings)
        except ApiError as error:
            found.num_invalid += 1
            found.first_invalid = found.first_invalid or f"{line.name}: {error.message}"
            if tell is not None:
                tell(line, error)
    if not ids:
        raise ValueError(f"{path}: no requests in it; give one JSON object per line, with custom_id, url and body")
    _check_unique(path, settings, ids)
    return found


def check(line: BatchLine, settings: Settings) -> int:
    """How many outputs the request asks for. Raises ApiError for one that is invalid, as far as that needs no model."""
    if line.error is not None:
        raise ApiError(400, line.error)
    body = read_body(line.url, line.body, settings)
    prompts = body.prompt if isinstance(body, CompletionBody) else ""
    several = not isinstance(prompts, str) and not all(isinstance(one, int) for one in prompts)
    samples = body.n if isinstance(body, GenerationBody) else 1
    return samples * (len(prompts) if several else 1)


def read_lines(path: Path, settings: Settings) -> Iterator[BatchLine]:
    """The requests of a file; empty lines are passed over. Raises ValueError, naming the line, for anything else."""
    longest, index = settings.limits.body_bytes + LINE_BYTES, 0
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a file that can be read") from error
    with file:
        number = 0
        while text := file.readline(longest + 1):
            number += 1
            if number == 1:
                text = text.removeprefix(codecs.BOM_UTF8)
            if len(text) > longest:
                raise ValueError(f"{path}, line {number}: more than {longest} bytes, which is the most that is taken")
            if text.strip():
                try:
                    yield _read(text, index, number)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}, line {number}: {_reason(error)}") from error
                index += 1


def _read(text: bytes, index: int, number: int) -> BatchLine:
    if b"\0" in text:
        raise ValueError("not UTF-8 text; convert it, for UTF-16: iconv -f UTF-16 -t UTF-8")
    value = json.loads(text.decode())
    if not isinstance(value, dict):
        raise ValueError('no JSON object: give one like {"custom_id": "1", "method": "POST", "url": ..., "body": ...}')
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError(f"custom_id={custom_id!r:.60}: give a text, by which the answer is found")
    body = value.get("body")
    return BatchLine(
        index=index,
        number=number,
        custom_id=custom_id,
        url=str(value.get("url")),
        body=body if isinstance(body, dict) else {},
        digest=digest(value),
        error=_form_error(value),
    )


def _form_error(value: Mapping[str, Any]) -> str | None:
    """Why an object with a custom_id is no request."""
    unknown = [name for name in value if name not in ("custom_id", "method", "url", "body")]
    if unknown:
        return f"{unknown[0]}: no such field; there are custom_id, method, url and body"
    if value.get("method") != "POST":
        return f"method={value.get('method')!r:.60}: give POST"
    if value.get("url") not in ROUTES:
        return f"url={value.get('url')!r:.60}: give one of {', '.join(ROUTES)}"
    if not isinstance(value.get("body"), dict):
        return f"body={value.get('body')!r:.60}: give an object, the body of the request"
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8: convert the file"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)


def _hash(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _check_unique(path: Path, settings: Settings, ids: "array[int]") -> None:
    """Raise ValueError for a custom_id that stands twice. ``ids`` are their hashes; equal ones are looked at."""
    import numpy as np

    order = np.sort(np.frombuffer(ids, np.uint64))
    doubtful = set(order[1:][order[1:] == order[:-1]].tolist())
    if not doubtful:
        return
    seen: dict[str, int] = {}
    for line in read_lines(path, settings):
        if _hash(line.custom_id) in doubtful:
            first = seen.setdefault(line.custom_id, line.number)
            if first != line.number:
                raise ValueError(
                    f"{path}: custom_id {line.custom_id!r:.60} stands in lines {first} and {line.number}: their "
                    "answers could not be told apart; give every request its own"
                )
