"""Prefix sharing against a simulation of the caches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.admission import Prefix
from paceline.engine import prefixes
from paceline.engine.prefixes import MIN_SHARED, Placement, Source, arrange, common

texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40), st.integers(0, 40))
@settings(derandomize=True, deadline=None, database=None)
def test_common_is_the_length_of_the_longest_common_beginning(first, second, same):
    second = first[:same] + second  # so that long ones occur
    naive = next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    assert longest_common(first, second) == longest_common(second, first) == naive


def longest_common(first, second):
    return common(first, second, min(len(first), len(second)))


def place(waiting, free, held):
    return arrange([Source(tokens) for tokens in waiting], free, {row: Source(held[row]) for row in held})


def flat(waves):
    return [placement for wave in waves for placement in wave]


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    waiting=st.lists(texts, max_size=7),
    held=st.lists(texts, min_size=1, max_size=6),
    free=st.data(),
    least=st.integers(1, 4),
)
def test_every_copy_is_of_what_its_source_then_holds(waiting, held, free, least):
    rows = free.draw(st.permutations(range(len(held))))[: free.draw(st.integers(0, len(held)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_SHARED", least)
        waves = place(waiting, rows, dict(enumerate(held)))
    placements = flat(waves)
    count = min(len(waiting), len(rows))
    assert sorted(placement.index for placement in placements) == list(range(count)), "the first come first"
    assert len({placement.row for placement in placements}) == count
    assert {placement.row for placement in placements} <= set(rows), "running rows are left alone"
    caches = {row: text[:-1] for row, text in enumerate(held)}
    read = 0
    for wave in waves:
        before = dict(caches)  # sources are read before anything is written
        for placement in wave:
            known, prefix = waiting[placement.index][:-1], placement.prefix
            if prefix is not None:
                assert prefix.length >= least or prefix.length == len(known)
                assert before[prefix.row][: prefix.length] == known[: prefix.length], "a prefix that is not there"
            read += len(known) - (prefix.length if prefix is not None else 0)
            caches[placement.row] = known
    assert read == least_reading(waiting[:count], [text[:-1] for text in held], least)


def least_reading(waiting, held, least):
    """Tokens that must be read if each prompt may copy from every row as it was and from every prompt before it."""
    total = 0
    for index, prompt in enumerate(waiting):
        known = prompt[:-1]
        lengths = [longest_common(known, other) for other in [*held, *(prompt[:-1] for prompt in waiting[:index])]]
        total += len(known) - max([n for n in lengths if n >= least or n == len(known)], default=0)
    return total


LONG = list(range(MIN_SHARED + 4))


def placed(index, row, prefix=None):
    return Placement(index=index, row=row, prefix=None if prefix is None else Prefix(row=prefix[0], length=prefix[1]))


CASES = {
    # waiting, free rows, held -> waves
    "nothing waits": (([], [0, 1], {}), []),
    "nothing is free": (([[1]], [], {0: LONG}), []),
    "no more than are free": (([[1], [2], [3]], [4, 2], {}), [[placed(0, 4), placed(1, 2)]]),
    "its own row, which needs no copy": (
        ([[7], [*LONG, 3]], [5, 1], {1: LONG, 5: [9]}),
        [[placed(0, 5), placed(1, 1, (1, len(LONG)))]],
    ),
    "the longest sharer keeps the row": (
        ([LONG[: MIN_SHARED + 2], [*LONG, 3]], [0, 1], {1: LONG}),
        [[placed(0, 0, (1, MIN_SHARED + 1)), placed(1, 1, (1, len(LONG)))]],
    ),
    "a running row": (([[*LONG, 3]], [0], {1: LONG}), [[placed(0, 0, (1, len(LONG)))]]),
    "a short beginning is not worth a copy": (([[*LONG[: MIN_SHARED - 1], 98, 99]], [0], {1: LONG}), [[placed(0, 0)]]),
    "unless it is all": (([[0, 1, 2]], [0], {1: LONG}), [[placed(0, 0, (1, 2))]]),
    "identical prompts": (
        ([LONG, LONG, LONG], [0, 1, 2], {}),
        [[placed(0, 0)], [placed(1, 1, (0, len(LONG) - 1)), placed(2, 2, (0, len(LONG) - 1))]],
    ),
    "a row rather than another one that waits": (
        ([LONG, LONG], [0, 1], {2: LONG[:-1]}),
        [[placed(0, 0, (2, len(LONG) - 1)), placed(1, 1, (2, len(LONG) - 1))]],
    ),
    "each from the one before": (
        ([LONG, [*LONG, 50, 51], [*LONG, 50, 51, 52]], [3, 1, 0], {}),
        [[placed(0, 3)], [placed(1, 1, (3, len(LONG) - 1))], [placed(2, 0, (1, len(LONG) + 1))]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_placements(case):
    (waiting, free, held), waves = CASES[case]
    # A held sequence ends with its root, which is in no cache.
    assert place(waiting, free, {row: [*tokens, 99] for row, tokens in held.items()}) == waves


def test_prompts_of_one_token_share_nothing():
    assert flat(place([[1], [1]], [0, 1], {0: [1, 1, 1]})) == [placed(0, 0), placed(1, 1)]
