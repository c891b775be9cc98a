"""What the vocabularies of a target and of a draft have in common, and how each spells the other's tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final
from weakref import WeakKeyDictionary

from paceline.text.pieces import Pieces, read_pieces
from paceline.text.tokenizer import Tokenizer

MAX_PIECES = 6  # draft tokens that spell one of the target's: two characters of three bytes

# Prose and code that measures how much of an ordinary text both vocabularies have in common.
SAMPLE = """\
The committee met again on Tuesday morning, and nobody could remember who had called the meeting. "It was not me," said
the chairwoman; she had been travelling since March 2019. They agreed that prices would rise by about 3.5 % next year.

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

Question: What is the capital of France, and how many people live there?
Answer: Paris is the capital. About two million people live in the city itself, and eleven million around it.

{"name": "example", "version": "1.4.0", "files": ["README.md", "src/main.py"], "private": true}
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Intersection:
    """Tokens in common by their bytes, and special tokens by their text or role.

    ``spellings`` has draft ids, at least one, for the other tokens of the target, as far as the draft can spell them.
    """

    target_ids: Sequence[int]  # [draft size], -1 where the target does not have the token
    spellings: Mapping[int, Sequence[int]]
    unknown: int  # the draft token for those that it cannot spell
    first: int | None  # the draft token that begins a text
    num_common: int  # tokens with a text in common
    num_tokens: int  # of the target that have a text
    common_in_text: float  # share of an ordinary text's tokens, by the target's tokenizer
    draft_tokens_per_token: float  # of an ordinary text

    @property
    def share(self) -> float:
        """The share of the target's tokens that the draft has."""
        return self.num_common / self.num_tokens if self.num_tokens else 0.0


def intersect(target: Tokenizer, draft: Tokenizer, *, target_size: int, draft_size: int) -> Intersection:
    """The intersection, of ids below the sizes of the two models' vocabularies; computed once."""
    known = _KNOWN.setdefault(target, WeakKeyDictionary()).setdefault(draft, {})
    sizes = target_size, draft_size
    if sizes not in known:
        known[sizes] = _intersect(target, draft, *sizes)
    return known[sizes]


_KNOWN: WeakKeyDictionary[Tokenizer, WeakKeyDictionary[Tokenizer, dict[tuple[int, int], Intersection]]] = (
    WeakKeyDictionary()
)


def _intersect(target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> Intersection:
    theirs, ours = read_pieces(target), read_pieces(draft)
    special = match_special(theirs, ours)
    common = {theirs.ids[data]: token for data, token in ours.ids.items() if data in theirs.ids and token < draft_size}
    common = {token: own for token, own in common.items() if token < target_size}
    both = {**common, **{token: own for token, own in special.items() if token < target_size and own < draft_size}}
    target_ids = [-1] * draft_size
    for token, own in sorted(both.items(), reverse=True):  # of several target tokens the lowest id draws
        target_ids[own] = token
    sample = target.encode(SAMPLE, special=False)
    read = {**both, **read_special(theirs, ours)}
    spellings = {token: own for token, own in read.items() if own < draft_size and target_ids[own] != token}
    others = [token for token in (*theirs.text, *theirs.special) if token not in read and token < target_size]
    return Intersection(
        target_ids=target_ids,
        spellings={
            **_spellings(others, theirs, ours, draft, draft_size),
            **{token: [own] for token, own in spellings.items() if token < target_size},
        },
        unknown=next((token for token in _unknown(draft, ours) if token < draft_size), 0),
        first=ours.first if ours.first is not None and ours.first < draft_size else None,
        num_common=len(common),
        num_tokens=sum(token < target_size for token in theirs.text),
        common_in_text=sum(token in common for token in sample) / max(1, len(sample)),
        draft_tokens_per_token=len(draft.encode(SAMPLE, special=False)) / max(1, len(sample)),
    )


def _unknown(tokenizer: Tokenizer, pieces: Pieces) -> list[int]:
    """The token that the tokenizer has for what it does not know; else a space, else any."""
    own = tokenizer.inner.unk_token_id
    found = [own] if isinstance(own, int) else []
    return [*found, *([pieces.ids[b" "]] if b" " in pieces.ids else []), *sorted(pieces.text)[:1]]


def match_special(target: Pieces, draft: Pieces) -> dict[int, int]:
    """The draft's special token for those of the target that it has: of the same text, else of the same role."""
    written = {text: token for token, text in draft.special.items()}
    found = {token: written[text] for token, text in target.special.items() if text in written}
    for role, token in target.roles.items():
        own = draft.roles.get(role)
        if own is not None and token in target.special and own in draft.special and own not in found.values():
            found.setdefault(token, own)
    return found


def read_special(target: Pieces, draft: Pieces) -> dict[int, int]:
    """As ``match_special``, for what is read and not drafted.

    What begins a text is read by a draft without such a token as what ends one, which stands between texts in training.
    """
    found, token, own = match_special(target, draft), target.roles.get("bos"), draft.roles.get("eos")
    if token is not None and own is not None and token in target.special and own in draft.special:
        found.setdefault(token, own)
    return found


def _spellings(
    tokens: Sequence[int], target: Pieces, draft: Pieces, tokenizer: Tokenizer, draft_size: int
) -> dict[int, list[int]]:
    """Draft tokens for target ``tokens``: those of its tokenizer where they have the same bytes, else the fewest."""
    data = {token: target.text.get(token) or target.special[token].encode() for token in tokens}
    texts: dict[int, str] = {}
    for token, one in data.items():
        try:
            texts[token] = one.decode()
        except UnicodeDecodeError:  # a part of a character
            continue
    encoded = dict(zip(texts, tokenizer.encode_many(list(texts.values()), special=False), strict=True))
    found: dict[int, list[int]] = {}
    for token, one in data.items():
        spelled = draft.fit(encoded.get(token, []), one)
        if spelled and max(spelled) < draft_size:
            found[token] = spelled[-MAX_PIECES:]
    return found
