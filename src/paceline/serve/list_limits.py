"""Limits of sampling options that are lists: reading them takes time, and processing logits by them memory."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

from paceline.serve.errors import ApiError
from paceline.serve.settings import Limits

IDS = ("logit_bias", "stop_token_ids", "suppress_tokens", "begin_suppress_tokens", "allowed_token_ids")
SEQUENCES = ("bad_words", "bad_words_ids", "sequence_bias")


def check_lists(values: Mapping[str, Any], limits: Limits) -> None:
    """Raise ApiError for a list that is too long, before anything in it is read."""
    for name, most in (*((name, limits.token_ids) for name in IDS), *((name, limits.sequences) for name in SEQUENCES)):
        _check(name, values.get(name), most, "entries")
    for word in _listed(values.get("bad_words")):
        _check("bad_words", word, limits.stop_characters, "characters")
    for tokens in _listed(values.get("bad_words_ids")):
        _check("bad_words_ids", tokens, limits.sequence_tokens, "token ids")
    for pair in _listed(values.get("sequence_bias")):
        _check("sequence_bias", pair[0] if _listed(pair) else None, limits.sequence_tokens, "token ids")


def _check(name: str, value: object, most: int, what: str) -> None:
    if isinstance(value, Sized) and len(value) > most:
        raise ApiError(400, f"{name}: {len(value)} {what}, at most {most} are taken", param=name)


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
