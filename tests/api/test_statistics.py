"""Statistics of results: times, reasons for steps without drafts, and whether drafting paid."""

import logging
import time

import pytest
import torch

from paceline.api import Engine, SamplingParams, Source, total
from paceline.core.plan import Fixed
from paceline.core.tree import Draw, NoDraft, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.drafters.model import ModelDrafter
from paceline.engine.outputs import REASONS
from tests import tiny
from tests.api.engines import bare, engine, greedy, naive
from tests.api.scripted import DRAFTS, Script, draft, target

TOKENS = [3 + index % 250 for index in range(200)]
PROMPT = TOKENS[:1]
PLAIN_STEPS = [17, 18, 145, 146]  # counted from 1


def recite(drafter, *, max_tokens=40, num_draft_tokens=4, verifier="coupled", prompts=1, **options):
    """An engine whose target follows the script TOKENS, and its results."""
    running = Engine(
        target(TOKENS),
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        **{"batch_size": prompts, "max_length": 220, **options},
    )
    return running, running.generate([PROMPT] * prompts, greedy(max_tokens=max_tokens, detokenize=False))


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_times_add_up(drafter):
    results = engine(drafter, batch_size=2).generate([[5, 9, 2], [1], [8] * 6, [4, 4]], greedy(max_tokens=12))
    for result in results:
        times = result.stats.times
        assert min(times.draft, times.target, times.verify, times.rest) > 0
        assert times.queue + times.prefill + times.draft + times.target + times.verify + times.rest <= times.total
        assert times.queue + times.prefill < times.first_token < times.total
    waited = [result.stats.times.queue for result in results]
    assert min(waited) > 0
    assert min(waited[2:]) > results[0].stats.times.target


def test_waiting_request_counts_only_queue_time():
    stream = engine(batch_size=1).submit([[5], [6]], greedy(max_tokens=9))
    next(stream)
    waiting = stream.results()[1].stats
    assert waiting.times.first_token is None and 0 < waiting.times.queue <= waiting.times.total
    assert (waiting.steps, waiting.mean_acceptance_length, waiting.acceptance_rate) == (0, 0.0, 0.0)


def test_totals_are_sums():
    results = engine("model", batch_size=3).generate([[5, 9, 2], [1], [8] * 6, [4, 4]], greedy(max_tokens=12))
    added = total(results)
    assert added.emitted == 48 and added.steps == sum(result.stats.steps for result in results)
    assert added.accepted == [
        sum(column) for column in zip(*(result.stats.accepted for result in results), strict=True)
    ]


def test_per_position_counts_are_those_of_the_script():
    """The draft is wrong at every seventh position, so every step's outcome is known."""
    wrong = DRAFTS["every seventh wrong from 4"]
    running, [result] = recite(draft(wrong, TOKENS), max_tokens=60, num_draft_tokens=Fixed(4))
    source, drafted, accepted, at, left = [], [0] * 4, [0] * 4, 1, 60
    while left:
        room = min(4, left - 1)
        right = next((depth for depth in range(room) if wrong(at + depth)), room)
        for depth in range(room):
            drafted[depth] += 1
            accepted[depth] += depth < right
        own = Source.PLAIN if room == 0 else Source.BONUS if right == room else Source.CORRECTED
        source += [Source.DRAFTED] * right + [own]
        at, left = at + right + 1, left - right - 1
    assert list(result.source) == source
    assert (result.stats.drafted, result.stats.accepted) == (drafted, accepted)
    assert result.stats.acceptance_rate == sum(accepted) / sum(drafted)
    assert result.stats.per_position_acceptance == [a / d for a, d in zip(accepted, drafted, strict=True)]
    assert result.origin == tuple("model" if one is Source.DRAFTED else None for one in source)
    assert running.speed is None and result.stats.speed is None


def test_reason_no_match():
    [result] = Engine(target(TOKENS), drafter="ngram", num_draft_tokens=5, batch_size=1, max_length=64).generate(
        [PROMPT], greedy(max_tokens=9, detokenize=False)
    )
    assert result.stats.no_draft == {"no n-gram match": 8, "one token left to max_tokens": 1}


def test_reason_context():
    short = ModelDrafter(lm=tiny.native(tiny.llama(1, max_position_embeddings=24)))
    [result] = engine(short, num_draft_tokens=Fixed(3), batch_size=1).generate([[6] * 20], greedy(max_tokens=20))
    assert list(result.token_ids) == naive([6] * 20, greedy(max_tokens=20), 0)
    drafted = result.stats.drafted[0]
    assert result.stats.no_draft == {
        "draft context full": result.stats.steps - drafted - 1,
        "one token left to max_tokens": 1,
    }
    assert drafted == 2 and result.source[6:] == (Source.PLAIN,) * 14


