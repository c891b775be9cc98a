"""Texts with mistakes: of which kinds, how many, and which texts are left alone."""

from difflib import SequenceMatcher
from random import Random

import pytest

from paceline.bench.corrections import FEWEST, MOST, with_mistakes
from paceline.bench.editing import MISSPELT
from paceline.bench.suites import corrections, prompts_of

PLAIN = "The reader gives an item of the queue. Then a writer takes it, e.g. The Queue. All is well"


def changes(edit):
    """(the answer's words, the prompt's words) wherever they differ."""
    right, wrong = edit.answer.split(" "), edit.prompt.split(" ")
    blocks = SequenceMatcher(None, right, wrong, autojunk=False).get_opcodes()
    return [(right[a:b], wrong[c:d]) for kind, a, b, c, d in blocks if kind != "equal"]


def kind_of(right, wrong):
    if not right:
        return "doubled" if len(wrong) == 1 else None
    pairs = list(zip(right, wrong, strict=False))
    kinds = {
        "misspelt" if MISSPELT.get(one) == other else
        "article" if {one, other} == {"a", "an"} else
        "small" if one.istitle() and other == one.lower() else None
        for one, other in pairs if one != other
    }  # fmt: skip
    return kinds.pop() if len(kinds) == 1 else None


def test_the_suite_is_these_texts_and_follows_its_seed():
    edits = corrections(30, seed=3)
    assert [edit.prompt for edit in edits] == prompts_of("correct", 30, seed=3)
    assert {edit.task for edit in edits} == {"correct"}
    assert corrections(5, seed=1) == corrections(5, seed=1) != corrections(5, seed=2)


def test_mistakes_are_few_and_of_all_kinds():
    found = [[kind_of(*change) for change in changes(edit)] for edit in corrections(60, seed=0)]
    assert all(1 <= len(kinds) <= MOST for kinds in found) and max(map(len, found)) > FEWEST
    every = [kind for kinds in found for kind in kinds]
    assert {"misspelt", "doubled", "article", "small"} <= set(every)
    assert every.count(None) <= len(every) // 10  # two mistakes beside each other


def test_a_sentence_begins_small_only_behind_a_full_stop():
    begun = {word for seed in range(200) for word in with_mistakes(PLAIN, Random(seed)).prompt.split(" ")}
    assert {"then", "all"} <= begun
    assert not any("e.g. the" in with_mistakes(PLAIN, Random(seed)).prompt for seed in range(200))
    assert all(with_mistakes(PLAIN, Random(seed)).prompt.startswith("The") for seed in range(200))


@pytest.mark.parametrize("text", ["We take form and all that.", "It is that that counts.", "42"])
def test_texts_in_which_mistakes_look_right_are_left_out(text):
    assert with_mistakes(text, Random(0)) is None
