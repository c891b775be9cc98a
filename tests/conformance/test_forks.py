"""Requests that share prefixes, over the registries: nothing is prefilled twice, and outputs stay the same."""

import pytest
import torch

from paceline.api import SamplingParams
from paceline.core.admission import Prefix
from paceline.core.step import Finish
from paceline.drafters import DRAFTERS
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from tests import tiny
from tests.api.engines import bare, engine, greedy, naive
from tests.engine.wrapped import Counted
from tests.harness import decoder_for, expected, family_cases, finish, pairs, request, tiny_drafter

pytestmark = pytest.mark.one_in(15)

K = 3
LONG = [7, 3, 5, 60, 2, 2, 9, 41, 8, 8, 13, 30, 1, 0, 5, 5, 17, 22, 6, 4]
every_pair = pytest.mark.parametrize(("drafter", "verifier"), family_cases())
every_drafter = pytest.mark.parametrize("drafter", sorted(DRAFTERS))


class Bench:
    """A decoder whose target, and draft model where there is one, count what they are fed."""

    def __init__(self, drafter, verifier="coupled", rows=4):
        self.target = Counted(tiny.target()[1])
        instance = tiny_drafter(drafter, tiny.target()[1])
        self.num_reread, self.draft = instance.num_reread, None
        self.of_prefix = instance.num_reread_of_prefix
        if isinstance(instance, ModelDrafter):
            self.draft = instance.lm = Counted(instance.lm)
        self.decoder = decoder_for(instance, verifier, target=self.target, k=K, rows=rows)
        self.texts = {}

    def admit(self, wanted, rows, prefixes):
        """Tokens that the target and the draft were fed."""
        self.decoder.admit(wanted, rows, prefixes)
        self.texts.update({row: [] for row in rows})
        return self.target.take(), self.draft.take() if self.draft is not None else None

    def unread(self, length, prefix_length):
        """Tokens of a prompt that the target reads though ``prefix_length`` are shared: what the drafter must see is
        read.
        """
        return length - 1 - max(0, min(prefix_length - self.of_prefix, length - 1 - self.num_reread))

    def step(self, count):
        for _ in range(count):
            self.decoder.step()
            report = self.decoder.results()
            for row, sequence in self.texts.items():
                sequence.extend(report.tokens[row])
        self.target.take()
        if self.draft is not None:
            self.draft.take()

    def finish(self):
        while bool(self.decoder.batch.active.any()):
            self.step(1)
            assert (self.decoder.cache.length == self.decoder.batch.length - 1)[list(self.texts)].all()


def options(sampled, row=0):
    return dict(temperature=0.9, top_k=20, seed=row) if sampled else {}


# Under other verifiers the tokens at a temperature are not plain decoding's.
SETTINGS = [pytest.param(*case.values, False, marks=case.marks) for case in family_cases()]
SETTINGS += [(*pair, True) for pair in pairs() if pair[1] == "coupled"]
every_setting = pytest.mark.parametrize(("drafter", "verifier", "sampled"), SETTINGS)


@pytest.mark.each_value
@every_setting
def test_fork_of_a_running_row_into_others(drafter, verifier, sampled):
    """Several requests begin with the prompt and the fresh sequence of a row that runs on."""
    bench = Bench(drafter, verifier)
    first = request(LONG, max_tokens=30, **options(sampled))
    bench.admit([first], [1], None)
    bench.step(4)
    known = [*LONG, *bench.texts[1]]
    wanted = [
        request([*known[:-1], 9, 9], max_tokens=12, **options(sampled, 1)),  # all that the cache holds
        request([*LONG[:11], 44], max_tokens=15, **options(sampled, 2)),  # a part of it
        request([3, 3, 3], max_tokens=9, **options(sampled, 3)),  # nothing of it
    ]
    fed = bench.admit(wanted, [3, 0, 2], [Prefix(row=1, length=len(known) - 1), Prefix(row=1, length=11), None])
    assert fed[0] == bench.unread(len(known) + 1, len(known) - 1) + bench.unread(12, 11) + bench.unread(3, 0)
    if bench.draft is not None:  # its cache may lag behind the target's by the root and a whole draft's last token
        assert fed[0] <= fed[1] <= fed[0] + 1
    bench.finish()
    for row, one in zip([1, 3, 0, 2], [first, *wanted], strict=True):
        assert bench.texts[row] == expected(one)


@every_setting
def test_fork_of_an_ended_row_and_of_a_rows_own_past(drafter, verifier, sampled):
    bench = Bench(drafter, verifier, rows=2)
    first = request(LONG, max_tokens=9, **options(sampled))
    bench.admit([first], [0], None)
    bench.finish()
    known = [*LONG, *expected(first)]
    wanted = [
        request([*known, 4], max_tokens=12, **options(sampled, 5)),
        request(known, max_tokens=9, **options(sampled)),
    ]
    fed = bench.admit(wanted, [1, 0], [Prefix(row=0, length=len(known) - 1)] * 2)
    assert fed[0] == bench.unread(len(known) + 1, len(known) - 1) + bench.unread(len(known), len(known) - 1)
    bench.finish()
    assert [bench.texts[1], bench.texts[0]] == [expected(one) for one in wanted]


