"""A request's choice of a drafter: no other drafts for it, its tokens are the same, and what it cannot choose."""

import pytest

from paceline.api import Engine, SamplingParams
from paceline.api.draft_choice import draft_choices
from paceline.core.plan import Fixed
from paceline.drafters.model import ModelDrafter
from tests import tiny
from tests.api.engines import LONG, bare, engine, naive

MODEL = "model"


def several(*, rows=3):
    """Copies of two kinds, a draft model whose drafts are all accepted, and prompt lookup."""
    drafters = ["copy", "suffix", ModelDrafter(lm=tiny.target()[1]), "ngram"]
    return Engine(bare(), drafter=drafters, batch_size=rows, max_length=128)


def decoded(made, choices):
    """The result of a prompt for each of ``choices``, decoded side by side, and the naive tokens."""
    params = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)
    prompts = [(LONG * 2)[at:] for at in range(len(choices))]
    streams = [made.submit([prompt], params, drafter=choice) for prompt, choice in zip(prompts, choices, strict=True)]
    results = [stream.drain()[0] for stream in streams]
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == naive(prompt, params, 0, tiny.target()[0])
    return results


def test_the_names_are_those_of_the_drafters():
    made = several()
    decoder = made.decoder
    assert list(draft_choices(decoder.drafter, decoder.plan)) == ["copy", "suffix", MODEL, "ngram"]
    one = engine("model", num_draft_tokens=3, max_length=128)
    assert list(draft_choices(one.decoder.drafter, one.decoder.plan)) == [MODEL]
    assert draft_choices(decoder.drafter, Fixed(3)) == {}


@pytest.mark.parametrize("rows", [1, 4])
def test_no_other_drafter_drafts_for_a_request(rows):
    made, drafted = several(rows=rows), set()
    for _ in range(3):  # the plan explores at first
        choices = ["copy", MODEL, "ngram", "suffix", None]
        for choice, result in zip(choices, decoded(made, choices), strict=True):
            origins = set(result.origin) - {None, "target"}
            assert choice is None or origins <= {choice}, (choice, origins)
            drafted |= origins
    assert {"suffix", MODEL} <= drafted, "the test proves nothing where nothing is drafted"


def test_one_drafter_may_be_named_and_no_other():
    made = engine("model", num_draft_tokens=3, max_length=128)
    (named,), (plain,) = decoded(made, [MODEL]), decoded(made, [None])
    assert sum(named.stats.accepted) and sum(plain.stats.accepted)
    with pytest.raises(ValueError, match="drafter='ngram': requests of this engine choose from model; leave it out"):
        made.submit([[5, 9]], drafter="ngram")
