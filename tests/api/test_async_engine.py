"""An engine for asyncio: the same tokens, rows that are freed at once, order, limits, deadlines, failures, the end."""

import asyncio
import gc
import threading
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.api import AsyncEngine, SamplingParams
from paceline.api.async_streams import DeadlineError, DrainingError, EngineError, OverloadedError
from paceline.api.fair_queue import FairQueue
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.engine.runner import ops_for
from tests.api.engines import LONG, engine, naive, read_by

PROMPTS = [LONG[:length] for length in (3, 9, 1, 20, 5, 12)]


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """The CPU kernel, built before anything is waited for: that takes longer than a check may."""
    return ops_for(torch.device("cpu"))


def running(check):
    """``check`` in an event loop of its own, sixty seconds at most."""

    async def bounded():
        await asyncio.wait_for(check, 60)

    asyncio.run(bounded())


def params(index, **options):
    given = {"temperature": 0.8 if index % 2 else 0.0, "seed": index, "max_tokens": 9 + index}
    return SamplingParams(**{**given, **options})


def slow(served, seconds=0.02):
    """Let every step take that long at least, so that long outputs are not done before something else happens."""
    advance, steps = served.engine.advance, []
    served.engine.advance = lambda: (steps.append(None), threading.Event().wait(seconds), advance())
    return steps


def is_clean(served):
    """Whether nothing is left of any request: no row, no statistics, no stream."""
    scheduler = served.engine.scheduler
    empty = not (scheduler._running or scheduler._waiting or scheduler._done or served.engine._open)
    return empty and len(scheduler._free) == served.engine.decoder.rows and not served._streams


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
@pytest.mark.parametrize("drafter", ["none", "model", "ngram"])
def test_tasks_get_the_tokens_of_plain_decoding(drafter, reader, monkeypatch):
    read_by(monkeypatch, reader)

    async def one(served, index):
        await asyncio.sleep(0.01 * (index % 3))
        found, parts = [], 0
        async with await served.submit(PROMPTS[index % 6], params(index)) as stream:
            async for pieces in stream:
                assert isinstance(pieces, tuple) and pieces
                found += [piece.token for piece in pieces]
                parts += 1
            (result,) = await stream.results()
        assert tuple(found) == result.token_ids and found == naive(PROMPTS[index % 6], params(index), seed=index)
        return parts, result

    async def check():
        async with AsyncEngine(engine(drafter, batch_size=3)) as served:
            outcomes = await asyncio.gather(*(one(served, index) for index in range(18)))
            assert served.num_waiting == served.num_running == served._pending == served._pending_tokens == 0
        if drafter == "model":
            assert sum(sum(result.stats.accepted) for _, result in outcomes) > 0
            assert any(parts < len(result.token_ids) for parts, result in outcomes), "pieces of a step come together"
        gc.collect()
        assert is_clean(served)

    running(check())


def test_several_prompts_and_samples_are_one_submission():
    async def check():
        async with AsyncEngine(engine(batch_size=2)) as served:
            results = await served.generate(PROMPTS[:2], temperature=1.0, seed=3, n=2, max_tokens=6)
        assert [(one.index, one.sample) for one in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        alone = engine(batch_size=2).generate(PROMPTS[:2], temperature=1.0, seed=3, n=2, max_tokens=6)
        assert [one.token_ids for one in results] == [one.token_ids for one in alone]

    running(check())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["cancel", "leave", "task", "forgotten"])
def test_a_client_that_leaves_frees_its_row_within_a_step(how):
    async def read(served):
        async with await served.submit(PROMPTS[0], max_tokens=80) as stream:
            async for _ in stream:
                if how != "task":
                    return stream

    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            steps = slow(served, 0.005)
            if how == "task":
                task = asyncio.create_task(read(served))
                await asyncio.sleep(0.05)
                task.cancel()
            elif how == "leave":
                await read(served)
            else:
                stream = await served.submit(PROMPTS[0], max_tokens=80)
                await anext(stream)
                if how == "cancel":
                    stream.cancel()
                    (result,) = await stream.results()
                    assert result.finish_reason == "cancelled" and 0 < len(result.token_ids) < 80
                del stream
                gc.collect()
            (result,) = await served.generate(PROMPTS[1], params(0))
            assert list(result.token_ids) == naive(PROMPTS[1], params(0), seed=0)
            assert len(steps) < 60, "the eighty tokens of the first were not all made"
        gc.collect()
        assert is_clean(served)

    running(check())