@every_pair
def test_rows_that_exchange_their_beginnings(drafter, verifier):
    """Each takes what the other holds: sources are read before anything is written."""
    bench = Bench(drafter, verifier, rows=3)
    others = [[*LONG[::-1], 12], [*LONG, 21], [1, 2, 3, 4, 5, 6]]
    bench.admit([request(sequence, max_tokens=4) for sequence in others], [0, 1, 2], None)
    bench.finish()
    moved = [others[1], others[2], others[0]]
    wanted = [request([*sequence, 55, 1], max_tokens=11) for sequence in moved]
    prefixes = [Prefix(row=row, length=len(sequence)) for row, sequence in zip([1, 2, 0], moved, strict=True)]
    fed = bench.admit(wanted, [0, 1, 2], prefixes)
    assert fed[0] == sum(bench.unread(len(sequence) + 2, len(sequence)) for sequence in moved)
    bench.finish()
    assert [bench.texts[row] for row in range(3)] == [expected(one) for one in wanted]


@pytest.mark.each_value
@every_drafter
@pytest.mark.parametrize("sampled", [False, True])
def test_acceptance_after_a_fork_is_that_without(drafter, sampled):
    """What the drafter knows is forked too, and is the same: step by step as many tokens are drafted and kept."""
    first = request(LONG, max_tokens=20, **options(sampled))
    known = [*LONG, *expected(first)[:6]]
    wanted = request([*known, 7], max_tokens=20, **options(sampled, 3))

    def reports(prefix):
        bench = Bench(drafter, rows=2)
        bench.admit([first], [0], None)
        bench.finish()
        fed = bench.admit([wanted], [1], [prefix])
        result = finish(bench.decoder, rows=[1], prompts=[wanted.tokens])
        assert result.texts == [expected(wanted)]
        assert fed[0] == bench.unread(len(wanted.tokens), 0 if prefix is None else prefix.length)
        return fed[1], [(report.num_drafted[1], report.num_accepted[1], report.tokens[1]) for report in result.reports]

    draft_alone, without = reports(None)
    draft_forked, after = reports(Prefix(row=0, length=len(known)))
    assert after == without
    assert (draft_alone, draft_forked) in ((None, None), (len(known), 0))


def test_fork_of_a_row_whose_draft_has_fallen_behind():
    """After plain steps the draft's cache holds less than the target's; the rest is read, not claimed."""
    bench = Bench("model", rows=2)
    first = request(LONG, max_tokens=40)
    bench.admit([first], [0], None)
    plan, bench.decoder.plan = bench.decoder.plan, type(bench.decoder.plan)(0)
    bench.step(9)
    bench.decoder.plan = plan
    known = [*LONG, *bench.texts[0]]
    wanted = request([*known[:-1], 7], max_tokens=20)
    fed = bench.admit([wanted], [1], [Prefix(row=0, length=len(known) - 1)])
    assert fed == (0, 9)
    bench.finish()
    assert bench.texts == {0: expected(first), 1: expected(wanted)}
    alone = Bench("model", rows=1)
    alone.admit([wanted], [0], None)
    alone.finish()
    assert bench.decoder.stats.summary([1]) == alone.decoder.stats.summary([0])


def test_fork_beyond_the_drafts_context():
    """A draft model whose context is shorter than the prefix copies what it has."""
    draft = tiny.native(tiny.llama(1, max_position_embeddings=12))
    decoder = decoder_for(ModelDrafter(lm=draft), "coupled", k=K, rows=3)
    decoder.admit([request(LONG, max_tokens=5)], [0])
    wanted = [request([*LONG, 1], max_tokens=9), request([*LONG[:6], 1], max_tokens=9)]
    decoder.admit(wanted, [1, 2], [Prefix(row=0, length=len(LONG) - 1), Prefix(row=0, length=6)])
    result = finish(decoder, rows=[1, 2], prompts=[one.tokens for one in wanted])
    assert result.texts == [expected(one) for one in wanted]
    assert decoder.stats.summary([1]).drafted == [0] * K and decoder.stats.summary([2]).acceptance_rate == 1


