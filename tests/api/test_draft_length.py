"""A number of draft tokens beyond what outputs have room for: it is cut, and no token changes."""

import logging

import pytest

from paceline.api import Engine, SamplingParams, generate, stream
from paceline.core.plan import Fixed
from tests.api.engines import LONG, bare, greedy
from tests.harness import tiny_drafter

DRAFTERS = ("model", "prophet", "early_exit", "ngram")


def drafter(name):
    return tiny_drafter(name, bare().lm)


def plan_of(made):
    return made._engine.decoder.plan


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_long_draft_is_cut_to_max_tokens_and_says_so(name, caplog):
    with caplog.at_level(logging.INFO, logger="paceline"):
        made = stream(bare(), LONG, greedy(max_tokens=8), drafter=drafter(name), num_draft_tokens=1_000_000)
    assert plan_of(made).max_draft_tokens == 7
    assert caplog.messages[0].startswith("num_draft_tokens=1000000 is cut to 7: outputs have room for 8 tokens")
    [plain] = generate(bare(), LONG, greedy(max_tokens=8))
    assert made.drain()[0].token_ids == plain.token_ids


def test_the_longest_of_several_outputs_decides_and_what_fits_is_kept(caplog):
    params = [greedy(max_tokens=3), greedy(max_tokens=6)]
    with caplog.at_level(logging.INFO, logger="paceline"):
        for given, used in ((4, 4), (5, 5), (6, 5)):
            made = stream(bare(), [LONG, LONG], params, drafter=drafter("model"), num_draft_tokens=given)
            assert plan_of(made).max_draft_tokens == used
    assert [message.split(":")[0] for message in caplog.messages] == ["num_draft_tokens=6 is cut to 5"]


def test_outputs_of_one_token_have_no_room_for_a_draft():
    made = stream(bare(), LONG, greedy(max_tokens=1), drafter=drafter("model"), num_draft_tokens=9)
    [result] = made.drain()
    assert len(result.token_ids) == 1 and result.stats.no_draft == {"one token left to max_tokens": 1}


@pytest.mark.parametrize("max_tokens", [None, 5])
def test_the_context_cuts_where_no_output_does(max_tokens):
    target = bare()
    made = stream(target, LONG, greedy(max_tokens=max_tokens), drafter=drafter("model"), num_draft_tokens=10**9)
    assert plan_of(made).max_draft_tokens == (target.lm.max_positions - 2 if max_tokens is None else 4)
    assert Engine(target, drafter=drafter("model"), num_draft_tokens=500, max_length=40).decoder.batch.max_depth == 38


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verifier", ["rejection", "block", "coupled"])
def test_cutting_changes_no_sampled_token(verifier):
    """A plan is not cut."""
    params = SamplingParams(temperature=1, seed=5, max_tokens=10, ignore_eos=True)
    cut, whole = (
        generate(bare(), [LONG, LONG[3:]], params, drafter=drafter("model"), verifier=verifier, num_draft_tokens=count)
        for count in (30, Fixed(30))
    )
    assert [one.token_ids for one in cut] == [one.token_ids for one in whole]
