"""Drafters on the host: fed by the runner with every sequence, and recorded like any other."""

import pytest
import torch

from paceline.core.step import Finish
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.engine.readers import AsyncReader
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from tests.engine.recorded import RecordedGraphs
from tests.engine.test_scheduler import drain
from tests.harness import decoder_for, expected, request

PROMPTS = ([7, 3, 5, 60, 2, 2, 9], [8, 8], [41, 8, 13])


class Knowing(HostDrafter):
    """Knows what the target will say, and notes what it is asked."""

    origins = ("knowing",)

    def __init__(self, wanted):
        self.known = {tuple(one.tokens): [*one.tokens, *expected(one)] for one in wanted}
        self.asked = []

    def propose(self, sequences, num_draft_tokens):
        self.asked.append({row: list(tokens) for row, tokens in sequences.items()})
        drafts = {}
        for row, tokens in sequences.items():
            whole = next(known for known in self.known.values() if known[: len(tokens)] == list(tokens))
            drafts[row] = whole[len(tokens) :]
        return drafts


def served(drafter, wanted, *, rows=2, k=3, reader=None, graphs=None):
    decoder = decoder_for(HostDrafting(drafter), "coupled", rows=rows, k=k)
    runner = Runner(decoder, reader=None if reader is None else reader(decoder), graphs=graphs)
    made = Scheduler(runner)
    tickets = [made.submit(one) for one in wanted]
    texts, outputs = drain(made)
    return runner, [texts[ticket] for ticket in tickets], outputs


@pytest.mark.parametrize("reader", [None, AsyncReader])
def test_drafts_are_of_the_newest_sequences_whatever_the_order_of_reading(reader):
    """A whole draft is accepted in every step but the last: a stale sequence would shift it."""
    wanted = [request(prompt, max_tokens=21) for prompt in PROMPTS]
    drafter = Knowing(wanted)
    _, texts, outputs = served(drafter, wanted, reader=reader)
    assert texts == [expected(one) for one in wanted]
    assert all(one.num_accepted == one.num_drafted == 3 for one in outputs if one.finish is Finish.RUNNING)
    assert drafter.asked[0] == {0: PROMPTS[0], 1: PROMPTS[1]}, "running rows, prompts included"


def test_drafts_written_elsewhere_arrive_in_one_copy(monkeypatch):
    """As on a GPU, where the buffers are not the host's."""

    def apart(self, context):
        start(self, context)
        self._write_to(torch.full_like(self._buffer, 7))

    start = HostDrafting.start
    monkeypatch.setattr(HostDrafting, "start", apart)
    wanted = [request(prompt, max_tokens=21) for prompt in PROMPTS]
    _, texts, outputs = served(Knowing(wanted), wanted)
    assert texts == [expected(one) for one in wanted]
    assert all(one.num_accepted == one.num_drafted == 3 for one in outputs if one.finish is Finish.RUNNING)


def test_steps_of_a_host_drafter_are_recorded():
    wanted = [request(prompt, max_tokens=21) for prompt in PROMPTS]
    runner, texts, outputs = served(Knowing(wanted), wanted, graphs=RecordedGraphs())
    assert texts == [expected(one) for one in wanted]
    assert runner.num_replayed > runner.num_called > 0
    assert sum(one.num_accepted for one in outputs) > sum(map(len, texts)) / 2


class Failing(HostDrafter):
    def propose(self, sequences, num_draft_tokens):
        raise RuntimeError("no store")


class Wild(HostDrafter):
    """Proposes a token that the target does not have."""

    def propose(self, sequences, num_draft_tokens):
        return {row: [10**6] for row in sequences}


@pytest.mark.parametrize(("drafter", "message"), [(Failing(), "no store"), (Wild(), "leave the target's vocabulary")])
def test_a_host_drafter_that_fails_costs_its_drafts_alone(drafter, message):
    wanted = [request(prompt, max_tokens=9) for prompt in PROMPTS]
    runner, texts, _ = served(drafter, wanted)
    assert texts == [expected(one) for one in wanted]
    assert message in runner.drafter_error


def test_caps_and_limits_of_rows_hold():
    wanted = [request(PROMPTS[0], max_tokens=9, num_draft_tokens=1), request(PROMPTS[1], max_tokens=2)]
    _, texts, outputs = served(Knowing(wanted), wanted)
    assert texts == [expected(one) for one in wanted]
    assert max(one.num_drafted for one in outputs) == 1