REFUSALS = {
    "row out of range": (Prefix(row=2, length=3), "prefix of row 2: this decoder has rows 0 to 1"),
    "negative row": (Prefix(row=-1, length=3), "prefix of row -1: this decoder has rows 0 to 1"),
    "longer than the row": (Prefix(row=0, length=20), "prefix of 20 tokens: row 0 holds 19 and the prompt has 25"),
    "negative length": (Prefix(row=0, length=-2), "prefix of -2 tokens: row 0 holds 19"),
    "other tokens": (Prefix(row=0, length=8), "the first 8 tokens of row 0 are not those of the prompt"),
    "row that holds nothing": (Prefix(row=1, length=1), "prefix of 1 tokens: row 1 holds 0"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_prefix_that_is_not_the_requests_is_refused_before_any_row_is_touched(case):
    prefix, message = REFUSALS[case]
    decoder = decoder_for(NoDrafter(), "coupled", rows=2)
    decoder.admit([request(LONG, max_tokens=9)], [0])
    before = decoder.batch.tokens.clone(), decoder.cache.length.clone(), decoder.batch.active.clone()
    prompt = [*LONG[:7], 59, *LONG[8:], 1, 1, 1, 1, 1] if case == "other tokens" else [*LONG, 1, 1, 1, 1, 1]
    with pytest.raises(ValueError, match=message):
        decoder.admit([request(prompt, max_tokens=9)], [1], [prefix])
    for old, new in zip(before, (decoder.batch.tokens, decoder.cache.length, decoder.batch.active), strict=True):
        assert torch.equal(old, new)


def test_prefix_that_holds_the_root_is_refused():
    decoder = decoder_for(NoDrafter(), "coupled", rows=2)
    decoder.admit([request(LONG, max_tokens=9)], [0])
    with pytest.raises(ValueError, match=r"prefix of 5 tokens: .* the prompt has 5, of which the last is the root"):
        decoder.admit([request(LONG[:5], max_tokens=9)], [1], [Prefix(row=0, length=5)])


# Through the engine, which finds out by itself what is shared.


class CountedEngine:
    """An engine whose target and draft model count what they are fed when requests are admitted."""

    def __init__(self, drafter, rows):
        self.target = Counted(tiny.target()[1])
        instance = tiny_drafter(drafter, tiny.target()[1])
        self.num_reread, self.of_prefix = instance.num_reread, instance.num_reread_of_prefix
        self.draft = Counted(instance.lm) if isinstance(instance, ModelDrafter) else None
        if self.draft is not None:
            instance.lm = self.draft
        self.engine = engine(instance, target=bare(self.target), batch_size=rows)
        self._read, self.engine.runner.read = self.engine.runner.read, self._count
        self.fed = self.draft_fed = 0

    def _count(self, reading):
        lms = [lm for lm in (self.target, self.draft) if lm is not None]
        for lm in lms:
            lm.take()
        size = self._read(reading)
        fed, *draft_fed = [lm.take() for lm in lms]
        self.fed, self.draft_fed = self.fed + fed, self.draft_fed + sum(draft_fed)
        return size

    def generate(self, prompts, params):
        """Tokens of every continuation; ``fed`` and ``draft_fed`` then say what admitting them took."""
        self.fed = self.draft_fed = 0
        results = self.engine.generate(prompts, params)
        assert self.engine.runner.drafter_error is None
        return results


@every_drafter
def test_samples_of_one_prompt_read_it_once(drafter):
    counted = CountedEngine(drafter, 4)
    params = SamplingParams(n=4, seed=3, max_tokens=8)
    results = counted.generate([LONG], params)
    again = min(max(counted.num_reread, counted.of_prefix), len(LONG) - 1)
    assert counted.fed == len(LONG) - 1 + 3 * again and counted.draft_fed == (counted.fed if counted.draft else 0)
    assert [list(result.tokens) for result in results] == [naive(LONG, params, result.seed) for result in results]


@every_drafter
def test_what_prompts_share_is_read_once(drafter):
    counted = CountedEngine(drafter, 5)
    prompts = [[*LONG, 1, 2], LONG, [*LONG, 3, 4, 5], [*LONG[:18], 9], [50, 51]]
    results = counted.generate(prompts, greedy(max_tokens=6))
    again, more = counted.num_reread, counted.of_prefix
    fed = 21 + max(again, more) + max(2 + more, again) + max(again, more) + 1
    assert counted.fed == fed and counted.draft_fed == (counted.fed if counted.draft else 0)
    assert [list(result.tokens) for result in results] == [naive(p, greedy(max_tokens=6), 0) for p in prompts]


@every_drafter
def test_a_conversation_goes_on_from_what_its_row_holds(drafter):
    """Each turn's prompt is all that was said and new words; read are these and the newest token before them."""
    counted = CountedEngine(drafter, 2)
    sequence = list(LONG)
    for turn, new in enumerate(([], [4, 9, 1], [33], [2, 60])):
        sequence += new
        [result] = counted.generate([sequence], greedy(max_tokens=7))
        assert list(result.tokens) == naive(sequence, greedy(max_tokens=7), 0)
        again = max(len(new) + counted.of_prefix, counted.num_reread)
        assert counted.fed == (len(LONG) - 1 if turn == 0 else again)
        sequence += result.tokens


def test_finish_is_reported_by_rows_that_forked():
    """A fork of a stopped row runs: nothing of its end is copied."""
    decoder = decoder_for(NoDrafter(), "coupled", rows=2)
    stop = expected(request(LONG, max_tokens=5))[1]
    decoder.admit([request(LONG, max_tokens=5, stop_tokens=[stop])], [0])
    finish(decoder, rows=[0], prompts=[LONG])
    assert decoder.results().finish[0] is Finish.STOP
    decoder.admit([request([*LONG, 1], max_tokens=5)], [1], [Prefix(row=0, length=len(LONG))])
    decoder.step()
    assert decoder.results().finish == [Finish.STOP, Finish.RUNNING]
