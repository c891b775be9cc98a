"""Requests over rows: their order, failures, cancellation, and the state that rows are left in."""

from dataclasses import replace

import pytest

from paceline.core.request import Request
from paceline.core.step import Finish
from paceline.core.tree import NoDraft
from paceline.drafters.model import ModelDrafter
from paceline.engine.outputs import REASONS
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from paceline.engine.timing import HostTimer
from paceline.engine.watch import Watch
from tests import tiny
from tests.engine.wrapped import Breaking
from tests.harness import decoder_for, expected, request, tiny_drafter

LONG = [7, 3, 5, 60, 2, 2, 9, 41, 8, 8, 13, 30, 1, 0, 5, 5, 17, 22, 6, 4]
POISON = 59


class QueueTimer(HostTimer):
    """The timer of an asynchronous device: a step's time ends with its last phase, not when its result is read."""

    def seconds(self):
        return replace(super().seconds(), rest=0.0)


def overlapped(decoder):
    reader = AsyncReader(decoder)
    reader.start = QueueTimer
    return reader


ORDERS = {"at once": SyncReader, "overlapped": overlapped}
CHOSEN = ["at once"]


@pytest.fixture(params=ORDERS, autouse=True)
def order(request):
    """Every test here, with steps read before the next is queued, and after."""
    CHOSEN[:] = [request.param]
    return request.param


def scheduler_of(decoder, *, order=None):
    return Scheduler(Runner(decoder, reader=ORDERS[order or CHOSEN[0]](decoder)))


def scheduler(drafter="none", *, target=None, rows=2, watch=False, k=3, order=None):
    target = target or tiny.target()[1]
    decoder = decoder_for(tiny_drafter(drafter, tiny.target()[1]), "coupled", target=target, k=k, rows=rows)
    if watch:
        decoder.plan = Watch(plan=decoder.plan)
    return scheduler_of(decoder, order=order)


def drain(made, outputs=()):
    """Tokens by ticket once everything is served, and all outputs."""
    outputs = list(outputs)
    while not made.idle:
        outputs += made.advance()
        assert len(outputs) < 2000
    texts = {}
    for output in outputs:
        texts.setdefault(output.ticket, []).extend(output.token_ids)
    return texts, outputs


@pytest.mark.one_in(3)
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_any_number_of_requests_passes_through_any_number_of_rows(drafter):
    wanted = [request([5, index, 7][: 1 + index % 3], max_tokens=3 + 5 * index % 11) for index in range(9)]
    for rows in (1, 2, 5, 9):
        made = scheduler(drafter, rows=rows)
        tickets = [made.submit(one) for one in wanted]
        texts, outputs = drain(made)
        assert [texts[ticket] for ticket in tickets] == [expected(one) for one in wanted]
        ends = [output.ticket for output in outputs if output.finish is not Finish.RUNNING]
        assert sorted(ends) == sorted(tickets), "each ends once"


def test_requests_are_admitted_in_the_order_of_their_submission():
    made = scheduler(rows=2)
    tickets = [made.submit(request([index], max_tokens=2 + index % 2)) for index in range(6)]
    seen = []
    while not made.idle:
        seen += [output.ticket for output in made.advance() if output.ticket not in seen]
    assert seen == tickets


def test_what_cannot_be_served_is_refused_at_once_and_leaves_no_trace():
    made = scheduler()
    for wrong in (request([1] * 90, max_tokens=7), request([tiny.VOCAB], max_tokens=4)):
        with pytest.raises(ValueError, match=r"exceed the limit|leave the target's vocabulary"):
            made.decoder.check(wrong)
    assert made.idle and made.advance() == []


