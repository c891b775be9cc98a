"""Properties of every drafter under every verifier, for all names in the registries.

Equality is exact because everything runs in float64; the oracle is a naive decoder over the transformers model.
"""

import importlib

import pytest
import torch

from paceline.core.step import Finish
from paceline.core.tree import NoDraft
from paceline.drafters import DRAFTERS
from paceline.verifiers import VERIFIERS
from tests import tiny
from tests.harness import (
    PerRow,
    cases,
    decoder_for,
    expected,
    family_cases,
    finish,
    follows,
    guessable_target,
    learns,
    pairs,
    poison,
    request,
    run,
    serve_in_turn,
    tiny_drafter,
    views_of,
)

pytestmark = pytest.mark.one_in(15)

K = 3
PAIRS = pairs()
PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])
every_pair = pytest.mark.parametrize(("drafter", "verifier"), cases())
every_family = pytest.mark.parametrize(("drafter", "verifier"), family_cases())
every_drafter = pytest.mark.parametrize("drafter", DRAFTERS.builtin)


def new(drafter, target=None):
    return tiny_drafter(drafter, target or tiny.target()[1])


def greedy(max_tokens=40):
    return [request(prompt, max_tokens=max_tokens - i) for i, prompt in enumerate(PROMPTS)]


def sampled(max_tokens=40, seed=0):
    """Every row with its own options."""
    options = (
        dict(temperature=1.0),
        dict(temperature=0.7, top_p=0.9),
        dict(temperature=1.3, top_k=9, top_p=0.8),
        dict(),
        dict(temperature=1.0, min_p=0.05),
        dict(temperature=0.4, top_k=30),
    )
    return [
        request(prompt, max_tokens=max_tokens - i, seed=seed + 1000 * i, **option)
        for i, (prompt, option) in enumerate(zip(PROMPTS, options, strict=True))
    ]


def accepted_lengths(result):
    """Accepted lengths of steps that drafted in full and were not clipped."""
    return {
        accepted
        for report in result.reports
        for accepted, drafted, done, num in zip(
            report.num_accepted, report.num_drafted, report.finish, report.tokens, strict=True
        )
        if num and drafted == K and done is Finish.RUNNING
    }


def test_every_drafter_runs_under_the_default_verifier():
    assert {drafter for drafter, verifier in PAIRS if verifier == "coupled"} == set(DRAFTERS.builtin)


@every_pair
def test_greedy_output_equals_the_reference_and_every_event_occurs(drafter, verifier):
    """On the plain target, and on one whose sequence the drafter can guess."""
    requests, lengths, bonuses = greedy(), set(), set()
    for model, target in {tiny.target(), guessable_target(drafter)}:
        result = run(new(drafter, target), verifier, requests, target=target, k=K)
        assert result.texts == [expected(r, model) for r in requests]
        assert drafter != "none" or (result.steps == 40 and sum(result.summary.drafted) == 0)
        lengths |= accepted_lengths(result)
        bonuses |= {bonus for report in result.reports for bonus in report.bonus}
    if drafter != "none":
        assert lengths == set(range(K + 1)), "a correction after each length, and a bonus"
        assert bonuses == {True, False}


@pytest.mark.each_value
@every_drafter
@pytest.mark.parametrize("seed", [0, 2**40 + 5])
def test_coupled_sampled_output_equals_the_reference(drafter, seed):
    requests = sampled(seed=seed)
    result = run(new(drafter), "coupled", requests, k=K)
    assert result.texts == [expected(r) for r in requests]
    if follows(drafter):
        assert accepted_lengths(result) == set(range(K + 1))


@pytest.mark.each_value
@every_pair
def test_a_row_of_a_batch_equals_that_row_alone(drafter, verifier):
    """Under any order of the rows and beside empty ones; own noise must not see the neighbours either."""
    requests = sampled(max_tokens=24)
    alone = [run(new(drafter), verifier, [r], k=K).texts[0] for r in requests]
    assert run(new(drafter), verifier, requests, k=K).texts == alone
    assert run(new(drafter), verifier, requests[::-1], k=K).texts == alone[::-1]
    decoder = decoder_for(new(drafter), verifier, k=K, rows=9)
    rows = [7, 2, 0, 5, 3, 8]
    decoder.admit(requests, rows)
    assert finish(decoder, rows=rows, prompts=[r.tokens for r in requests]).texts == alone


