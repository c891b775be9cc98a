"""How repetitive a text is: looping outputs flatter every drafter and are reported. Knows nothing of models."""

from collections.abc import Sequence

NGRAM = 4
LOOPING_BELOW = 0.5  # ordinary code of some hundred tokens keeps well above this share


def distinct_share(tokens: Sequence[int], size: int = NGRAM) -> float:
    """Distinct n-grams over all n-grams of ``tokens``; 1 for a text too short to repeat one."""
    grams = [tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether most of a text repeats itself."""
    return distinct_share(tokens) < LOOPING_BELOW
