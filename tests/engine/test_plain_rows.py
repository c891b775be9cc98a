"""Rows that a draft head reads nothing of: plain decoding, whatever drafts beside them and comes after them."""

import pytest

from paceline.api import Engine, SamplingParams
from paceline.core.admission import Prefix
from paceline.core.plan import Plan
from paceline.core.step import StepPlan
from paceline.drafters import DRAFTERS
from paceline.engine.exploration import Exploration
from paceline.engine.readiness import Readiness
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from tests import tiny
from tests.api.engines import bare, naive
from tests.conformance.test_runner import LONG, serve
from tests.engine.recorded import RecordedGraphs
from tests.engine.wrapped import Wrapped
from tests.harness import decoder_for, expected, finish, request, tiny_drafter

K = 3
HEADS = [name for name in DRAFTERS.builtin if tiny_drafter(name, tiny.target()[1]).taps]


class Marked(Plan):
    """Requests that allow no draft tokens begin plain; the others draft ``K`` in every step."""

    def __init__(self, rows):
        self.drafts = [False] * rows
        self.rereads, self.unread, self.waiting, self.read = [], [], [], []

    @property
    def max_draft_tokens(self):
        return K

    def drafts_for(self, rows, requests, *, reread, unread, waiting):
        self.rereads.append(reread)
        self.unread.append(unread)
        self.waiting.append((len(rows), waiting))
        drafts = any(one.num_draft_tokens != 0 for one in requests)
        for row in rows:
            self.drafts[row] = drafts
        return drafts

    def observe_prefill(self, num_tokens, seconds):
        self.read.append((num_tokens, seconds))

    def release(self, rows):
        for row in rows:
            self.drafts[row] = False

    def __call__(self):
        depths = tuple(K if drafts else 0 for drafts in self.drafts)
        return StepPlan(max(depths), depths)


class GivesUp(Marked):
    """Drafts ``K`` for some steps, and then never again for the rows that run."""

    def __init__(self, rows, after):
        super().__init__(rows)
        self.left, self.given = after, 0

    def __call__(self):
        self.left -= 1
        return super().__call__() if self.left >= 0 else StepPlan(0)

    def give_up(self):
        self.given += self.left == -1
        return range(len(self.drafts)) if self.left == -1 else ()


class Taps(Wrapped):
    """Notes the taps of every forward."""

    def __init__(self, lm):
        super().__init__(lm)
        self.asked = set()

    def __call__(self, tree, cache, **options):
        self.asked.add(tuple(options.get("taps", ())))
        return self.lm(tree, cache, **options)


def plain(prompt, **options):
    return request(prompt, num_draft_tokens=0, **options)


def decoder(drafter, *, rows, target=None):
    return decoder_for(
        tiny_drafter(drafter, tiny.target()[1]), "coupled", target=target, k=K, rows=rows, plan=Marked(rows)
    )


def drafts_of(decoder, row):
    """A list that every draft of ``row`` will be added to."""
    found, propose = [], decoder.drafter.propose

    def noting(batch, plan):
        tree = propose(batch, plan)
        if batch.active[row]:
            found.append(tree.tokens[row, 1:][tree.valid[row, 1:]].tolist())
        return tree

    decoder.drafter.propose = noting
    return found


def finish_some(decoder, *, steps):
    """The tokens of every row in so many steps."""
    tokens = [[] for _ in range(decoder.rows)]
    for _ in range(steps):
        decoder.step()
        for row, new in enumerate(decoder.results().tokens):
            tokens[row] += new
    return tokens


