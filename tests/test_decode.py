"""The decoder's own contract: what it refuses before any work, and what an exception leaves behind."""

import pytest
import torch

from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.base import StatelessDrafter
from paceline.drafters.none import NoDrafter
from paceline.verifiers import VERIFIERS
from tests import tiny
from tests.harness import decoder_for, expected, finish, request, tiny_drafter


class Sharing(StatelessDrafter):
    draws = frozenset({Draw.SHARED})

    def propose(self, batch, plan):
        raise RuntimeError("the disk is on fire")


class Branching(Sharing):
    draws = frozenset({Draw.FIXED})
    branches = True


def admit(**options):
    decoder_for(NoDrafter(), "coupled", max_length=16).admit([request(**options)], [0])


REFUSALS = {
    "empty prompt": (lambda: admit(prompt=[]), "empty prompt: give at least one token"),
    "no tokens asked for": (lambda: admit(prompt=[1], max_tokens=0), "max_tokens=0: give at least 1"),
    "prompt too long": (
        lambda: admit(prompt=[1] * 12, max_tokens=5),
        "prompt of 12 tokens and max_tokens=5 exceed.*16",
    ),
    "token beyond the vocabulary": (lambda: admit(prompt=[tiny.VOCAB], max_tokens=4), f"vocabulary of {tiny.VOCAB}"),
    "negative token": (lambda: admit(prompt=[-1], max_tokens=4), "leave the target's vocabulary"),
    "too many stop tokens": (lambda: admit(prompt=[1], stop_tokens=range(65)), "65 stop tokens: at most 64"),
    "negative draft length": (lambda: admit(prompt=[1], num_draft_tokens=-1), "num_draft_tokens=-1"),
    "beyond the context": (
        lambda: decoder_for(NoDrafter(), "coupled", max_length=129),
        "max_length=129 is beyond the target's context of 128",
    ),
    "row out of range": (lambda: decoder_for(NoDrafter(), "coupled").admit([request([1])], [1]), "rows 0 to 0"),
    "one row twice": (
        lambda: decoder_for(NoDrafter(), "coupled", rows=2).admit([request([1]), request([2])], [1, 1]),
        "a row of its own",
    ),
    "nothing to admit": (lambda: decoder_for(NoDrafter(), "coupled").admit([], []), "0 requests for rows"),
    "no rows": (lambda: decoder_for(NoDrafter(), "coupled", rows=0), "rows=0"),
    "negative plan": (lambda: decoder_for(NoDrafter(), "coupled", k=-1), "num_draft_tokens=-1"),
    "nothing in common": (
        lambda: decoder_for(Sharing(), "rejection"),
        "the verifier 'rejection' does not fit the drafter 'Sharing': Sharing drafts tokens that are",
    ),
    "trees for a chain rule": (
        lambda: decoder_for(Branching(), "rejection"),
        "'Branching': Branching drafts trees that branch, and rejection verifies chains",
    ),
    "unknown drafter": (lambda: DRAFTERS.find("medusa2"), f"unknown drafter 'medusa2'; known: {', '.join(DRAFTERS)}"),
    "unknown verifier": (lambda: VERIFIERS.find("vibes"), "unknown verifier 'vibes'; known: block, coupled"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_with_value_limit_and_way_out(case):
    call, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_refused_request_leaves_the_rows_as_they_were():
    decoder = decoder_for(tiny_drafter("model", tiny.target()[1]), "coupled", rows=2, max_length=32)
    good = request([5, 9, 2], max_tokens=20)
    decoder.admit([good], [0])
    decoder.step()
    kept = decoder.results().tokens[0]
    with pytest.raises(ValueError):
        decoder.admit([good, request([1] * 40, max_tokens=1)], [1, 0])
    result = finish_rest(decoder, good, kept)
    assert result == expected(good)


def finish_rest(decoder, r, kept):
    text = list(kept)
    while bool(decoder.batch.active[0]):
        decoder.step()
        text.extend(decoder.results().tokens[0])
    return text


@pytest.mark.parametrize("broken", ["propose", "target", "verify"])
def test_an_exception_while_drafting_or_scoring_leaves_the_committed_state_intact(broken):
    class Failing:
        """Fails once, in the middle of the text."""

        def __init__(self, inner):
            self.inner, self.left = inner, 4

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __call__(self, *args, **options):
            result = self.inner(*args, **options)
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("out of luck")
            return result

    decoder = decoder_for(tiny_drafter("model", tiny.target()[1]), "coupled", k=3)
    wanted = request([5, 9, 2], max_tokens=24)
    decoder.admit([wanted], [0])
    if broken == "propose":
        decoder.drafter.reader = Failing(decoder.drafter.reader)
    elif broken == "target":
        decoder.target.lm = Failing(decoder.target.lm)
    else:
        decoder.verifier = Failing(decoder.verifier)
    text, failures = [], 0
    while bool(decoder.batch.active.any()):
        before = (decoder.cache.length.clone(), decoder.batch.tokens.clone())
        try:
            decoder.step()
        except RuntimeError:
            failures += 1
            assert torch.equal(decoder.cache.length, before[0]) and torch.equal(decoder.batch.tokens, before[1])
            continue
        text.extend(decoder.results().tokens[0])
    assert failures == 1
    assert text == expected(wanted)


def test_released_rows_stand_still():
    decoder = decoder_for(NoDrafter(), "coupled", rows=2)
    requests = [request([5, 9], max_tokens=9), request([1], max_tokens=9)]
    decoder.admit(requests, [0, 1])
    decoder.step()
    decoder.batch.release([1])
    length = int(decoder.batch.length[1])
    finish(decoder, rows=[0], prompts=[[5, 9, *decoder.results().tokens[0]]])
    assert int(decoder.batch.length[1]) == length
