"""A datastore of texts on disk, opened as a memory map: where a context occurs in it, and what follows.

The suffix array is of the tokens read backwards: it sorts the places of all tokens by what ends there, the last token
first. So a context is looked up by one search, which finds its longest suffix that occurs anywhere, and the occurrences
of a suffix lie side by side. N tokens and separators, T tokens.
"""

import json
import mmap
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast, final

from paceline.core.token_index import SEPARATOR

FORMAT = "paceline-datastore"
VERSION = 1
HEADER, TOKENS, PLACES = "header.json", "tokens.bin", "places.bin"
TYPES: Mapping[int, Literal["i", "q"]] = {4: "i", 8: "q"}  # by their bytes
BUILD = "paceline datastore build FILES --model MODEL --output DIR"


class DatastoreError(ValueError):
    """A datastore that cannot be opened, or that is of another vocabulary."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What header.json says. ``vocabulary`` identifies the tokenizer; None: token ids of an unknown one."""

    vocab_size: int
    vocabulary: str | None
    num_tokens: int  # T
    num_documents: int
    largest: int  # token
    place_bytes: int  # of an entry of the suffix array
    sha256: Mapping[str, str]  # of the other files
    byte_order: str = sys.byteorder
    format: str = FORMAT
    version: int = VERSION

    @property
    def lengths(self) -> dict[str, int]:
        """Bytes of the other files. Tokens have 4 bytes; a separator is before, between and behind the documents."""
        return {
            TOKENS: 4 * (self.num_tokens + self.num_documents + 1),
            PLACES: self.place_bytes * self.num_tokens,
        }

    def to_json(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1)


@final
@dataclass(frozen=True, slots=True)
class Range:
    """Neighbouring entries of the suffix array, the places where the last ``match`` tokens of a context occur."""

    first: int
    count: int
    match: int


