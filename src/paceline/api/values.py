"""Readers of single parameter values: each checks one value and returns it in its stored form, or raises ValueError."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from sys import float_info
from typing import Any, TypeAlias, TypeGuard, cast

Biases: TypeAlias = tuple[tuple[int, float], ...]
TokenLists: TypeAlias = tuple[tuple[int, ...], ...]
ListBiases: TypeAlias = tuple[tuple[tuple[int, ...], float], ...]
Reader: TypeAlias = Callable[[str, object], object]  # (parameter name, given value) -> stored value

INF = float("inf")
MOST_ID = 2**31 - 1  # of a token, in any vocabulary; larger numbers fit no tensor
LARGEST = 1e30  # of what is added to logits, or multiplies them: single precision holds the outcome


def real(name: str, value: object) -> float:
    """A number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r}: give a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is an integer above {float_info.max:.3g}: give a smaller number") from None


def number(is_valid: Callable[[float], bool], wanted: str) -> Callable[[str, object], float]:
    """A reader of numbers that are valid; ``wanted`` describes them in the error message."""

    def read(name: str, value: object) -> float:
        found = real(name, value)
        if not is_valid(found):
            raise ValueError(f"{name}={found}: give {wanted}")
        return found

    return read


def integer(name: str, value: object, *, optional: bool = False) -> int | None:
    """An integer, or None where it is optional."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r}: give an integer{', or None' if optional else ''}")
    return int(value)


def count(least: int, wanted: str, *, most: float = INF, optional: bool = False) -> Callable[[str, object], int | None]:
    """A reader of integers from ``least`` to ``most``; ``wanted`` describes them in the error message."""

    def read(name: str, value: object) -> int | None:
        found = integer(name, value, optional=optional)
        if found is not None and not least <= found <= most:
            raise ValueError(f"{name}={found}: give {wanted}")
        return found

    return read


def flag(name: str, value: object, *, optional: bool = False) -> bool | None:
    """True or False, or None where it is optional."""
    if not isinstance(value, bool) and not (value is None and optional):
        raise ValueError(f"{name}={value!r}: give {'True, False or None' if optional else 'True or False'}")
    return value


def word(*known: str) -> Callable[[str, object], str]:
    """A reader of the ``known`` words."""

    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{name}={value!r}: give {' or '.join(map(repr, known))}")
        return value

    return read


def strings(name: str, value: object) -> tuple[str, ...]:
    """Non-empty strings without repeats, from one string or several; () for None."""
    values = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(values, Sequence) or not all(isinstance(one, str) and one for one in values):
        raise ValueError(f"{name}={value!r}: give a string or several, none of them empty")
    return tuple(dict.fromkeys(values))


def ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids without repeats; () for None."""
    return tuple(dict.fromkeys(_tokens(name, () if value is None else value)))


def some_ids(name: str, value: object) -> tuple[int, ...] | None:
    """At least one token id, without repeats; None for None."""
    found = ids(name, value)
    if value is not None and not found:
        raise ValueError(f"{name}=[]: no token is left; give at least one token id, or None (every token)")
    return found or None


def text_or_ids(name: str, value: object) -> str | tuple[int, ...] | None:
    """A non-empty text or token ids; None for None."""
    found = value if value is None or isinstance(value, str) else _tokens(name, value)
    if found is not None and not found:
        raise ValueError(f"{name}={value!r}: give a text or token ids, at least one, or None")
    return found


def biases(name: str, value: object) -> Biases:
    """(token id, bias) sorted by id, from a mapping or from pairs; the last pair of an id wins. JSON has string ids."""
    found = {_token_key(name, token): bias for token, bias in _pairs(name, value, "{token id: bias}")}
    return tuple(sorted((token, _bias(f"{name}[{token}]", bias)) for token, bias in found.items()))


def token_lists(name: str, value: object) -> TokenLists:
    """Non-empty sequences of token ids without repeats; () for None."""
    values = () if value is None else value
    if not _is_list(values):
        raise ValueError(f"{name}={value!r}: give lists of token ids, such as [[5], [7, 2]]")
    return tuple(dict.fromkeys(_some_tokens(name, one) for one in values))


def list_biases(name: str, value: object) -> ListBiases:
    """(token ids, bias), from a mapping or from pairs; the last pair of a sequence wins."""
    pairs = _pairs(name, value, "[[token ids, bias], ...]")
    found = {_some_tokens(name, tokens): bias for tokens, bias in pairs}
    return tuple((tokens, _bias(f"{name}[{list(tokens)}]", bias)) for tokens, bias in found.items())


def _pairs(name: str, value: object, form: str) -> list[tuple[object, object]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    entries: Sequence[Any] = value if _is_list(value) else [None]
    if not all(_is_list(entry) and len(entry) == 2 for entry in entries):
        raise ValueError(f"{name}={value!r}: give {form}")
    return [(entry[0], entry[1]) for entry in entries]


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


_bias = number(
    lambda bias: bias == -INF or abs(bias) <= LARGEST,
    f"a finite bias, or -inf to ban (finite ones from -{LARGEST:g} to {LARGEST:g})",
)


def _token_key(name: str, token: object) -> int:
    text = isinstance(token, str) and token.isascii() and token.isdecimal() and len(token) <= len(str(MOST_ID))
    found = int(cast(str, token)) if text else integer(name, token)
    assert found is not None
    if not 0 <= found <= MOST_ID:
        raise ValueError(f"{name}: token id {found}; give ids of at least 0, and at most {MOST_ID}")
    return found


def _tokens(name: str, value: object) -> tuple[int, ...]:
    if not _is_list(value):
        raise ValueError(f"{name}={value!r}: give a list of token ids")
    tokens = tuple(integer(name, one) or 0 for one in value)
    if any(not 0 <= token <= MOST_ID for token in tokens):
        raise ValueError(f"{name}={list(tokens)}: give token ids of at least 0, and at most {MOST_ID}")
    return tokens


def _some_tokens(name: str, value: object) -> tuple[int, ...]:
    tokens = _tokens(name, value)
    if not tokens:
        raise ValueError(f"{name} has an empty list of token ids: leave it out")
    return tokens
