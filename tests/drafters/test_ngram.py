"""Prompt lookup."""

import pytest

from paceline.drafters.ngram import NgramDrafter
from tests.harness import decoder_for, expected, request, run
from tests.tiny import looping_target

FLOOR = 2.3  # mean acceptance length on the conformance prompts, greedy


def tiny(target):
    return NgramDrafter()


def guessable_target():
    return looping_target()


def drafted(sequence, k=4, **options):
    """What is proposed after ``sequence``."""
    decoder = decoder_for(NgramDrafter(**options), "coupled", k=k, max_length=64)
    decoder.admit([request(sequence, max_tokens=20)], [0])
    tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    return tree.tokens[0, 1:][tree.valid[0, 1:]].tolist()


@pytest.mark.parametrize(
    ("sequence", "proposal"),
    [
        ([1, 2, 3, 4, 9, 1, 2], [3, 4, 9, 1]),  # goes on after the match
        ([1, 2, 7, 5, 1, 2, 8, 6, 1, 2], [8, 6, 1, 2]),  # the latest of equal matches
        ([3, 1, 2, 7, 5, 1, 2, 8, 3, 1, 2], [7, 5, 1, 2]),  # a longer match beats a later one
        ([5, 6, 5, 6, 5], [6, 5, 6, 5]),  # a copy that reaches the end repeats itself
        ([4, 4], [4, 4, 4, 4]),
        ([1, 2, 3], []),  # no match
        ([7], []),
    ],
)
def test_copies_what_followed_the_longest_latest_match(sequence, proposal):
    assert drafted(sequence) == proposal


def test_shorter_matches_than_the_minimum_are_left_alone():
    assert drafted([1, 2, 9, 2], min_ngram=2) == []
    assert drafted([1, 2, 9, 1, 2], min_ngram=2) == [9, 1, 2, 9]


def test_a_row_drafts_no_further_than_its_limit_lets_it():
    decoder = decoder_for(NgramDrafter(), "coupled", k=4, max_length=64)
    decoder.admit([request([5, 6, 5, 6], max_tokens=3)], [0])
    tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    assert int(tree.valid.sum()) == 1 + 2


def test_never_matches_output_of_a_former_occupant():
    decoder = decoder_for(NgramDrafter(), "coupled", k=4, max_length=64)
    decoder.admit([request([9, 8, 7, 6, 5, 4, 3, 2, 1] * 3, max_tokens=20)], [0])
    decoder.batch.release([0])
    decoder.admit([request([9, 8], max_tokens=20)], [0])
    tree = decoder.drafter.propose(decoder.batch, decoder.plan())
    assert int(tree.valid.sum()) == 1


def test_a_repeating_output_is_drafted_whole():
    model, target = looping_target()
    prompt = [2, *expected(request([2], max_tokens=60), model)]
    result = run(NgramDrafter(), "coupled", [request(prompt, max_tokens=20)], target=target, k=3)
    assert result.texts == [expected(request(prompt, max_tokens=20), model)]
    assert result.steps == 5 and result.summary.acceptance_rate == 1.0


@pytest.mark.parametrize("sizes", [(0, 1), (3, 2)])
def test_sizes_out_of_order_are_refused(sizes):
    with pytest.raises(ValueError, match="min_ngram"):
        NgramDrafter(min_ngram=sizes[0], max_ngram=sizes[1])
