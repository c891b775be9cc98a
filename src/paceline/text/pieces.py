"""What each token of a vocabulary stands for: its bytes of the text, or a special token.

Vocabularies write the same text in different ways: GPT-2's alphabet of bytes ("Ġthe"), SentencePiece's marks of spaces
("▁the") and byte fallback ("<0xE2>"), WordPiece's marks of continuation ("##ing"). As bytes they can be compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final
from weakref import WeakKeyDictionary

from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import byte_tokens, decode_function

MARK = "▁"  # SentencePiece's space
NUM_PROBES = 200  # tokens that are decoded to see whether a rule holds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A vocabulary as bytes. An id that is in none of the two maps has no text."""

    text: Mapping[int, bytes]  # by token id
    special: Mapping[int, str]  # id -> the token as it is written
    ids: Mapping[bytes, int]  # the token of some bytes: an ordinary one before one of byte fallback, the lowest id
    roles: Mapping[str, int]  # the tokens that begin and end a text
    first: int | None  # the token that the tokenizer puts before a text
    longest: int  # bytes of the longest token

    def bytes_of(self, tokens: Iterable[int]) -> bytes:
        """The text of ``tokens``; special tokens have none."""
        return b"".join(self.text.get(token, b"") for token in tokens)

    def fit(self, tokens: Sequence[int], data: bytes) -> list[int] | None:
        """``tokens``, which encode ``data``, if they have these bytes and no others; else the fewest that do, or None.

        A space that the tokenizer puts before every text is taken away.
        """
        found = self.bytes_of(tokens)
        if found == data:
            return list(tokens)
        if tokens and found == b" " + data and self.text.get(tokens[0], b"").startswith(b" "):
            begin = self.split(self.text[tokens[0]][1:])
            return None if begin is None else [*begin, *tokens[1:]]
        return self.split(data)

    def split(self, data: bytes) -> list[int] | None:
        """The fewest tokens with the bytes ``data``, of equally few the longest first; None if there are none."""
        size = len(data)
        fewest: list[tuple[int, int]] = [(0, 0)] * (size + 1)  # from each place: how many, and where the first ends
        for start in range(size - 1, -1, -1):
            best = (size + 1, start)
            for end in range(min(size, start + self.longest), start, -1):
                if fewest[end][0] + 1 < best[0] and data[start:end] in self.ids:
                    best = (fewest[end][0] + 1, end)
            fewest[start] = best
        if fewest[0][0] > size:
            return None
        found: list[int] = []
        start = 0
        while start < size:
            end = fewest[start][1]
            found.append(self.ids[data[start:end]])
            start = end
        return found


def read_pieces(tokenizer: Tokenizer) -> Pieces:
    """The vocabulary of ``tokenizer``, read once."""
    if tokenizer not in _READ:
        _READ[tokenizer] = _read(tokenizer)
    return _READ[tokenizer]


_READ: WeakKeyDictionary[Tokenizer, Pieces] = WeakKeyDictionary()


def _read(tokenizer: Tokenizer) -> Pieces:
    vocabulary = tokenizer.inner.get_vocab()
    names = sorted(vocabulary.items(), key=lambda item: item[1])
    fallback = {
        token: bytes([byte]) for token, byte in byte_tokens(vocabulary, decode_function(tokenizer.inner)).items()
    }
    special = {token: name for name, token in names if tokenizer.is_special(token)}
    ordinary = {token: name for name, token in names if token not in special and token not in fallback}
    text = _byte_level(tokenizer, ordinary) or _by_decoding(tokenizer, ordinary)
    text = {token: data for token, data in {**text, **fallback}.items() if data}
    ids: dict[bytes, int] = {}
    for token in (*ordinary, *fallback):
        if token in text:
            ids.setdefault(text[token], token)
    begins = tokenizer.encode("a")[:1]
    roles = {"bos": tokenizer.inner.bos_token_id, "eos": tokenizer.inner.eos_token_id}
    return Pieces(
        text=text,
        special=special,
        ids=ids,
        roles={role: token for role, token in roles.items() if isinstance(token, int)},
        first=begins[0] if begins and begins[0] in special else None,
        longest=max(map(len, ids), default=0),
    )


def _alphabet() -> dict[str, int]:
    """GPT-2's character of every byte: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _byte_level(tokenizer: Tokenizer, names: Mapping[int, str]) -> dict[int, bytes]:
    """The bytes of ordinary tokens in GPT-2's alphabet; empty for a tokenizer that does not use it."""
    alphabet = _alphabet()
    base = {name for name in names.values() if name not in tokenizer.added_tokens}
    if not set[str]().union(*base) <= alphabet.keys():
        return {}
    found = {
        token: bytes(alphabet[one] for one in name) if set(name) <= alphabet.keys() else name.encode()
        for token, name in names.items()
    }
    differing = [token for token, name in names.items() if not name.isascii()]
    if not differing:
        return {}
    for token in _probes(differing):
        if tokenizer.decode([token], skip_special=False) != found[token].decode(errors="replace"):
            return {}
    return found


def _by_decoding(tokenizer: Tokenizer, names: Mapping[int, str]) -> dict[int, bytes]:
    """The bytes of ordinary tokens as they decode in a text: by the rule for SentencePiece's spaces where it holds."""
    found = {token: name.replace(MARK, " ") for token, name in names.items()}
    anchor = _anchor(tokenizer, names)
    before = tokenizer.decode([anchor], skip_special=False)

    def decoded(token: int) -> str:
        whole = tokenizer.decode([anchor, token], skip_special=False)
        return whole[len(before) :] if whole.startswith(before) else ""

    if any(decoded(token) != found[token] for token in _probes(list(names))):
        found = {token: decoded(token) for token in names}
    return {token: text.encode(errors="ignore") for token, text in found.items()}


def _anchor(tokenizer: Tokenizer, names: Mapping[int, str]) -> int:
    """A token that stands before the others, so that these are not at the beginning."""
    usual = [token for token in tokenizer.encode("a", special=False) if token in names]
    return usual[-1] if usual else next(iter(names))


def _probes(tokens: Sequence[int]) -> Sequence[int]:
    """Some of ``tokens``, spread over all."""
    return tokens[:: max(1, len(tokens) // NUM_PROBES)]
