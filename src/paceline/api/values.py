"""Values as users give them, checked one by one and brought into one form. Knows no parameter by name."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TypeAlias

Biases: TypeAlias = tuple[tuple[int, float], ...]
TokenLists: TypeAlias = tuple[tuple[int, ...], ...]
ListBiases: TypeAlias = tuple[tuple[tuple[int, ...], float], ...]


def real(name: str, value: object) -> float:
    """A number. Raises ValueError, as all of these do."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r}: give a number")
    return float(value)


def between(least: float, most: float, name: str, value: object) -> float:
    """A number from ``least`` to ``most``; 0 is off."""
    number = real(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name}={number}: give a number from {least:g} to {most:g} (0 is off)")
    return number


def factor(name: str, value: object) -> float:
    """A finite number above 0; 1 is off."""
    number = real(name, value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{name}={number}: give a finite number above 0 (1 is off)")
    return number


def integer(name: str, value: object) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: give an integer")
    return int(value)


def optional(name: str, value: object) -> int | None:
    """A whole number, or None."""
    return None if value is None else integer(name, value)


def at_least(least: int, name: str, value: int | None, way_out: str) -> int | None:
    """``value`` if it is not below ``least``."""
    if value is not None and value < least:
        raise ValueError(f"{name}={value}: give {way_out}")
    return value


def at_most(most: int, name: str, value: object) -> int | None:
    """A count from 0 to ``most``, or None."""
    count = optional(name, value)
    if count is not None and not 0 <= count <= most:
        raise ValueError(f"{name}={count}: give a count from 0 to {most}, or None (off)")
    return count


def flag(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: give True or False")
    return value


def word(name: str, value: object, known: Sequence[str]) -> str:
    """One of the ``known`` words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r}: give {' or '.join(map(repr, known))}")
    return value


def strings(name: str, value: object) -> tuple[str, ...]:
    """Strings without repeats; one alone may stand for itself, None is none."""
    values = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(values, Sequence) or not all(isinstance(one, str) and one for one in values):
        raise ValueError(f"{name}={value!r}: give a string or several, none of them empty")
    return tuple(dict.fromkeys(values))


def ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids without repeats; None is none."""
    return tuple(dict.fromkeys(_tokens(name, () if value is None else value)))


def some_ids(name: str, value: object) -> tuple[int, ...] | None:
    """Token ids without repeats, at least one; None stays None."""
    found = ids(name, value)
    if value is not None and not found:
        raise ValueError(f"{name}=[]: no token is left; give at least one token id, or None (every token)")
    return found or None


def biases(name: str, value: object) -> Biases:
    """Pairs of a token id and a bias, by id; from a mapping, whose ids may be strings as in JSON, or from pairs.

    Of several pairs of one id the last holds.
    """
    found = {_token_key(name, token): number for token, number in _pairs(name, value, "{token id: bias}")}
    return tuple(sorted((_token(name, token), _bias(f"{name}[{token}]", number)) for token, number in found.items()))


def token_lists(name: str, value: object) -> TokenLists:
    """Sequences of token ids without repeats, none of them empty; None is none."""
    values = () if value is None else value
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValueError(f"{name}={value!r}: give lists of token ids, such as [[5], [7, 2]]")
    return tuple(dict.fromkeys(_some_tokens(name, one) for one in values))


def list_biases(name: str, value: object) -> ListBiases:
    """Pairs of token ids in a row and a bias; from a mapping or from pairs, of which the last of a kind holds."""
    pairs = _pairs(name, value, "[[token ids, bias], ...]")
    found = {_some_tokens(name, tokens): number for tokens, number in pairs}
    return tuple((tokens, _bias(f"{name}[{list(tokens)}]", number)) for tokens, number in found.items())


def _pairs(name: str, value: object, form: str) -> list[tuple[object, object]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    entries = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [None]
    pairs = [
        (entry[0], entry[1])
        for entry in entries
        if isinstance(entry, Sequence) and not isinstance(entry, str | bytes) and len(entry) == 2
    ]
    if len(pairs) < len(entries):
        raise ValueError(f"{name}={value!r}: give {form}")
    return pairs


def _bias(name: str, value: object) -> float:
    number = real(name, value)
    if not number < float("inf"):
        raise ValueError(f"{name}={number}: give a finite bias, or -inf to ban")
    return number


def _token_key(name: str, token: object) -> int:
    return int(token) if isinstance(token, str) and token.isdecimal() else integer(name, token)


def _token(name: str, token: int) -> int:
    if token < 0:
        raise ValueError(f"{name}: token id {token}; give ids of at least 0")
    return token


def _tokens(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{name}={value!r}: give a list of token ids")
    tokens = tuple(integer(name, one) for one in value)
    if any(token < 0 for token in tokens):
        raise ValueError(f"{name}={list(tokens)}: give token ids of at least 0")
    return tokens


def _some_tokens(name: str, value: object) -> tuple[int, ...]:
    tokens = _tokens(name, value)
    if not tokens:
        raise ValueError(f"{name} has an empty list of token ids: leave it out")
    return tokens