def test_a_cancelled_request_leaves_its_row_at_once():
    """It takes part in no further step, and a waiting request is admitted with the next one."""
    made = scheduler(rows=1)
    wanted = [request(LONG, max_tokens=30), request([4, 4], max_tokens=5)]
    first, second = (made.submit(one) for one in wanted)
    made.advance(), made.advance()
    made.cancel(first)
    assert not bool(made.decoder.batch.active.any())
    assert made.stats(first).summary.emitted == made.stats(first).summary.steps == 2
    assert [output.ticket for output in made.advance()] == [second]
    assert made.decoder.batch.requests[0] is wanted[1]
    made.cancel(first)  # again: nothing happens
    assert bool(made.decoder.batch.active.all())
    assert made.stats(first).summary.steps == 2


def test_a_cancelled_row_stays_as_it_is_while_others_run():
    made = scheduler("model", rows=2)
    first, second = made.submit(request(LONG, max_tokens=30)), made.submit(request([4, 4], max_tokens=20))
    outputs = made.advance()
    made.cancel(first)
    length = int(made.decoder.batch.length[0])
    texts, after = drain(made, outputs)
    assert {output.ticket for output in after[2:]} == {second}
    assert int(made.decoder.batch.length[0]) == length
    assert texts[second] == expected(request([4, 4], max_tokens=20))


def test_a_request_may_be_cancelled_before_it_is_admitted():
    made = scheduler(rows=1)
    tickets = [made.submit(request([index], max_tokens=3)) for index in range(3)]
    made.cancel(tickets[1])
    texts, _ = drain(made)
    assert set(texts) == {tickets[0], tickets[2]}
    closing = made.stats(tickets[1])
    assert closing.summary.steps == 0 and closing.times.first_token is None and closing.times.prefill == 0
    assert 0 < closing.times.queue <= closing.times.total


def test_what_is_forgotten_takes_no_memory():
    made = scheduler()
    ticket = made.submit(request([1], max_tokens=2))
    drain(made)
    made.stats(ticket)
    made.forget(ticket)
    made.forget(ticket)
    assert not made._done and not made._running and not made._waiting


def test_rows_are_reused_the_longest_unused_first():
    made = scheduler(rows=3)
    made.submit(request([1], max_tokens=2))
    drain(made)
    for index in range(2):
        made.submit(request([index], max_tokens=20))
    made.advance()
    assert made.decoder.batch.active.tolist() == [False, True, True]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("at", range(4))
def test_a_request_that_cannot_be_admitted_fails_alone(drafter, at):
    """Requests admitted with it are served, and so are later ones in its row."""
    error = RuntimeError("poisoned")
    made = scheduler(drafter, target=Breaking(tiny.target()[1], error, poison=POISON), rows=3)
    others = [request(LONG, max_tokens=9), request([5, 1], max_tokens=12), request([*LONG, 2], max_tokens=7)]
    tickets = [made.submit(one) for one in others[:at]]
    bad = made.submit(request([*LONG, POISON, 1], max_tokens=5))
    tickets += [made.submit(one) for one in others[at:]]
    texts, outputs = drain(made)
    failures = [output for output in outputs if output.error is not None]
    assert [(output.ticket, output.error, output.token_ids) for output in failures] == [(bad, error, [])]
    assert [texts[ticket] for ticket in tickets] == [expected(one) for one in others]
    assert made.stats(bad).summary.steps == 0
    again = [request([*LONG, index], max_tokens=6) for index in range(6)]
    tickets = [made.submit(one) for one in again]
    texts, _ = drain(made)
    assert [texts[ticket] for ticket in tickets] == [expected(one) for one in again], "every row serves again"