def test_reason_turned_off():
    for options in (dict(drafter=None), dict(drafter=draft(DRAFTS["all right"], TOKENS), num_draft_tokens=0)):
        _, [result] = recite(**options, max_tokens=12)
        assert result.stats.no_draft == {"turned off": 12} and set(result.source) == {Source.PLAIN}
        assert result.stats.speed is None


def test_reason_limit():
    _, [result] = recite(draft(DRAFTS["all right"], TOKENS), max_tokens=1)
    assert result.stats.no_draft == {"one token left to max_tokens": 1}


def test_measuring_steps_are_plain_and_counted_separately():
    """A draft that is never right gives one token per step, so token positions are step numbers."""
    _, [result] = recite(draft(DRAFTS["none right"], TOKENS), max_tokens=160)
    assert [at for at, source in enumerate(result.source, start=1) if source is Source.PLAIN] == [*PLAIN_STEPS, 160]
    assert result.stats.no_draft == {REASONS[NoDraft.MEASURED]: 4, "one token left to max_tokens": 1}
    assert result.stats.speed is not None


def test_short_outputs_have_no_measuring_steps():
    _, [result] = recite(draft(DRAFTS["none right"], TOKENS), max_tokens=16)
    assert result.stats.no_draft == {"one token left to max_tokens": 1}


UNMEASURED = {
    "a verifier whose tokens depend on drafts": dict(verifier="rejection"),
    "a plan, which is followed to the letter": dict(num_draft_tokens=Fixed(4)),
}


@pytest.mark.parametrize("case", UNMEASURED)
def test_no_measuring_steps_under(case):
    running, [result] = recite(draft(DRAFTS["none right"], TOKENS), max_tokens=60, **UNMEASURED[case])
    assert result.stats.no_draft == {"one token left to max_tokens": 1}
    assert running.speed is None and result.stats.speed is None and result.stats.warning is None


class Slow(StatelessDrafter):
    """A slow drafter that is never right."""

    draws = frozenset({Draw.FIXED})
    origins = ("slow",)

    def propose(self, batch, plan):
        if plan.num_draft_tokens:
            time.sleep(0.04)
        index = torch.arange(1 + plan.num_draft_tokens)
        tokens = torch.where(index == 0, batch.root[:, None], 2)
        valid = batch.active[:, None] & (index <= batch.draft_room[:, None])
        return Tree.make_chain(tokens, valid, no_draft_reason=NoDraft.OFF)


class SlowScript(Script):
    """A target whose steps are slow for any number of nodes."""

    def __call__(self, tree, cache, **options):
        time.sleep(0.02)
        return super().__call__(tree, cache, **options)


def test_slow_drafting_is_warned_about_once_and_in_the_results(caplog):
    with caplog.at_level(logging.WARNING, logger="paceline"):
        running, [result] = recite(Slow(), max_tokens=28)
        again = running.generate([PROMPT], greedy(max_tokens=4, detokenize=False))[0]
    assert result.token_ids == tuple(TOKENS[1:29])
    assert not running.speed.pays and 0 < running.speed.drafted < running.speed.plain
    assert result.stats.speed is not None and result.stats.warning == result.stats.speed.warning
    assert "tokens/s where plain decoding would give" in result.stats.warning and again.stats.warning is not None
    assert len([record for record in caplog.records if "plain decoding would give" in record.message]) == 1


def test_fast_drafting_gives_no_warning(caplog):
    loaded = bare(SlowScript(TOKENS))
    drafter = draft(DRAFTS["all right"], TOKENS)
    running = Engine(loaded, drafter=drafter, num_draft_tokens=4, batch_size=1, max_length=220)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        [result] = running.generate([PROMPT], greedy(max_tokens=110))
    assert running.speed.pays and running.speed.drafted > running.speed.plain
    assert result.stats.speed == running.speed and result.stats.warning is None
    assert not caplog.records


def test_lossless_is_that_of_the_verifier():
    for verifier in ("coupled", "rejection"):
        assert engine("model", verifier).generate([[5]], SamplingParams(max_tokens=3))[0].stats.lossless


def test_steps_of_a_batch_count_for_each_row_that_took_part():
    _, results = recite(draft(DRAFTS["none right"], TOKENS), max_tokens=10, prompts=3)
    assert [result.stats.steps for result in results] == [10] * 3