def test_what_is_cancelled_before_it_began_has_an_empty_result():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            slow(served)
            first = await served.submit(PROMPTS[0], max_tokens=80)
            second = await served.submit(PROMPTS[1], max_tokens=4)
            second.cancel()
            (result,) = await second.results()
            assert result.finish_reason == "cancelled" and result.token_ids == ()
            first.cancel()

    running(check())


def test_smaller_priorities_come_first_and_clients_take_turns():
    order = []

    async def one(served, name, **options):
        await served.generate(PROMPTS[0], max_tokens=4, **options)
        order.append(name)

    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            slow(served)
            blocker = await served.submit(PROMPTS[0], max_tokens=80)
            tasks = []
            for name, options in (
                *((f"a{number}", {"client": "a"}) for number in range(4)),
                *((f"b{number}", {"client": "b"}) for number in range(2)),
                ("urgent", {"client": "a", "priority": -1}),
            ):
                tasks.append(asyncio.create_task(one(served, name, **options)))
                while served.num_waiting < len(tasks):
                    await asyncio.sleep(0.005)
            assert served.num_waiting == 7
            blocker.cancel()
            await asyncio.gather(*tasks)

    running(check())
    assert order == ["urgent", "a0", "b0", "a1", "b1", "a2", "a3"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=40))
def test_no_client_that_waits_is_served_less_than_another_by_more_than_one_entry_each(asked):
    entries, served = FairQueue(), {}
    for client, tokens in asked:
        entries.push((client, tokens), num_tokens=tokens, client=client)
    assert entries.num_tokens == sum(tokens for _, tokens in asked) and len(entries) == len(asked)
    left = {client: [tokens for name, tokens in asked if name == client] for client in "abc"}
    while len(entries):
        client, tokens = entries.pop()
        assert left[client].pop(0) == tokens, "those of a client in their order"
        served[client] = served.get(client, 0) + tokens
        for other in (name for name in left if left[name]):
            assert served[client] - served.get(other, 0) <= tokens + max(size for _, size in asked)
    assert entries.num_tokens == 0


def test_what_comes_later_is_owed_nothing():
    entries = FairQueue()
    for name in ("a0", "a1", "a2"):
        entries.push(name, num_tokens=10, client="a")
    assert entries.pop() == "a0"
    entries.push("b0", num_tokens=10, client="b")
    entries.push("b1", num_tokens=10, client="b")
    assert entries.remove("b1") and not entries.remove("b1")
    assert [entries.pop() for _ in range(3)] == ["b0", "a1", "a2"] and len(entries) == entries.num_tokens == 0


def test_too_many_are_refused_before_anything_is_queued():
    async def check():
        async with AsyncEngine(engine(batch_size=1), max_waiting=2, max_waiting_tokens=200) as served:
            slow(served)
            first = await served.submit(PROMPTS[0], max_tokens=80)
            await anext(first)
            waiting = await served.submit(PROMPTS[0], max_tokens=80)
            with pytest.raises(OverloadedError, match=r"83 tokens wait, .* these 140 .* 200 \(max_waiting_tokens\)"):
                await served.submit([PROMPTS[3], PROMPTS[3]], max_tokens=50)
            other = await served.submit(PROMPTS[0], max_tokens=8)
            with pytest.raises(OverloadedError, match=r"2 requests wait, and at most 2 may \(max_waiting\)"):
                await served.submit(PROMPTS[0], max_tokens=1)
            for stream in (first, waiting, other):
                stream.cancel()
                await stream.results()
            assert len((await served.generate(PROMPTS[0], max_tokens=3))[0].token_ids) == 3

    running(check())


def test_bad_requests_are_refused_and_cost_nothing():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            with pytest.raises(ValueError, match="prompt 0: prompt of 3 tokens and max_tokens=500 exceed"):
                await served.submit(PROMPTS[0], max_tokens=500)
            with pytest.raises(ValueError, match="timeout=0: give a positive number of seconds"):
                await served.submit(PROMPTS[0], timeout=0)
            with pytest.raises(TypeError, match="max_new_token"):
                await served.submit(PROMPTS[0], max_new_token=3)
            assert served._pending == served._pending_tokens == 0 and not served._streams

    running(check())
    with pytest.raises(ValueError, match="max_waiting=0: give"):
        AsyncEngine(engine(), max_waiting=0)


