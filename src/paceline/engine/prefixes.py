"""Assigns rows to waiting requests and finds the prefixes that they can copy from other rows. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.admission import Prefix
from paceline.core.context import Context

MIN_SHARED = 16  # prefilling a shorter prefix with the rest of the batch is faster than copying it


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The row of a waiting request, which ``index`` names, and the prefix that it copies."""

    index: int
    row: int
    prefix: Prefix | None


class Source(NamedTuple):
    """A sequence whose tokens but the last, the root, are in a row's caches or will be, and the context it needs."""

    tokens: list[int]
    context: Context | None = None

    def common(self, other: "Source") -> int:
        """How many tokens in the caches are the same for both: none under different contexts."""
        most = min(len(self.tokens), len(other.tokens)) - 1
        length = common(self.tokens, other.tokens, most)
        return length if length and self.context == other.context else 0


def arrange(waiting: Sequence[Source], free: Sequence[int], held: Mapping[int, Source]) -> list[list[Placement]]:
    """Assign the rows ``free``, in the order given, to the first prompts of ``waiting``.

    ``held`` maps each row, running or not, to its sequence. Returns waves to be admitted one after another: a prompt
    that shares a longer prefix with another waiting prompt than with any row is placed in a later wave than that
    prompt, and copies from it.
    """
    count = min(len(waiting), len(free))
    level, source, shared = [0] * count, [-1] * count, [0] * count  # source: of level 0 a row, else a waiting index
    for index, own in enumerate(waiting[:count]):
        for row, sequence in held.items():
            length = own.common(sequence)
            if length > shared[index] and _worth(length, len(own.tokens) - 1):
                source[index], shared[index] = row, length
        for other in range(index):
            length = own.common(waiting[other])
            if length > shared[index] and _worth(length, len(own.tokens) - 1):
                source[index], shared[index], level[index] = other, length, level[other] + 1
    rows = _choose_rows(free, level, source, shared)
    waves: list[list[Placement]] = [[] for _ in range(max(level, default=-1) + 1)]
    for index in range(count):
        prefix = None
        if shared[index]:
            row = source[index] if level[index] == 0 else rows[source[index]]
            prefix = Prefix(row=row, length=shared[index])
        waves[level[index]].append(Placement(index=index, row=rows[index], prefix=prefix))
    return waves


def common(first: list[int], second: list[int], most: int) -> int:
    """Length of the longest common prefix, at most ``most``, which neither is shorter than.

    Compares slices: a token-by-token loop is slow for long prompts.
    """
    low, high = 0, most
    if high < 1 or first[0] != second[0]:
        return 0
    if first[:high] == second[:high]:
        return high
    while low < high - 1:  # first[:low] is common, first[:high] is not
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _worth(length: int, whole: int) -> bool:
    return length >= MIN_SHARED or length == whole


def _choose_rows(free: Sequence[int], level: list[int], source: list[int], shared: list[int]) -> list[int]:
    """A free row for each request: its source row where possible, which saves the copy, else the first unused row."""
    left, rows = list(free), [-1] * len(level)
    for index in sorted(range(len(level)), key=lambda index: -shared[index]):
        if level[index] == 0 and shared[index] and source[index] in left:
            rows[index] = source[index]
            left.remove(source[index])
    for index, row in enumerate(rows):
        if row < 0:
            rows[index] = left.pop(0)
    return rows