def test_no_prefix_is_copied_from_a_row_whose_admission_failed(monkeypatch):
    """The target had read a part of it, the draft nothing: its cache held another sequence."""
    monkeypatch.setattr("paceline.decode.CHUNK", 4)
    made = scheduler("model", target=Breaking(tiny.target()[1], RuntimeError("poisoned"), poison=POISON), rows=2)
    for other in ([50] * 30, [51] * 30):
        made.submit(request(other, max_tokens=3))
    drain(made)
    wanted = request([*LONG, 12], max_tokens=24)
    made.submit(request([*LONG, POISON, 1], max_tokens=5))
    ticket = made.submit(wanted)
    made.advance()
    drain(made)
    alone = scheduler("model", rows=1)
    ticket_alone = alone.submit(wanted)
    drain(alone)
    assert made.stats(ticket).summary == alone.stats(ticket_alone).summary, "the draft has read what it should"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_admission_loses_no_request(error, at):
    """The first wave is read in call 1, the second, which copies from it, in call 2."""
    target = Breaking(tiny.target()[1], error(), at=at)
    made = scheduler("model", target=target, rows=3)
    wanted = [request(LONG, max_tokens=9), request([*LONG, 2, 3], max_tokens=7), request([5, 1], max_tokens=8)]
    tickets = [made.submit(one) for one in wanted]
    with pytest.raises(error):
        made.advance()
    assert [made.stats(ticket).summary.steps for ticket in tickets] == [0, 0, 0]
    texts, _ = drain(made)
    assert [texts[ticket] for ticket in tickets] == [expected(one) for one in wanted]


def test_an_interrupted_admission_leaves_its_rows_inactive():
    made = scheduler(target=Breaking(tiny.target()[1], KeyboardInterrupt(), at=1), rows=2)
    tickets = [made.submit(request([5, 1, index], max_tokens=8)) for index in range(2)]
    with pytest.raises(KeyboardInterrupt):
        made.advance()
    assert not bool(made.decoder.batch.active.any())
    for ticket in tickets:
        made.cancel(ticket)
    assert made.idle and made.advance() == []


@pytest.mark.parametrize("at", [2, 3, 6])
def test_a_step_that_fails_may_be_tried_again(at):
    made = scheduler("model", target=Breaking(tiny.target()[1], RuntimeError("busy"), at=at), rows=2)
    wanted = [request([5, 1], max_tokens=14), request([8, 8, 8], max_tokens=14)]
    tickets = [made.submit(one) for one in wanted]
    outputs, failures = [], 0
    while not made.idle:
        try:
            outputs += made.advance()
        except RuntimeError:
            failures += 1
    texts, _ = drain(made, outputs)
    assert failures == 1 and [texts[ticket] for ticket in tickets] == [expected(one) for one in wanted]


def test_a_failure_is_reported_even_if_the_step_after_it_fails_too():
    target = Breaking(tiny.target()[1], RuntimeError("no"), poison=POISON)
    made = scheduler(target=target, rows=2)
    good, bad = made.submit(request([5], max_tokens=3)), made.submit(request([POISON, 1], max_tokens=3))
    target.at = 3  # read together, then the poisoned one alone, then the step; the other has nothing to read
    outputs = []
    for _ in range(12):
        try:
            outputs += made.advance()
        except RuntimeError:
            target.at = None
    assert [output.ticket for output in outputs if output.error] == [bad]
    assert drain(made, outputs)[0][good] == expected(request([5], max_tokens=3))


def test_the_failure_of_a_cancelled_request_is_not_reported():
    target = Breaking(tiny.target()[1], RuntimeError("no"), poison=POISON, at=3)
    made = scheduler(target=target, rows=2)
    good, bad = made.submit(request([5], max_tokens=3)), made.submit(request([POISON, 1], max_tokens=3))
    with pytest.raises(RuntimeError):
        made.advance()
    made.cancel(bad)
    assert {output.ticket for output in made.advance()} == {good}