@every_pair
def test_one_target_forward_per_step_serves_all_rows(drafter, verifier):
    _, target = tiny.target()
    calls = []

    class Counted:
        def __getattr__(self, name):
            return getattr(target, name)

        def __call__(self, tree, cache, **options):
            if len(cache.layers) == target.num_layers:  # some of the layers may draft
                calls.append(tree.tokens.shape)
            return target(tree, cache, **options)

    decoder = decoder_for(new(drafter), verifier, target=Counted(), k=K, rows=len(PROMPTS))
    decoder.admit(greedy(), range(len(PROMPTS)))
    calls.clear()
    result = finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS)
    nodes = decoder.drafter.max_nodes(K)
    assert nodes == 1 if drafter == "none" else nodes == K + 1 + decoder.drafter.num_unverified
    assert calls == [(len(PROMPTS), nodes)] * result.steps


@pytest.mark.each_value
@every_pair
def test_end_of_output_at_every_draft_position_as_correction_and_as_bonus(drafter, verifier):
    """Each row stops at a token that occurs first at some index of its sequence; every place in a step is hit.

    Half of the prompts already hold what follows them, so that copying can draft the stop token too.
    """
    where = set()
    model, target = guessable_target(drafter)
    prompts = [*PROMPTS, *([*r.tokens, *expected(r, model)] for r in greedy(max_tokens=24))]
    whole = [expected(request(prompt, max_tokens=30), model) for prompt in prompts]
    firsts = [[token for i, token in enumerate(sequence) if token not in sequence[:i]] for sequence in whole]
    for last in range(16):
        requests = [
            request(prompt, max_tokens=30, stop_tokens=[first[min(last, len(first) - 1)], 60])
            for prompt, first in zip(prompts, firsts, strict=True)
        ]
        result = run(new(drafter, target), verifier, requests, target=target, k=K)
        assert result.texts == [expected(r, model) for r in requests]
        for report in result.reports:
            for row, done in enumerate(report.finish):
                if done is Finish.STOP and report.tokens[row]:
                    own = len(report.tokens[row]) > report.num_accepted[row]
                    kind = ("bonus" if report.bonus[row] else "correction") if own else "drafted"
                    where.add((kind, report.num_accepted[row]) if kind == "drafted" else kind)
    if drafter == "none":
        assert where == {"bonus"}
    else:
        assert where >= {("drafted", depth) for depth in range(1, K + 1)} | {"correction", "bonus"}


@every_family
@pytest.mark.parametrize("max_tokens", [1, 2, K, K + 1, K + 2])
def test_short_limits_are_met_exactly(drafter, verifier, max_tokens):
    requests = greedy(max_tokens=max_tokens + len(PROMPTS) - 1)
    requests = [request(r.tokens, max_tokens=max_tokens) for r in requests]
    result = run(new(drafter), verifier, requests, k=K)
    assert result.texts == [expected(r) for r in requests]
    assert all(len(sequence) == max_tokens for sequence in result.texts)


@pytest.mark.each_value
@every_family
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_full_capacity_while_another_row_is_in_mid_generation(drafter, verifier, family):
    """A row fills the context, with fewer slots left than nodes, for rotary and for learned positions."""
    model = getattr(tiny, family)(
        4, **{"llama": dict(max_position_embeddings=32), "gpt2": dict(n_positions=32)}[family]
    )
    target = tiny.native(model)
    requests = [request([7, 3, 5], max_tokens=29), request([2] * 20, max_tokens=12), request([9], max_tokens=31)]
    result = run(new(drafter, target), verifier, requests, target=target, k=6, max_length=32)
    assert result.texts == [expected(r, model) for r in requests]
    if follows(drafter):
        assert result.summary.mean_acceptance_length > 1.3


@every_family
def test_reused_slots_carry_nothing_over(drafter, verifier):
    """Rows finish at different times and are given to other sequences while their neighbours go on."""
    queue = greedy(max_tokens=16)[::2] + sampled(max_tokens=14)[1::2] + greedy(max_tokens=9)[::2]
    alone = [run(new(drafter), verifier, [r], k=K).texts[0] for r in queue]
    assert serve_in_turn(decoder_for(new(drafter), verifier, k=K, rows=3), queue) == alone


