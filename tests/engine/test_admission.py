"""Chunked prefill between steps: a long prompt does not stall running rows and changes no output."""

import pytest

from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from paceline.models.scoring import Passage, score_passages
from tests import tiny
from tests.engine.test_scheduler import drain
from tests.engine.wrapped import Counted
from tests.harness import decoder_for, expected, request, tiny_drafter

LONG = [(7 * index + index // 5) % tiny.VOCAB for index in range(61)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("paceline.decode.CHUNK", 8)


def scheduler(drafter="model", *, rows=3, target=None, **options):
    target = target or tiny.target()[1]
    decoder = decoder_for(tiny_drafter(drafter, tiny.target()[1]), "coupled", target=target, k=3, rows=rows)
    return Scheduler(Runner(decoder), **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("drafter", ["none", "model", "early_exit", "prophet", "ngram"])
def test_running_rows_output_a_token_in_every_step_while_a_long_prompt_is_read(drafter):
    made = scheduler(drafter, prefill_tokens=8)
    wanted = [request([5, 9], max_tokens=30), request(LONG, max_tokens=9), request([3], max_tokens=20)]
    first, long, second = made.submit(wanted[0]), *[None] * 2
    outputs = made.advance()
    long, second = made.submit(wanted[1]), made.submit(wanted[2])
    before_long = 0
    while not any(output.ticket == long for output in outputs):
        step = made.advance()
        assert first in {output.ticket for output in step}, "the running row gets a token in every step"
        outputs += step
        before_long += 1
    assert before_long >= (len(LONG) - 1) // 8, "a chunk a step"
    texts, _ = drain(made, outputs)
    assert [texts[ticket] for ticket in (first, long, second)] == [expected(one) for one in wanted]


def test_where_nothing_runs_a_prompt_is_read_at_once():
    made = scheduler(prefill_tokens=8)
    made.submit(request(LONG, max_tokens=9))
    assert len(made.advance()) == 1


def test_a_step_reads_about_as_many_prompt_tokens_as_it_may():
    target = Counted(tiny.target()[1])
    made = scheduler("none", rows=3, target=target, prefill_tokens=16)
    made.submit(request([5, 9], max_tokens=30))
    made.advance()
    for _ in range(2):
        made.submit(request(LONG[::-1], max_tokens=5))
    target.take()
    seen = []
    while not made.idle:
        made.advance()
        seen.append(target.take())
    assert max(seen) <= 16 + 3, "and one token of every row that runs"


def test_a_request_that_is_cancelled_while_its_prompt_is_read_leaves_no_trace():
    made = scheduler(prefill_tokens=8)
    first = made.submit(request([5, 9], max_tokens=30))
    outputs = made.advance()
    long = made.submit(request(LONG, max_tokens=9))
    outputs += made.advance()
    made.cancel(long)
    assert made.stats(long).summary.steps == 0
    third = made.submit(request(LONG[:40], max_tokens=9))
    texts, outputs = drain(made, outputs)
    assert long not in texts
    assert texts[first] == expected(request([5, 9], max_tokens=30))
    assert texts[third] == expected(request(LONG[:40], max_tokens=9))


def test_prompt_log_probabilities_come_with_the_reading_of_the_prompt():
    """Equal to those of a forward of its own, also where another row holds the same beginning."""
    target = Counted(tiny.target()[1])
    made = scheduler("none", target=target, prefill_tokens=8)
    made.submit(request(LONG, max_tokens=20))
    made.advance()
    target.take()
    asked = [LONG, LONG[:9], [4]]
    tickets = []
    for prompt in asked:
        one = request(prompt, max_tokens=3)
        object.__setattr__(one, "prompt_logprobs", 2)
        tickets.append(made.submit(one))
    drain(made)
    whole = score_passages(tiny.target()[1], [Passage(tokens=tuple(prompt), first=1) for prompt in asked[:2]], top=2)
    for ticket, score in zip(tickets, whole, strict=False):
        found = made.prompt_scores(ticket)
        assert found.logprobs == pytest.approx(score.logprobs, rel=1e-9)
        assert [[token for token, _ in place] for place in found.top] == [[t for t, _ in place] for place in score.top]
    assert made.prompt_scores(tickets[2]).logprobs == ()
    assert target.take() < 2 * sum(map(len, asked)) + 60, "no prompt is read twice"