TORN = {
    "after extending": lambda decoder: (decoder.cache, "commit"),
    "after committing": lambda decoder: (decoder, "observe"),
    "after counting": lambda decoder: (decoder.stats, "record"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("drafter", ["none", "model"])
@pytest.mark.parametrize("case", [*TORN, "before reading"])
def test_requests_of_an_interrupted_step_end_with_an_error(drafter, case, order, monkeypatch):
    """Their newest tokens are lost, so they must not go on; waiting requests are served."""
    made = scheduler(drafter, rows=2)
    wanted = [request(LONG, max_tokens=12), request([8, 8], max_tokens=12), request([*LONG, 1], max_tokens=9)]
    tickets = [made.submit(one) for one in wanted]
    outputs = made.advance()
    with monkeypatch.context() as patch:
        place = (made.runner._reader, "post") if case == "before reading" else TORN[case](made.decoder)
        patch.setattr(*place, lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.advance()
    texts, outputs = drain(made, outputs)
    assert [output.ticket for output in outputs if output.error is not None] == tickets[:2]
    assert texts[tickets[2]] == expected(wanted[2])
    for ticket, one in zip(tickets[:2], wanted, strict=False):
        assert 0 < len(texts[ticket]) < 12 and texts[ticket] == expected(one)[: len(texts[ticket])]
    again = [made.submit(one) for one in wanted]
    texts, _ = drain(made)
    assert [texts[ticket] for ticket in again] == [expected(one) for one in wanted]


def test_outputs_say_what_the_step_did():
    made = scheduler("model", rows=1)
    ticket = made.submit(request(LONG, max_tokens=30))
    _, outputs = drain(made)
    assert all(output.num_accepted <= min(output.num_drafted, len(output.token_ids)) for output in outputs)
    assert {output.bonus for output in outputs} == {True, False}
    assert all(output.bonus == (output.num_accepted == output.num_drafted) for output in outputs)
    assert [output.finish for output in outputs] == [Finish.RUNNING] * (len(outputs) - 1) + [Finish.LENGTH]
    closing = made.stats(ticket)
    assert closing.summary.steps == len(outputs)
    assert sum(closing.summary.accepted) == sum(output.num_accepted for output in outputs)
    assert sum(closing.summary.drafted) == sum(output.num_drafted for output in outputs)
    assert closing.no_draft[REASONS[NoDraft.LIMIT]] == sum(output.num_drafted == 0 for output in outputs)


def test_times_are_of_the_request_and_within_its_total():
    made = scheduler("model", rows=1)
    tickets = [made.submit(request(LONG, max_tokens=12)) for _ in range(2)]
    drain(made)
    first, second = (made.stats(ticket).times for ticket in tickets)
    for times in (first, second):
        parts = times.draft + times.score + times.decide + times.rest
        assert 0 < min(times.draft, times.score, times.decide) and 0 <= times.rest and 0 < times.prefill
        assert times.queue + times.prefill + parts <= times.total
        assert times.queue + times.prefill < times.first_token <= times.total
    assert second.queue > first.total - first.queue - 0.01 and second.queue > first.queue


def test_the_watch_observes_running_rows_and_their_tokens(monkeypatch):
    made = scheduler("ngram", rows=4, watch=True)
    seen = []
    monkeypatch.setattr(
        made.decoder.plan, "observe", lambda result: seen.append((result.num_running, result.num_tokens))
    )
    for length in (2, 3, 3):
        made.submit(request([5], max_tokens=length))
    texts, _ = drain(made)
    assert [rows for rows, _ in seen][:2] == [3, 3] and len(seen) <= 3
    assert sum(tokens for _, tokens in seen) == sum(map(len, texts.values())) == 8


def test_a_draft_of_a_reused_row_is_as_good_as_in_a_fresh_one():
    """The draft's cache shares prefixes as the target's does."""
    draft = ModelDrafter(lm=tiny.target()[1])
    decoder = decoder_for(draft, "coupled", k=3, rows=1)
    made = scheduler_of(decoder)
    sequence = list(LONG)
    for turn in range(4):
        ticket = made.submit(request(sequence, max_tokens=8))
        texts, _ = drain(made)
        assert made.stats(ticket).summary.acceptance_rate == 1, "the draft is the target: it errs only if it is stale"
        sequence += [*texts[ticket], turn]


def test_logprobs_of_a_finished_request_are_no_longer_looked_up():
    made = scheduler()
    made.submit(Request(tokens=[5, 9], max_tokens=2, logprobs=3))
    made.submit(request([1], max_tokens=6))
    made.advance()
    assert made.decoder.batch.step_logprobs is not None
    made.advance()
    made.advance()
    assert made.decoder.batch.step_logprobs is None and not made.idle
