"""The target's own tokens: equal to coupled verification in what it decides, unlike it in what it asks for."""

from paceline.agreement import agree
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.match import Match
from tests import tiny
from tests.harness import expected, request, run

PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8])


def test_it_never_asks_for_the_targets_noise():
    assert Draw.SHARED not in Match.wants
    drafter = ModelDrafter(lm=tiny.target()[1])
    assert agree(drafter, Coupled()) is Draw.SHARED and agree(drafter, Match()) is Draw.FIXED


def test_tokens_are_those_of_plain_decoding():
    requests = [request(p, max_tokens=20, temperature=1.0, seed=i) for i, p in enumerate(PROMPTS)]
    for draw in (Draw.FIXED, Draw.IID):
        drafter = ModelDrafter(lm=tiny.noisy(tiny.target()[1], 0.05), draws=frozenset({draw}))
        result = run(drafter, "match", requests, k=3)
        assert result.texts == [expected(r) for r in requests]
        assert 0 < result.summary.acceptance_rate < 1


def test_where_nothing_is_shared_it_decides_as_coupled_does():
    requests = [request(p, max_tokens=30, temperature=0.3, seed=i) for i, p in enumerate(PROMPTS)]
    _, target = tiny.looping_target()
    ours, theirs = (run(NgramDrafter(), verifier, requests, target=target, k=3) for verifier in ("match", "coupled"))
    assert ours.texts == theirs.texts and ours.summary == theirs.summary
    assert sum(ours.summary.accepted) > 0