@final
class Datastore:
    """The datastore in a directory, which is read as it is used and shared by all processes that open it.

    Raises DatastoreError for a directory that holds none, and for files that are not whole.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.header = read_header(self.folder)
        for name, length in self.header.lengths.items():
            path = self.folder / name
            found = path.stat().st_size if path.is_file() else -1
            if found != length:
                has = "is missing" if found < 0 else f"has {found} bytes"
                raise DatastoreError(f"{path} {has}, and {length} belong there: build the datastore again: {BUILD}")
        self.tokens = _map(self.folder / TOKENS, "i")  # [N], SEPARATOR between documents
        self._places = _map(self.folder / PLACES, TYPES[self.header.place_bytes])  # [T]
        if not self.tokens[0] == self.tokens[len(self.tokens) - 1] == SEPARATOR:
            raise DatastoreError(f"{self.folder / TOKENS} is damaged: build the datastore again: {BUILD}")

    def check(self, *, vocab_size: int, vocabulary: str | None) -> None:
        """Raise DatastoreError unless the tokens are those of a target."""
        header = self.header
        if vocabulary is not None and header.vocabulary is not None:
            if vocabulary == header.vocabulary:
                return
            raise DatastoreError(
                f"{self.folder} is of another tokenizer ({header.vocabulary}) than the target's ({vocabulary}): build "
                f"one with the target: {BUILD}"
            )
        if vocab_size != header.vocab_size or header.largest >= vocab_size:
            raise DatastoreError(
                f"{self.folder} is of a vocabulary of {header.vocab_size} tokens, and the target has {vocab_size}: "
                f"build one with the target: {BUILD}"
            )

    def find(self, context: Sequence[int], *, min_match: int, max_match: int) -> Range | None:
        """Where the longest suffix of ``context`` occurs, of ``min_match`` to ``max_match`` tokens; None: nowhere."""
        wanted = list(context[: -max_match - 1 : -1])  # the last token first
        low, high = 0, len(self._places)  # entries before low are below wanted, those from high on are not
        below = above = 0  # how many tokens the entries on both sides match
        while low < high:
            middle = (low + high) // 2
            match, is_below = self._compare(middle, wanted, min(below, above))
            if is_below:
                low, below = middle + 1, match
            else:
                high, above = middle, match
        match = max(below, above)
        if match < min_match:
            return None
        first, end = self._first(wanted, match, low), self._end(wanted, match, low)
        return Range(first, end - first, match)

    def places(self, found: Range, limit: int) -> list[int]:
        """Where the occurrences end, at most ``limit`` of them, evenly spread over the range."""
        count = min(found.count, limit)
        return [self._places[found.first + number * found.count // count] for number in range(count)]

    def _compare(self, entry: int, wanted: Sequence[int], skip: int) -> tuple[int, bool]:
        """How many tokens of ``wanted`` match, the first ``skip`` of which do, and whether the entry is below it."""
        tokens, last, match = self.tokens, self._places[entry], skip
        for want in wanted[skip:]:
            token = tokens[last - match]
            if token != want:
                return match, token < want
            match += 1
        return match, False

    def _matches(self, entry: int, wanted: Sequence[int]) -> bool:
        tokens, last = self.tokens, self._places[entry]
        return all(tokens[last - number] == want for number, want in enumerate(wanted))

    def _first(self, wanted: Sequence[int], match: int, entry: int) -> int:
        """The first entry that matches as many tokens, ``entry`` at most. Nothing is searched beyond twice its way."""
        part, step, high = wanted[:match], 1, entry
        while high - step >= 0 and self._matches(high - step, part):
            high, step = high - step, 2 * step
        low = max(high - step, -1)  # does not match
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._matches(middle, part) else (middle, high)
        return high

    def _end(self, wanted: Sequence[int], match: int, entry: int) -> int:
        """Behind the last entry that matches as many tokens, ``entry`` at least."""
        part, step, low = wanted[:match], 1, entry - 1
        while low + step < len(self._places) and self._matches(low + step, part):
            low, step = low + step, 2 * step
        high = min(low + step, len(self._places))  # does not match
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._matches(middle, part) else (low, middle)
        return low + 1


def is_datastore(folder: str | Path) -> bool:
    """Whether a directory holds a datastore, whole or not."""
    try:
        read_header(Path(folder))
    except DatastoreError:
        return False
    return True


def read_header(folder: Path) -> Header:
    """The header of a datastore. Raises DatastoreError where there is none of this version."""
    path = folder / HEADER
    if not folder.is_dir():
        raise DatastoreError(f"{folder}: no such datastore; build one: {BUILD}")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DatastoreError(f"{folder} is no datastore: {HEADER} is not there; build one: {BUILD}") from error
    except ValueError as error:
        raise DatastoreError(f"{path} is not a datastore's header ({error}); build one: {BUILD}") from error
    fields = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    if fields.get("format") != FORMAT:
        raise DatastoreError(f"{path} is not a datastore's header; build one: {BUILD}")
    if fields.get("version") != VERSION or fields.get("byte_order") != sys.byteorder:
        raise DatastoreError(
            f"{folder} is a datastore of version {fields.get('version')} and {fields.get('byte_order')}-endian, and "
            f"version {VERSION}, {sys.byteorder}-endian, is read here: build it again: {BUILD}"
        )
    wanted = {name: kind for name, kind in _FIELDS.items() if not isinstance(fields.get(name), kind)}
    if wanted or fields["place_bytes"] not in TYPES:
        raise DatastoreError(f"{path} is damaged ({', '.join(wanted) or 'place_bytes'}): build it again: {BUILD}")
    return Header(**{name: fields[name] for name in _FIELDS})  # pyright: ignore[reportArgumentType]


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "vocab_size": int,
    "vocabulary": (str, type(None)),
    "num_tokens": int,
    "num_documents": int,
    "largest": int,
    "place_bytes": int,
    "sha256": dict,
}


def _map(path: Path, kind: Literal["i", "q"]) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast(kind)
