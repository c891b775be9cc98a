"""Detects repetitive outputs, which inflate the acceptance rate of every drafter and are therefore reported."""

from collections.abc import Sequence

NGRAM = 4
LOOPING_BELOW = 0.5  # ordinary code of a few hundred tokens is well above this


def distinct_share(tokens: Sequence[int], size: int = NGRAM) -> float:
    """Distinct n-grams over all n-grams of ``tokens``; 1 for fewer tokens than one n-gram."""
    grams = [tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether most n-grams of ``tokens`` repeat earlier ones."""
    return distinct_share(tokens) < LOOPING_BELOW