@pytest.mark.one_in(9)
@pytest.mark.parametrize("drafter", HEADS)
def test_a_row_beside_plain_ones_drafts_as_well_as_alone(drafter):
    """They come before it, run beside it longer than it does, and take its place; long enough that queues overflow."""
    wanted = request(LONG, max_tokens=50)
    alone = decoder(drafter, rows=1)
    alone.admit([wanted], [0])
    best = drafts_of(alone, 0)
    finish(alone, rows=[0], prompts=[LONG])
    others = [plain(LONG[:7], max_tokens=60), plain([9, 2], max_tokens=70)]
    made = decoder(drafter, rows=3)
    made.admit(others[:1], [0])
    made.step()
    started = made.results().tokens[0]
    made.admit([wanted], [1])
    made.admit(others[1:], [2])
    beside = drafts_of(made, 1)
    assert finish(made, rows=[1], prompts=[LONG]).texts == [expected(wanted)]
    assert sum(map(len, best)) > 50 and beside == best
    made.release([1])
    again = plain(LONG[3:], max_tokens=40)
    made.admit([again], [1])
    assert finish(made, rows=[1], prompts=[LONG[3:]]).texts == [expected(again)] and beside == best
    assert started == expected(others[0])[:1]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("drafter", HEADS)
def test_what_a_plain_row_read_is_read_again_where_a_draft_is_to_follow(drafter):
    first, wanted = plain(LONG, max_tokens=20), request([*LONG, 9], max_tokens=40)
    fresh = decoder(drafter, rows=2)
    fresh.admit([wanted], [0])
    best = drafts_of(fresh, 0)
    finish(fresh, rows=[0], prompts=[wanted.tokens])
    made = decoder(drafter, rows=2)
    made.admit([first], [0])
    finish(made, rows=[0], prompts=[LONG])
    made.admit([wanted], [1], [Prefix(row=0, length=len(LONG))])
    after = drafts_of(made, 1)
    assert finish(made, rows=[1], prompts=[wanted.tokens]).texts == [expected(wanted)]
    assert after == best
    assert made.plan.rereads == [0, len(LONG)] and made.plan.unread == [len(LONG), len(LONG) + 1]
    follows = plain([*LONG, 3], max_tokens=9)  # the target's cache is copied as ever, and the drafter has no work
    read, prefill = [], made.drafter.prefill
    made.drafter.prefill = lambda batch, admission, hidden: (
        read.append((admission.max_prefix_length, hidden)),
        prefill(batch, admission, hidden),
    )
    made.admit([follows], [1], [Prefix(row=0, length=len(LONG))])
    assert finish(made, rows=[1], prompts=[follows.tokens]).texts == [expected(follows)]
    assert read == [(0, {})] and made.cache.length[1] > len(LONG)


@pytest.mark.parametrize("drafter", HEADS)
def test_no_hidden_states_are_read_while_all_rows_are_plain(drafter):
    target = Taps(tiny.target()[1])
    made = decoder(drafter, rows=2, target=target)
    target.asked.clear()
    made.admit([plain(LONG, max_tokens=12)], [0])
    finish(made, rows=[0], prompts=[LONG])
    assert target.asked == {()}
    made.admit([request(LONG, max_tokens=12)], [1])
    finish(made, rows=[1], prompts=[LONG])
    assert made.drafter.taps in target.asked
    made.release([0, 1])
    target.asked.clear()
    made.admit([plain(LONG, max_tokens=12)], [1])
    finish(made, rows=[1], prompts=[LONG])
    assert target.asked == {()}


@pytest.mark.parametrize("drafter", HEADS)
def test_a_head_reads_nothing_more_of_rows_that_are_given_up(drafter):
    """So what such a row has read is read again for a later request that begins with it."""
    first = [request(LONG, max_tokens=30), request([8, 6], max_tokens=20)]
    wanted = request([*LONG, *expected(first[0])[:24], 9], max_tokens=30)
    fresh = decoder(drafter, rows=2)
    fresh.admit([wanted], [0])
    best = drafts_of(fresh, 0)
    finish(fresh, rows=[0], prompts=[wanted.tokens])
    target, plan = Taps(tiny.target()[1]), GivesUp(2, after=3)
    made = decoder_for(tiny_drafter(drafter, target.lm), "coupled", target=target, k=K, rows=2, plan=plan)
    made.admit(first, [0, 1])
    begun = finish_some(made, steps=3)
    target.asked.clear()
    texts = [one + more for one, more in zip(begun, finish_some(made, steps=60), strict=True)]
    assert texts == [expected(one) for one in first] and max(map(len, begun)) < 20
    assert target.asked == {()} and made.plain_rows == {0, 1} and not made.batch.active.any()
    plan.left = 1000
    made.admit([wanted], [1], [Prefix(row=0, length=len(wanted.tokens) - 1)])
    after = drafts_of(made, 1)
    assert finish(made, rows=[1], prompts=[wanted.tokens]).texts == [expected(wanted)]
    assert after == best and plan.rereads[-1] == len(wanted.tokens) - 1


