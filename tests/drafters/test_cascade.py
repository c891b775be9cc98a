"""One drafter drafts the first tokens, another goes on from there."""

import pytest

from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.staged import StagedDrafter
from tests import tiny as models
from tests.drafters.test_staged import Counted, asked, drafts_of, oracle
from tests.harness import PerRow, decoder_for, expected, request, run

pytestmark = pytest.mark.one_in(14)

FOLLOWS = True
FLOOR = 1.5  # mean acceptance length on the conformance prompts, greedy


def tiny(target):
    """The target with noise, then the target with other noise."""
    return CascadeDrafter(first=oracle(target), rest=oracle(target, 0.2, seed=4), num_first=1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("num_first", [1, 2, 4])
def test_a_drafter_that_goes_on_after_itself_drafts_as_it_does_alone(num_first, k, temperature):
    _, target = models.target()
    requests = asked(temperature, processing=dict(repetition_penalty=1.3, frequency_penalty=0.2, no_repeat_ngram=4))
    cascade = CascadeDrafter(first=oracle(target), rest=oracle(target), num_first=num_first)
    assert drafts_of(cascade, requests, k=k) == drafts_of(oracle(target), requests, k=k)


def of_cascades():
    def three(target):
        rest = CascadeDrafter(first=oracle(target, 0.1, seed=5), rest=NgramDrafter(), num_first=2)
        return CascadeDrafter(first=oracle(target), rest=rest, num_first=1)

    def staged(target):
        one = StagedDrafter(draft=oracle(target), inner=NgramDrafter())
        return CascadeDrafter(first=one, rest=StagedDrafter(draft=oracle(target), inner=oracle(target)), num_first=2)

    def inner(target):
        cheap = CascadeDrafter(first=ModelDrafter(lm=models.draft()), rest=NgramDrafter(), num_first=1)
        return StagedDrafter(draft=oracle(target), inner=cheap)

    def hosted(target):
        return CascadeDrafter(first=HostDrafting(Repeating()), rest=oracle(target), num_first=1)

    return dict(three=three, staged=staged, inner=inner, hosted=hosted)


class Repeating(HostDrafter):
    """The newest token."""

    def propose(self, sequences, num_draft_tokens):
        return {row: [tokens[-1]] for row, tokens in sequences.items()}


WAYS = {
    "each its own": lambda row, tokens: (row + 1) % 6,
    "by its tokens": lambda row, tokens: tokens[-1] % 6,
    "off and on": lambda row, tokens: 5 if (len(tokens) + 5 * row) % 23 > 12 else 0,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", of_cascades())
def test_combinations_give_the_tokens_of_plain_decoding(kind, way):
    _, target = models.target()
    requests = asked(0.8)
    result = run(of_cascades()[kind](target), "coupled", requests, plan=PerRow(WAYS[way], 5))
    assert result.texts == [expected(one) for one in requests]
    assert sum(result.summary.accepted) > 0 or kind == "hosted"  # whose first token is hardly ever right


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copies_of_the_target_are_accepted_whole_and_read_each_token_once(temperature):
    _, target = models.target()
    one, two = Counted(target), Counted(target)
    cascade = CascadeDrafter(first=ModelDrafter(lm=one), rest=ModelDrafter(lm=two), num_first=2)
    decoder = decoder_for(cascade, "coupled", k=5, rows=1)
    decoder.admit([request([5, 9, 2], max_tokens=60, temperature=temperature)], [0])
    for _ in range(5):
        before = one.num_forwards, two.num_forwards
        decoder.step()
        assert decoder.results().num_accepted == [5]
        assert (one.num_forwards - before[0], two.num_forwards - before[1]) == (2, 3)
        assert decoder.results().origins[0] == [0, 0, 1, 1, 1, 0]
    found = [(stage.name, stage.stats.summary()) for stage in cascade.stages]
    assert [(name, sum(stats.accepted), sum(stats.drafted)) for name, stats in found] == [
        ("model", 10, 10),
        ("model", 15, 15),
    ]


def test_the_second_one_drafts_where_the_first_has_nothing():
    _, target = models.target()
    cascade = CascadeDrafter(first=NgramDrafter(), rest=ModelDrafter(lm=target), num_first=2)
    decoder = decoder_for(cascade, "coupled", k=5, rows=1)
    decoder.admit([request([5, 9, 2], max_tokens=60)], [0])
    decoder.step()
    assert decoder.results().num_accepted == [3] and decoder.results().num_drafted == [3]


def test_what_cannot_take_part_is_refused():
    _, target = models.target()
    with pytest.raises(ValueError, match="num_first=0: give at least 1"):
        CascadeDrafter(first=oracle(target), rest=NgramDrafter(), num_first=0)
    with pytest.raises(ValueError, match=r"'draft' \(HostDrafting\) cannot take part in a cascade: give 'ngram'"):
        CascadeDrafter(first=oracle(target), rest=HostDrafting(Repeating()), num_first=1)
