"""Steps that are read while the next one runs give the results of steps that are read at once."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from paceline.core.request import Request
from paceline.core.stats import Summary
from paceline.core.step import Finish
from paceline.core.tree import NoDraft
from paceline.engine import watch
from paceline.engine.graphs import Recorder
from paceline.engine.outputs import REASONS
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.engine.runner import runner_for
from tests import tiny
from tests.engine.recorded import RecordedGraphs
from tests.engine.test_graphs import SAMPLED, ragged, texts
from tests.engine.test_scheduler import LONG, scheduler
from tests.engine.wrapped import Breaking
from tests.harness import expected, request


def serve(made, requests, *, stop=None):
    """Outputs and statistics by ticket; requests are cancelled once they have the token ``stop``."""
    tickets = [made.submit(one) for one in requests]
    outputs = {ticket: [] for ticket in tickets}
    while not made.idle:
        for output in made.advance():
            outputs[output.ticket].append(output)
            if stop in (token for one in outputs[output.ticket] for token in one.token_ids):
                made.cancel(output.ticket)
    closings = [made.stats(ticket) for ticket in tickets]
    return list(outputs.values()), [(one.summary, one.no_draft) for one in closings]


def both(*args, **options):
    return (scheduler(*args, order=order, **options) for order in ("at once", "overlapped"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("rows", [1, 3])
def test_outputs_finish_reasons_and_statistics_are_the_same(drafter, rows, sampling):
    """Also of requests that the host ends, when the device has already taken another step."""
    stopping, taken_back = (request(prompt, max_tokens=20, seed=9, **sampling) for prompt in (LONG[:3], [9, 9]))
    stopping = replace(stopping, stop_tokens=[expected(stopping)[5]])
    stop = next(token for token in expected(taken_back) if token not in expected(stopping))
    wanted = [*ragged(6, **sampling), stopping, taken_back, *ragged(2, **sampling)]
    once, overlapped = both(drafter, rows=rows)
    found = serve(once, wanted, stop=stop)
    assert serve(overlapped, wanted, stop=stop) == found
    assert {outputs[-1].finish for outputs in found[0]} == set(Finish), "stop tokens, limits, and the host"


def test_log_probabilities_are_those_of_their_step():
    wanted = [Request(tokens=LONG[: 2 + n], max_tokens=7 + n, logprobs=n or None) for n in range(5)]
    once, overlapped = both("ngram", rows=2)
    found = serve(once, wanted)
    assert serve(overlapped, wanted) == found
    assert all(any(output.logprobs for output in outputs) for outputs in found[0][1:])


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_with_the_watch_outputs_are_the_same_and_plain_steps_are_reported(drafter, monkeypatch):
    monkeypatch.setattr(watch, "PERIOD", 7)
    made = scheduler(drafter, rows=2, watch=True, order="overlapped")
    plan, observe, seen = made.decoder.plan, made.decoder.plan.observe, []

    def noted(result):
        seen.append(result.plan.turn)
        observe(result)

    monkeypatch.setattr(plan, "observe", noted)
    wanted = [request(LONG[: 2 + index], max_tokens=40) for index in range(4)]
    found, closings = serve(made, wanted)
    assert [[token for output in outputs for token in output.token_ids] for outputs in found] == [
        expected(one) for one in wanted
    ]
    measured = [no_draft.get(REASONS[NoDraft.MEASURED], 0) for _, no_draft in closings]
    assert sum(measured) >= 4 and not any(REASONS[NoDraft.OFF] in no_draft for _, no_draft in closings)
    first = [watch.PERIOD + count for count in range(watch.FIRST)]
    assert seen[: watch.FIRST + 9] == [*first, *range(7), 0, 1], "each step once, in order"


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_replayed_steps_may_be_read_late_too(drafter):
    once, overlapped = both(drafter, rows=3)
    runner = overlapped.runner
    runner.recorder = Recorder(decoder=runner.decoder, graphs=RecordedGraphs())
    assert serve(overlapped, ragged(6)) == serve(once, ragged(6))
    assert runner.num_replayed > runner.num_called > 0


def log_of(made):
    """Which step is queued and which is read, in their order, as it happens."""
    log, numbers, launch = [], count(1), made.runner.launch

    def launched():
        number, pending = next(numbers), launch()
        log.append(("queue", number))
        return SimpleNamespace(
            result=lambda: log.append(("read", number)) or pending.result(),
            summary=pending.summary,
            stages=pending.stages,
        )

    made.runner.launch = launched
    return log


def test_a_step_is_queued_before_the_one_in_front_of_it_is_read():
    once, overlapped = both(rows=1)
    logs = [log_of(made) for made in (once, overlapped)]
    for made in (once, overlapped):
        serve(made, [request([5], max_tokens=3)])
    assert logs[0] == [("queue", 1), ("read", 1), ("queue", 2), ("read", 2), ("queue", 3), ("read", 3)]
    assert logs[1] == [("queue", 1), ("queue", 2), ("read", 1), ("queue", 3), ("read", 2), ("read", 3)], (
        "no step is queued beyond the last possible one"
    )


def test_a_row_is_given_to_another_while_its_last_step_is_still_under_way():
    """That step is neither reported nor counted."""
    once, overlapped = both("model", rows=1)
    wanted = [request(LONG, max_tokens=30), request([4, 4], max_tokens=9)]
    closings = []
    for made in (once, overlapped):
        first, second = (made.submit(one) for one in wanted)
        [output] = made.advance()
        made.cancel(first)
        rest = []
        while not made.idle:
            rest += made.advance()
        assert {output.ticket for output in rest} == {second} and texts(rest) == [expected(wanted[1])]
        closings.append([made.stats(ticket).summary for ticket in (first, second)])
        assert closings[-1][0].steps == 1 and closings[-1][0].emitted == len(output.token_ids)
    assert closings[0] == closings[1]


def test_an_interruption_while_waiting_for_a_report_loses_nothing(monkeypatch):
    _, made = both("model", rows=2)
    wanted = [request(LONG, max_tokens=12), request([8, 8], max_tokens=14), request([5], max_tokens=3)]
    for one in wanted:
        made.submit(one)
    outputs = made.advance()
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("paceline.engine.readers.integers", lambda vector: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                made.advance()
    while not made.idle:
        outputs += made.advance()
    assert texts(outputs) == [expected(one) for one in wanted]


def test_what_was_done_before_a_step_failed_is_reported_before_the_failure():
    broken = RuntimeError("busy")
    target = Breaking(tiny.target()[1], broken)
    made = scheduler("model", target=target, rows=2, order="overlapped")
    wanted = [request([5, 1], max_tokens=14), request([8, 8, 8], max_tokens=14)]
    for one in wanted:
        made.submit(one)
    outputs = made.advance()
    target.at = target.calls + 1
    in_flight = made.advance()
    assert len(in_flight) == 2
    with pytest.raises(RuntimeError, match="busy"):
        made.advance()
    outputs += in_flight
    while not made.idle:
        outputs += made.advance()
    assert texts(outputs) == [expected(one) for one in wanted]


def test_a_step_that_fails_with_none_in_front_fails_at_once():
    target = Breaking(tiny.target()[1], RuntimeError("busy"), at=2)
    made = scheduler(target=target, rows=1, order="overlapped")
    made.submit(request([5, 1], max_tokens=14))
    with pytest.raises(RuntimeError, match="busy"):
        made.advance()


def test_a_failed_step_of_finished_requests_is_not_reported():
    """The step was queued ahead, for requests that have ended since."""
    made = scheduler(rows=1, order="overlapped")
    ticket = made.submit(request([5, 1], max_tokens=14))
    made.advance()
    made.decoder.score = lambda tree: 1 / 0
    made.advance()
    made.cancel(ticket)
    assert made.idle and made.advance() == []


def test_counters_of_a_step_are_kept_as_they_were():
    _, made = both("model", rows=2)
    for one in ragged(2):
        made.submit(one)
    while not made.idle:
        made.advance()
        stats = made.decoder.stats
        rows = stats.table().tolist()
        assert [Summary.of(row) for row in rows] == [stats.summary([row]) for row in range(2)]
        assert {len(row) for row in rows} == {stats.width}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_on_its_way_is_not_changed_by_the_step_after_it(device):
    _, made = both("none", rows=2)
    for one in ragged(2):
        made.submit(one)
    made.advance()
    runner = made.runner
    first, second = made._queued[0][0], runner.launch()
    tokens = [list(row) for row in first.result().tokens]
    assert second.result().tokens != tokens or not any(tokens)
    assert first.result().tokens == tokens


def test_a_cpu_reads_every_step_at_once():
    _, made = both()
    assert isinstance(runner_for(made.decoder)._reader, SyncReader) and isinstance(made.runner._reader, AsyncReader)