def test_requests_end_at_their_deadline_running_or_waiting():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            slow(served)
            first = await served.submit(PROMPTS[0], max_tokens=80, timeout=0.3)
            second = await served.submit(PROMPTS[1], max_tokens=80, timeout=0.2)
            third = await served.submit(PROMPTS[1], params(0))
            seen = []
            with pytest.raises(DeadlineError, match=r"took longer than its 0\.3 s \(timeout\)") as caught:
                async for pieces in first:
                    seen += [piece.token for piece in pieces]
            assert tuple(seen) == caught.value.results[0].token_ids and 0 < len(seen) < 80
            with pytest.raises(DeadlineError, match=r"0\.2 s") as caught:
                await second.results()
            assert caught.value.results[0].token_ids == ()
            (result,) = await third.results()
            assert list(result.token_ids) == naive(PROMPTS[1], params(0), seed=0)

    running(check())


def test_a_step_that_fails_ends_its_requests_and_no_other():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            advance, calls = served.engine.advance, []

            def failing():
                calls.append(None)
                if len(calls) == 3:
                    raise RuntimeError("no memory")
                advance()

            served.engine.advance = failing
            first, second = [await served.submit(PROMPTS[0], params(0)) for _ in range(2)]
            with pytest.raises(EngineError, match="a step failed: no memory"):
                await first.results()
            assert list((await second.results())[0].token_ids) == naive(PROMPTS[0], params(0), seed=0)
            assert served.alive

    running(check())


def test_a_thread_that_ends_says_so_to_all(monkeypatch):
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            slow(served)
            first = await served.submit(PROMPTS[0], max_tokens=80)
            await anext(first)
            second = await served.submit(PROMPTS[0], max_tokens=4)
            monkeypatch.setattr(served, "_expire", partial(int, "x"))
            for stream in (first, second):
                with pytest.raises(EngineError, match="the engine has ended by an error: invalid literal"):
                    await stream.results()
            assert not served.alive
            with pytest.raises(EngineError, match="the engine has ended"):
                await served.submit(PROMPTS[0])

    running(check())


def test_what_reaches_the_thread_too_late_ends_all_the_same():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            served._orders.put(served._stop)
            try:
                (result,) = await (await served.submit(PROMPTS[0], max_tokens=4)).results()
                assert result.finish_reason == "cancelled"
            except EngineError as error:
                assert "has ended" in str(error)

    running(check())


def test_draining_finishes_what_there_is_and_closing_ends_it():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            streams = [await served.submit(PROMPTS[0], params(index)) for index in range(3)]
            assert await served.drain()
            for index, stream in enumerate(streams):
                assert list((await stream.results())[0].token_ids) == naive(PROMPTS[0], params(index), seed=index)
            with pytest.raises(DrainingError, match="takes no more requests"):
                await served.submit(PROMPTS[0])
        async with AsyncEngine(engine(batch_size=1)) as served:
            slow(served)
            left = await served.submit(PROMPTS[0], max_tokens=80)
            await anext(left)
            assert not await served.drain(timeout=0.0)
        assert (await left.results())[0].finish_reason == "cancelled" and not served.alive
        with pytest.raises(DrainingError):
            await served.submit(PROMPTS[0])
        gc.collect()
        assert is_clean(served)

    running(check())
    assert not [thread for thread in threading.enumerate() if thread.name == "paceline engine"]


def test_an_engine_that_was_not_entered_takes_nothing():
    async def check():
        with pytest.raises(EngineError, match="enter the AsyncEngine with `async with`"):
            await AsyncEngine(engine()).submit(PROMPTS[0])

    running(check())


def test_a_slow_reader_gets_pieces_of_several_steps_together():
    async def check():
        async with AsyncEngine(engine(batch_size=1)) as served:
            stream = await served.submit(PROMPTS[0], params(0))
            await served.drain()
            assert [piece.token for piece in await anext(stream)] == naive(PROMPTS[0], params(0), seed=0)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    running(check())
