"""Many clients of a server: what finished is the offline engine's, and what is not is found."""

import asyncio

import pytest

from benchmarks.load import differences
from benchmarks.load_clients import Answered, ask_for, besiege
from benchmarks.load_report import growth_of, percentiles
from paceline.api import Engine
from tests.serve.listening import listening
from tests.serve.served import target


def test_what_clients_got_is_compared_with_the_offline_engine():
    with listening(batch_size=3) as server:
        answered = asyncio.run(besiege(server.url, num_clients=4, seconds=1.0))
    finished = [one for one in answered if one.texts is not None]
    assert len(finished) >= 3 and not [one.error for one in answered if one.error]
    assert any(one.first is not None and one.num_tokens for one in finished)
    plain = Engine(target(), drafter="none", batch_size=2)
    assert differences(answered, plain) == []
    first = finished[0]
    first.texts = [f"{text}!" for text in first.texts]
    (said,) = differences(finished[:1], plain)
    assert said.startswith(f"request {first.asked.number}: ")


def test_requests_are_the_same_in_every_run_and_of_all_kinds():
    asked = [ask_for(number) for number in range(300)]
    assert asked == [ask_for(number) for number in range(300)]
    options = {name for one in asked for name in one.options}
    assert {"n", "stop", "logprobs", "top_p", "repetition_penalty", "structured_outputs"} < options
    assert {one.extra["stream"] for one in asked} == {True, False}
    assert 20 < sum(one.leaves_after is not None for one in asked) < 80
    assert any("speculative_config" in one.extra for one in asked)


def test_growth_and_percentiles_are_those_of_the_samples():
    flat = growth_of([(float(second), 100.0 + second % 2) for second in range(100)])
    assert flat.low <= 0.5 <= flat.high + 0.5
    grown = growth_of([(float(second), 100.0 + second) for second in range(100)])
    assert grown.low > 40
    assert percentiles([0.001 * number for number in range(101)]) == pytest.approx({"p50": 50, "p99": 99})
    assert percentiles([]) == {} and Answered(asked=ask_for(0)).texts is None