@pytest.mark.parametrize("drafter", HEADS)
def test_a_plan_knows_how_long_a_head_reads_prompts(drafter):
    """Not of plain requests, of which it reads nothing, and not what the caches of a ready one have."""
    made = Scheduler(Runner(decoder(drafter, rows=1)))
    plan, drafts = made.decoder.plan, made.decoder.drafter
    for one in (plain(LONG, max_tokens=3), request([8] * 6, max_tokens=3), request([8] * 6 + [9], max_tokens=3)):
        serve(made, [one])
    assert plan.unread[:2] == [len(LONG), 6] and plan.unread[2] <= 1 + drafts.num_reread_of_prefix + drafts.num_reread
    (num_tokens, seconds), (_, more) = plan.read
    assert num_tokens == 5 and seconds > 0 < more


def test_a_plan_knows_how_many_requests_will_join():
    """Those that copy the prefix of others begin after them; those that find no free row are not counted."""
    made = Scheduler(Runner(decoder(HEADS[0], rows=4)))
    requests = [request(prompt, max_tokens=3) for prompt in (LONG, [*LONG, 4], [8] * 6, [*LONG, 5], [1, 2])]
    assert serve(made, requests)[1] == [expected(one) for one in requests]
    assert made.decoder.plan.waiting == [(2, 2), (1, 1), (1, 0), (1, 0)]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("drafter", HEADS)
@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
def test_outputs_are_the_references_while_rows_change_kinds(drafter, recorded):
    made = Scheduler(Runner(decoder(drafter, rows=2), graphs=RecordedGraphs() if recorded else None))
    prompts = [LONG[:5], LONG, [8] * 6, [*LONG, 4], [1, 2], [*LONG, 4, 4], LONG[3:9], [60, 0]]
    kinds = [plain, request, plain, plain, request, request, plain, plain]
    lengths = [6, 13, 20, 6, 13, 20, 6, 13]
    requests = [kind(prompt, max_tokens=n) for kind, prompt, n in zip(kinds, prompts, lengths, strict=True)]
    assert serve(made, requests)[1] == [expected(one) for one in requests]
    assert made.runner.drafter_error is None


@pytest.mark.parametrize("drafter", HEADS)
def test_a_head_is_not_asked_in_steps_of_plain_rows(drafter, monkeypatch):
    made = Scheduler(Runner(decoder(drafter, rows=2)))
    head, asked = made.decoder.drafter, []
    begin = type(head).begin_step
    monkeypatch.setattr(type(head), "begin_step", lambda self, *given: asked.append(1) or begin(self, *given))
    serve(made, [plain(LONG, max_tokens=6), plain([1, 2], max_tokens=9)])
    assert not asked
    serve(made, [request(LONG, max_tokens=6)])
    assert asked


@pytest.mark.parametrize("drafter", HEADS)
def test_copies_are_drafted_where_a_head_beside_them_reads_nothing(drafter, monkeypatch):
    monkeypatch.setattr(Exploration, "lesson", lambda self, kind: 0)
    monkeypatch.setattr(Readiness, "keeps", lambda self, speedup, *, hopeful, reading: False)
    model, lm = tiny.looping_target()
    target = Taps(lm)
    made = Engine(bare(target), drafter=["suffix", tiny_drafter(drafter, lm)], batch_size=2, max_length=120)
    target.asked.clear()
    params = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)
    results = made.generate([[2], [3, 4], [5]], params)
    assert [list(one.token_ids) for one in results] == [
        naive(prompt, params, 0, model) for prompt in ([2], [3, 4], [5])
    ]
    assert target.asked == {()} and made.runner.drafter_error is None
    head = set(tiny_drafter(drafter, lm).origins)
    assert all("suffix" in one.origin and head.isdisjoint(one.origin) for one in results)