@every_pair
def test_scratch_is_never_read(drafter, verifier):
    """Large finite garbage in every slot that is not committed, before every step."""
    instance = new(drafter)
    decoder = decoder_for(instance, verifier, k=K, rows=len(PROMPTS))
    views = [decoder.cache, *views_of(instance)]
    generator = torch.Generator().manual_seed(0)

    poison(views, generator)
    requests = sampled(max_tokens=24)
    clean = run(new(drafter), verifier, requests, k=K).texts
    decoder.admit(requests, range(len(requests)))
    sequences = [[] for _ in requests]
    while bool(decoder.batch.active.any()):
        poison(views, generator)
        decoder.step()
        report = decoder.results()
        for sequence, new_tokens in zip(sequences, report.tokens, strict=True):
            sequence.extend(new_tokens)
    assert sequences == clean


@every_family
def test_rows_keep_to_their_own_draft_length(drafter, verifier):
    requests = [request(p, max_tokens=30, num_draft_tokens=cap) for cap, p in enumerate(PROMPTS)]
    result = run(new(drafter), verifier, requests, k=K)
    assert result.texts == [expected(r) for r in requests]
    for report in result.reports:
        assert all(drafted <= cap for cap, drafted in enumerate(report.num_drafted))
    if follows(drafter):
        longest = [max(report.num_drafted[row] for report in result.reports) for row in range(len(PROMPTS))]
        assert longest == [0, 1, 2, 3, 3, 3]


@every_pair
def test_acceptance_is_at_least_the_recorded_value(drafter, verifier):
    """A stale drafter leaves the output right and only makes it slow; this is what notices."""
    module = importlib.import_module(f"tests.drafters.test_{drafter}")
    _, target = guessable_target(drafter)
    result = run(new(drafter, target), verifier, greedy(), target=target, k=K)
    assert result.summary.mean_acceptance_length >= getattr(module, "FLOOR", 1.0)


WANDERING = {
    "each its own": lambda row, tokens: row % (K + 1),
    "by its tokens": lambda row, tokens: tokens[-1] % (K + 1),
    "off and on": lambda row, tokens: K if (len(tokens) + 5 * row) % 23 > 12 else 0,
}


def wandering_cases():
    """Every way under coupled. Of the others, which do not see how a row came to its depth, the last one runs soon."""
    for case in family_cases():
        for way in WANDERING:
            soon = case.values[1] == "coupled" or way == "off and on"
            yield pytest.param(*case.values, way, marks=case.marks if soon else [pytest.mark.slow])


@pytest.mark.each_value
@pytest.mark.parametrize(("drafter", "verifier", "way"), list(wandering_cases()))
def test_rows_may_have_depths_of_their_own(drafter, verifier, way):
    """Rows pause, fall behind and catch up while others draft."""
    requests = greedy() if VERIFIERS.find(verifier).same_tokens is False else sampled()
    plan = PerRow(WANDERING[way], K)
    model, target = guessable_target(drafter)
    result = run(new(drafter, target), verifier, requests, target=target, plan=plan)
    assert result.texts == [expected(r, model) for r in requests]
    for report, depths in zip(result.reports, plan.made, strict=True):
        for depth, drafted, reason in zip(depths, report.num_drafted, report.no_draft, strict=True):
            assert drafted <= depth
            assert depth or drafter == "none" or reason in (NoDraft.OFF, NoDraft.LIMIT)
    if drafter != "none":
        assert sum(result.summary.accepted) > 0


@every_drafter
def test_a_paused_row_is_drafted_for_as_if_it_had_not_paused(drafter):
    """After a pause of 43 tokens, while another row drafts on, it drafts what it would have drafted."""
    if drafter == "none" or learns(drafter):
        return
    model, target = guessable_target(drafter)
    requests = [request(PROMPTS[0], max_tokens=84), request(PROMPTS[3], max_tokens=84)]

    def late(row, tokens):
        return K if row or len(tokens) > 46 else 0

    def always(row, tokens):
        """It comes by the length where the other begins."""
        return K if row or len(tokens) > 46 else min(K, 46 - len(tokens))

    paused, steady = (
        run(new(drafter, target), "coupled", requests, target=target, plan=PerRow(way, K)) for way in (late, always)
    )
    assert paused.texts == steady.texts == [expected(r, model) for r in requests]

    def accepted(result):
        """By the row's length before the step, from where both draft."""
        found, length = {}, len(PROMPTS[0])
        for report in result.reports:
            if report.num_drafted[0] and length > 46:
                found[length] = report.num_accepted[0]
            length += len(report.tokens[0])
        return found

    one, other = accepted(paused), accepted(steady)
    both = one.keys() & other.keys()
    assert both and {length: one[length] for length in both} == {length: other[length] for length in both}
