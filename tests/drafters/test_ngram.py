"""Prompt lookup."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from paceline.drafters.ngram import NgramDrafter
from tests.harness import decoder_for, expected, request, run
from tests.tiny import looping_target

FLOOR = 2.3  # mean acceptance length on the conformance prompts, greedy


def tiny(target):
    return NgramDrafter()


def guessable_target():
    return looping_target()


def drafted(sequence, k=4, stop_tokens=(), **options):
    """What is proposed after ``sequence``."""
    decoder = decoder_for(NgramDrafter(**options), "coupled", k=k, max_length=64)
    decoder.admit([request(sequence, max_tokens=20, stop_tokens=stop_tokens)], [0])
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


FIRST = dict(match="first")
CUT = dict(match="first", wrap=False)  # as vLLM's and transformers' do


@pytest.mark.parametrize(
    ("sequence", "options", "proposal"),
    [
        ([1, 2, 7, 5, 1, 2, 8, 6, 1, 2], FIRST, [7, 5, 1, 2]),  # the earliest of equal matches
        ([1, 2, 8, 3, 1, 2, 7, 5, 3, 1, 2], FIRST, [7, 5, 3, 1]),  # a longer match beats an earlier one
        ([1, 2, 8, 1, 2, 7, 1, 2], dict(max_ngram=1, **FIRST), [8, 1, 2, 7]),
        ([5, 6, 5, 6, 5], FIRST, [6, 5, 6, 5]),
        ([1, 2, 3, 4, 2, 3], CUT, [4, 2, 3]),  # the example in vLLM's source
        ([5, 6, 5, 6, 5], CUT, [6, 5]),  # a copy that reaches the end ends
        ([4, 4], CUT, [4]),
        ([9, 4, 4, 4, 4], dict(wrap=False), [4]),  # the latest match has little after it
        ([9, 4, 4, 4, 4], CUT, [4]),  # of three tokens there is one earlier match
        ([9, 4, 4, 4, 4], dict(max_ngram=1, **CUT), [4, 4, 4]),
    ],
)
def test_match_and_wrap_choose_the_copy(sequence, options, proposal):
    assert drafted(sequence, **options) == proposal


@pytest.mark.parametrize(
    ("stops", "crop", "proposal"),
    [
        ((3,), True, []),
        ((9, 77), True, [3, 4]),
        ((9, 4), True, [3]),
        ((9, 4), False, [3, 4, 9, 1]),
        ((), True, [3, 4, 9, 1]),
        ((2,), True, [3, 4, 9, 1]),  # what is there already may have stop tokens
    ],
)
def test_drafts_end_before_a_stop_token(stops, crop, proposal):
    assert drafted([1, 2, 3, 4, 9, 1, 2], stop_tokens=stops, crop=crop) == proposal


@settings(max_examples=60, deadline=None)
@given(sequence=st.lists(st.integers(1, 4), min_size=1, max_size=30), stops=st.sets(st.integers(1, 4), max_size=2))
def test_transformers_drafts_the_same_by_its_options(sequence, stops):
    theirs = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor(sorted(stops)) if stops else None, num_output_tokens=4, max_length=64
    )
    ids, _ = theirs.get_candidates(torch.tensor([sequence]))
    ours = drafted(sequence, stop_tokens=sorted(stops), max_ngram=2, crop=True, **CUT)
    assert ours == ids[0, len(sequence) :].tolist()


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
def test_cropped_drafts_take_as_many_steps(verifier):
    """A stop token that is not drafted is the target's next choice."""
    model, target = looping_target()
    cycle = expected(request([2], max_tokens=60), model)
    texts = [[2, *cycle[:count]] for count in (40, 47, 53)]
    requests = [
        request(text, max_tokens=30, stop_tokens=(cycle[at],)) for text, at in zip(texts, (50, 52), strict=False)
    ]
    cropped, whole = (
        run(NgramDrafter(crop=crop), verifier, requests, target=target, k=5, max_length=120) for crop in (True, False)
    )
    assert cropped.texts == whole.texts == [expected(one, model) for one in requests]
    assert cropped.steps == whole.steps
    assert sum(cropped.summary.drafted) < sum(whole.summary.drafted)
    assert cropped.summary.acceptance_rate == 1.0


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


def test_other_matches_are_refused():
    with pytest.raises(ValueError, match="match='best': give last or first"):
        NgramDrafter(match="best")
