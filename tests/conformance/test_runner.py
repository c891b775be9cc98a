"""Requests over a few rows: outputs are the reference's however results are read, steps taken and prompts chunked."""

from functools import partial

import pytest
import torch

from paceline import decode
from paceline.core.host import integers
from paceline.core.request import Request
from paceline.drafters.ngram import NgramDrafter
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from tests import tiny
from tests.engine.recorded import RecordedGraphs
from tests.engine.wrapped import Breaking
from tests.harness import decoder_for, expected, request, tiny_drafter

POISON = 59
LONG = [7, 3, 5, 60, 2, 2, 9, 41, 8, 8, 13, 30, 1, 0, 5, 5, 17, 22, 6, 4]
READERS = {"sync": SyncReader, "async": AsyncReader}


def scheduler(drafter, *, target=None, reader=SyncReader, graphs=None, rows=2, **options):
    decoder = decoder_for(drafter, "coupled", target=target, rows=rows)
    return Scheduler(Runner(decoder, reader=reader(decoder), graphs=graphs), **options)


def serve(made, requests):
    """The sequence of every request as the runner keeps it, what its outputs add up to, and all outputs."""
    sequences = [list(one.tokens) for one in requests]
    tickets = [made.submit(one, sequence=sequence) for one, sequence in zip(requests, sequences, strict=True)]
    outputs = []
    while not made.idle:
        outputs += made.advance()
        assert len(outputs) < 500
    gained = [[token for one in outputs if one.ticket == ticket for token in one.token_ids] for ticket in tickets]
    return sequences, gained, outputs


def ragged(prompts, **options):
    return [request(prompt, max_tokens=3 + 5 * (i % 3), **options) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("drafter", ["none", "model"])
def test_sequences_equal_the_reference_while_rows_are_reused(drafter, reader, recorded):
    requests = ragged([LONG[:5], [9], [8] * 6, LONG, [1, 2], LONG[3:9], [60, 0]])
    graphs = RecordedGraphs() if recorded else None
    made = scheduler(tiny_drafter(drafter, tiny.target()[1]), reader=READERS[reader], graphs=graphs)
    sequences, gained, _ = serve(made, requests)
    assert gained == [expected(one) for one in requests]
    assert sequences == [[*one.tokens, *expected(one)] for one in requests]


@pytest.mark.parametrize("reader", READERS)
def test_a_queued_step_of_a_cancelled_request_does_not_extend_its_successor(reader):
    first, second = request(LONG[:5], max_tokens=40), request([9], max_tokens=12)
    made = scheduler(tiny_drafter("model", tiny.target()[1]), reader=READERS[reader])
    made.submit(request(LONG, max_tokens=30))
    ticket, sequence = made.submit(first), list(second.tokens)
    made.advance()
    made.cancel(ticket)  # on the device, a step that it takes part in may be queued
    made.submit(second, sequence=sequence)
    while not made.idle:
        made.advance()
    assert sequence == [*second.tokens, *expected(second)]


@pytest.mark.parametrize("drafter", ["none", "model", "early_exit", "prophet"])
def test_chunked_prompts_give_the_outputs_of_whole_ones(drafter, monkeypatch):
    monkeypatch.setattr(decode, "CHUNK", 4)
    requests = ragged([[9, 2], LONG, LONG[:13], [*LONG[5:], *LONG[:5]]])
    made = scheduler(tiny_drafter(drafter, tiny.target()[1]), prefill_tokens=4)
    assert serve(made, requests)[1] == [expected(one) for one in requests]


@pytest.mark.parametrize("size", [1, 4, 7, 64])
def test_prompt_logprobs_do_not_depend_on_chunks(size, monkeypatch):
    monkeypatch.setattr(decode, "chunk_size", lambda rows, vocab_size: size)
    prompts = [LONG, LONG[4:13], [5]]
    requests = [Request(tokens=prompt, max_tokens=2, prompt_logprobs=1) for prompt in prompts]
    made = scheduler(tiny_drafter("none", tiny.target()[1]), rows=3)
    tickets = [made.submit(one) for one in requests]
    while not made.idle:
        made.advance()
    for prompt, ticket in zip(prompts, tickets, strict=True):
        with torch.no_grad():
            values = tiny.target()[0](torch.tensor([prompt])).logits[0].log_softmax(-1)
        found = made.prompt_scores(ticket)
        assert found.logprobs == pytest.approx([float(values[at, token]) for at, token in enumerate(prompt[1:])])
        assert [top[0][0] for top in found.top] == values[:-1].argmax(-1).tolist()


def test_a_row_takes_no_part_in_steps_until_its_prompt_is_read(monkeypatch):
    monkeypatch.setattr(decode, "CHUNK", 4)
    first, second = request([5, 9, 2], max_tokens=12), request(LONG, max_tokens=12)
    decoder = decoder_for(tiny_drafter("none", tiny.target()[1]), "coupled", rows=2)
    runner = Runner(decoder)
    runner.sequences[0] = list(first.tokens)
    decoder.admit([first], [0])
    reading = runner.begin([second], [1], [None])
    while not reading.done:
        result = runner.take(runner.launch(), [0])
        assert result.tokens[1] == [] and integers(decoder.batch.length) == [len(runner.sequences[0]), len(LONG)]
        runner.read(reading)
    runner.sequences[1] = list(LONG)
    while result.num_running:
        result = runner.take(runner.launch(), [0, 1])
    assert [runner.sequences[row] for row in (0, 1)] == [[*one.tokens, *expected(one)] for one in (first, second)]


def test_a_row_whose_admission_failed_does_not_serve_its_former_sequence(monkeypatch):
    monkeypatch.setattr(decode, "CHUNK", 4)
    target = Breaking(tiny.target()[1], RuntimeError("poisoned"), poison=POISON)
    made = scheduler(tiny_drafter("none", tiny.target()[1]), target=target, rows=1)
    again, broken = request(LONG, max_tokens=8), request([*[50] * 12, POISON, 1], max_tokens=2)
    serve(made, [again])
    assert [one.error is not None for one in serve(made, [broken])[2]] == [True]
    assert serve(made, [again])[1] == [expected(again)]


def test_recordings_with_a_failed_drafter_are_not_replayed(monkeypatch):
    model, target = tiny.looping_target()
    graphs = RecordedGraphs()
    made = scheduler(NgramDrafter(), target=target, graphs=graphs, rows=1)
    repeating = partial(request, [4, 4, 4], max_tokens=24)
    assert any(one.num_drafted for one in serve(made, [repeating()])[2]) and graphs.num_replayed

    def fail(*_):
        raise RuntimeError("no more drafts")

    monkeypatch.setattr(NgramDrafter, "propose", fail)
    serve(made, [repeating(temperature=1.0)])  # steps of another kind, which are called
    assert made.runner.drafter_error is not None
    _, gained, outputs = serve(made, [repeating()])
    assert gained == [expected(repeating(), model)] and not any(one.num_drafted for one in outputs)
