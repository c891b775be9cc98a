"""Exchanges a growing sequence between two tokenizers as text (SLEM, 2502.05202), byte by byte.

Concatenated texts are tokenized differently at the seam, so what is known is encoded again for some tokens back. Both
encodings are cut where a token of each ends at the same byte: nothing is inserted twice, and nothing is lost.
"""

from collections.abc import Iterable, Sequence
from typing import final

from paceline.text.intersection import SAMPLE, match_special, read_special
from paceline.text.pieces import read_pieces
from paceline.text.tokenizer import Tokenizer

LOOK_BEHIND = 10  # tokens before a seam that are encoded again with what follows


@final
class Encoder:
    """Tokens of bytes, by a tokenizer where its tokens have just these bytes, else the fewest that do."""

    def __init__(self, tokenizer: Tokenizer, *, size: int) -> None:
        self.pieces, self._tokenizer, self._size = read_pieces(tokenizer), tokenizer, size

    def encode(self, data: bytes) -> list[int]:
        """Tokens of ``data``; none for bytes that the vocabulary does not have, or that no whole characters make."""
        try:
            found = self._tokenizer.encode(data.decode(), special=False)
        except UnicodeDecodeError:
            found = []
        fitting = self.pieces.fit(found, data)
        return fitting if fitting is not None and max(fitting, default=0) < self._size else []

    def follow(self, known: Sequence[int], data: bytes, *, keep: bool) -> tuple[int, list[int]]:
        """Tokens of ``data`` after the last of the ``known`` ones, as they are when both are encoded together.

        Returns how many of ``known`` stay, all with ``keep``, and the tokens that follow these. The bytes of both are
        always those of ``known`` and ``data``; where the vocabulary has no such tokens, none follow.
        """
        start = self._start(known)
        tail = [self.pieces.text[token] for token in known[start:]]
        whole = self.encode(b"".join(tail) + data)
        ends = [0]
        for piece in tail:
            ends.append(ends[-1] + len(piece))
        places = {end: start + number for number, end in enumerate(ends)}  # byte -> how many of ``known`` end there
        at, seams = 0, [(0, 0)] if 0 in places else []
        for number, token in enumerate(whole):
            at += len(self.pieces.text[token])
            if at in places:
                seams.append((at, number + 1))
        if keep:
            seam = next((number for at, number in seams if at == ends[-1]), None)
            return len(known), whole[seam:] if whole and seam is not None else self.encode(data)
        if not whole:
            return len(known), self.encode(data)
        # The first tokens of a window lack what is before them: those that were known stay, if both agree later on.
        settled = 0 if start == 0 or known[start - 1] not in self.pieces.text else 2
        at, number = next(seam for seam in seams if seam[1] >= settled or seam is seams[-1])
        return places[at], whole[number:]

    def _start(self, known: Sequence[int]) -> int:
        """Where encoding again begins: some tokens back, at whole characters, not across a special token."""
        start = len(known)
        while start and len(known) - start < LOOK_BEHIND and known[start - 1] in self.pieces.text:
            start -= 1
        while start < len(known) and 0x80 <= self.pieces.text[known[start]][0] < 0xC0:
            start += 1
        return start


@final
class Exchanged:
    """A row's sequence in the draft's tokens, so far as its text has whole characters."""

    def __init__(self, first: int | None) -> None:
        self.num_read = 0  # of the target's tokens
        self.tokens: list[int] = []  # the draft's
        self.rest = b""  # of a character that is not complete
        self.first = first


@final
class Retokenizer:
    """The text of target tokens as draft tokens, and the other way round.

    Special tokens are exchanged for those of the same text or role; others of the target are read as they are written.
    ``draft_size`` is the size of the draft model's vocabulary.
    """

    def __init__(self, *, target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> None:
        self._target, self._draft = Encoder(target, size=target_size), Encoder(draft, size=draft_size)
        both = self._target.pieces, self._draft.pieces
        self._to_draft = {one: other for one, other in read_special(*both).items() if other < draft_size}
        self._to_target = {other: one for one, other in match_special(*both).items() if one < target_size}
        sizes = [len(one.encode(SAMPLE, special=False)) for one in (draft, target)]
        self.draft_tokens_per_token = sizes[0] / max(1, sizes[1])

    def begin(self) -> Exchanged:
        """An empty sequence."""
        first = self._draft.pieces.first
        return Exchanged(first)

    def read(self, into: Exchanged, tokens: Sequence[int]) -> None:
        """Read those of the target's ``tokens`` that are new."""
        data = into.rest
        for token in tokens[into.num_read :]:
            special = self._to_draft.get(token)
            if special is None:
                own = self._target.pieces
                data += own.text.get(token) or own.special.get(token, "").encode()
                continue
            self._append(into, data)
            into.tokens.append(special)
            data = b""
        into.num_read = len(tokens)
        if into.first is not None and into.tokens[:1] != [into.first] and tokens:
            into.tokens.insert(0, into.first)
        whole = _whole(data)
        self._append(into, data[:whole])
        into.rest = data[whole:]

    def drafted(self, sequence: Sequence[int], read: Exchanged, tokens: Iterable[int]) -> list[int]:
        """The target's tokens after its ``sequence``, from draft ``tokens`` after what was ``read`` of it."""
        data, ends = b"", list[int]()
        for token in tokens:
            if token in self._to_target:
                ends.append(self._to_target[token])
                break
            data += self._draft.pieces.text.get(token, b"")
        if not data.startswith(read.rest):  # the draft has not continued the character
            return []
        data = data[len(read.rest) :]
        data = data if ends else data[: _whole(read.rest + data) - len(read.rest)]
        found = self._target.follow(sequence, data, keep=True)[1] if data else []
        return [*found, *ends] if found or not data else []

    def _append(self, into: Exchanged, data: bytes) -> None:
        """Append text to the draft's tokens; the last of these may change."""
        if data:
            kept, found = self._draft.follow(into.tokens, data, keep=False)
            into.tokens[kept:] = found


def _whole(data: bytes) -> int:
    """Bytes of ``data`` without an incomplete character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
        if byte < 0x80:
            break
    return len(data)
