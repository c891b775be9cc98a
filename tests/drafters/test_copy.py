"""Copies of the source: from where, how far, and where they go on after an edit."""

import pytest

from paceline.drafters.copy import CopyDrafter
from paceline.drafters.host import HostDrafting
from tests import tiny as models
from tests.harness import decoder_for, expected, request, run

FLOOR = 2.2  # mean acceptance length on the conformance prompts, greedy
SOURCE = [*range(10, 50)]
BEGIN = [1, 2, 3]  # stands before the source, and before the output


def tiny(target):
    """Its source is what the targets of the conformance suite will say, so that it is often right."""
    source = []
    prompts = ([5, 9, 2], [1], [8] * 6, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])
    for model in (models.target()[0], models.looping_target()[0]):
        for prompt in prompts:
            source += [*prompt, *expected(request(prompt, max_tokens=20), model)]
    return HostDrafting(CopyDrafter(min_match=1, source=[token % target.vocab_size for token in source]))


def guessable_target():
    return models.looping_target()


def drafted(output, *, source=SOURCE, k=6, **options):
    """What is proposed after an output that begins as the source does, one token at a time."""
    drafter = CopyDrafter(**options)
    prompt = [*BEGIN, *source, 5, *BEGIN]
    drafter.begin(0, request(prompt, max_tokens=99))
    for end in range(len(output) + 1):
        found = drafter.propose({0: [*prompt, *output[:end]]}, k)
    return list(found[0].tokens) if found else []


@pytest.mark.parametrize(
    ("output", "proposal"),
    [
        ([], [10, 11, 12, 13, 14, 15]),  # the source, as its beginning stands before it
        ([10, 11], [12, 13, 14, 15, 16, 17]),
        ([10, 11, 7], [13, 14, 15, 16, 17, 18]),  # 12 was replaced, perhaps
        ([10, 11, 14], [15, 16, 17, 18, 19, 20]),  # 12 and 13 were left out
        ([10, 11, 7, 8, 12], [13, 14, 15, 16, 17, 18]),  # 7 and 8 came between
        ([10, 11, 7, 13], [14, 15, 16, 17, 18, 19]),
        ([10, 7, 7, 7, 45, 46, 47], [48, 49, 5, 1, 2, 3]),  # far away: three tokens are needed
        ([10, 7, 7, 7, 48], [15, 16, 17, 18, 19, 20]),
    ],
)
def test_copies_go_on_after_an_edit(output, proposal):
    assert drafted(output) == proposal


def test_a_draft_has_no_limit_but_the_source():
    assert drafted([], k=99) == [*SOURCE, 5, *BEGIN]
    assert drafted([*SOURCE, 5, *BEGIN][:-1], k=99)[-1:] == [3]


def test_of_equal_places_the_next_one_is_copied():
    """A phrase that comes three times in the source is copied in the order of the source."""
    source = [7, 8, 9, 20, 7, 8, 9, 21, 7, 8, 9, 22]
    assert drafted([7, 8, 9, 20, 7, 8, 9], source=source, k=1) == [21]
    assert drafted([7, 8, 9, 20, 7, 8, 9, 21, 7, 8, 9], source=source, k=1) == [22]


def test_nothing_is_drafted_before_the_output_is_found_in_the_source():
    drafter = CopyDrafter()
    drafter.begin(0, request(SOURCE, max_tokens=99))
    assert drafter.propose({0: [*SOURCE, 9, 9]}, 4) == {}
    assert list(drafter.propose({0: [*SOURCE, 9, 9, 20, 21, 22]}, 4)[0].tokens) == [23, 24, 25, 26]


def test_a_copy_of_the_prompt_is_accepted_whole():
    """Sequences of a target that repeats itself: the prompt holds what comes."""
    model, target = models.looping_target()
    prompt = [2, *expected(request([2], max_tokens=60), model)]
    wanted = request(prompt, max_tokens=40)
    result = run(HostDrafting(CopyDrafter()), "coupled", [wanted], target=target, k=9, max_length=120)
    assert result.texts == [expected(wanted, model)]
    assert result.summary.acceptance_rate == 1.0 and result.steps <= 5


def test_rows_do_not_see_each_other_and_slots_are_used_again():
    drafter = CopyDrafter()
    decoder = decoder_for(HostDrafting(drafter), "coupled", k=4, rows=2)
    decoder.admit([request([7, 8, 9, 4, 7, 8, 9]), request([5, 6])], [0, 1])
    assert list(drafter.propose({0: [7, 8, 9, 4, 7, 8, 9], 1: [5, 6]}, 4)) == [0]
    decoder.release([0])
    decoder.admit([request([5, 6, 7, 8, 9])], [0])
    assert drafter.propose({0: [5, 6, 7, 8, 9]}, 4) == {}


@pytest.mark.parametrize("sizes", [(0, 1), (3, 2), (1, 257)])
def test_sizes_out_of_order_are_refused(sizes):
    with pytest.raises(ValueError, match=r"min_match=.*need 1 <= min_match <= max_match <= 256"):
        CopyDrafter(min_match=sizes[0], max_match=sizes[1])


def test_of_equal_tokens_the_nearest_is_gone_on_after():
    source = [10, 11, 12, 13, 20, 14, 15, 20, 16, 17]
    assert drafted([10, 11, 20], source=source, k=2) == [14, 15]


def test_a_slot_that_is_used_again_has_the_new_source_alone():
    drafter = CopyDrafter(min_match=3)
    drafter.begin(0, request([1, 2, 3, 4, 5, 6]))
    new = [9, 8, 7, 1, 2, 3, 40, 41]
    drafter.begin(0, request(new))
    assert drafter.propose({0: [*new, 1, 2, 3]}, 2)[0].tokens == (40, 41)
    drafter.begin(0, request([50, 51, 52, 53]))
    assert drafter.propose({0: [50, 51, 52, 53, 1, 2, 3]}, 2) == {}, "what the former source held is not looked for"
