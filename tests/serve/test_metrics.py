"""``/metrics``: counts that agree with each other and with the results; settings of a request show in them."""

import asyncio
import threading

from prometheus_client.parser import text_string_to_metric_families

from paceline.api.async_engine import AsyncEngine
from paceline.core.step import PhaseSeconds
from paceline.engine.timing import HostTimer
from paceline.serve.counters import Counters, Distribution
from paceline.serve.metrics import Metrics
from tests.api.checkpoints import pair
from tests.serve.served import PROMPT, engine, events, running, serving

DRAFTS = "vllm:spec_decode_num_"


async def scraped(client):
    """Every sample by its name and the labels beside the model and the engine."""
    response = await client.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    return samples(response.text)


def samples(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny" and labels.pop("engine") == "0"
            found[(sample.name, *labels.values())] = sample.value
    return found


def drafts(found):
    """Drafts, their tokens, the accepted ones, and these by position."""
    by_position = {
        int(key[1]): count for key, count in found.items() if key[0] == f"{DRAFTS}accepted_tokens_per_pos_total"
    }
    counts = [found[(f"{DRAFTS}{name}_total",)] for name in ("drafts", "draft_tokens", "accepted_tokens")]
    return *counts, [by_position[at] for at in sorted(by_position)]


def test_counts_agree_with_each_other_and_with_what_each_answer_says():
    async def check():
        async with serving(metrics=True) as client:
            bodies = [
                {"prompt": PROMPT, "max_tokens": 30, "ignore_eos": True, "temperature": 0},
                {"prompt": [5, 6, 7], "max_tokens": 9, "seed": 3},
                {"prompt": "x = 1", "max_tokens": 40, "stop": ["e"], "seed": 4},
            ]
            answers = [(await client.post("/v1/completions", json=body)).json() for body in bodies]
            whole = await client.post(
                "/v1/completions", json={"prompt": [1, 2], "n": 2, "max_tokens": 5, "ignore_eos": True}
            )
            answers.append(whole.json())
            found = await scraped(client)
            said = [one["metrics"]["speculative_decoding"] for one in answers if one["metrics"]]
            num_drafts, drafted, accepted, by_position = drafts(found)
            assert 0 < accepted < drafted and drafted <= 3 * num_drafts
            assert sum(by_position) == accepted and by_position == sorted(by_position, reverse=True)
            assert by_position[0] <= num_drafts
            before = await scraped(client)
            again = (await client.post("/v1/completions", json=bodies[0])).json()
            after = drafts(await scraped(client))
            one = again["metrics"]["speculative_decoding"]
            assert one["num_draft_tokens"] == after[1] - drafts(before)[1] > 0
            assert again["metrics"]["mean_itl_ms"] > 0 and again["metrics"]["tokens_per_second"] > 0
            assert one["num_accepted_draft_tokens"] == after[2] - drafts(before)[2] > 0
            assert sum(one["num_draft_tokens"] for one in said) < drafted  # the two of n=2 are counted, too
            usages = [one["usage"] for one in answers]
            assert found[("vllm:prompt_tokens_total",)] == sum(one["prompt_tokens"] for one in usages)
            assert found[("vllm:generation_tokens_total",)] == sum(one["completion_tokens"] for one in usages)
            ended = {key[1]: value for key, value in found.items() if key[0] == "vllm:request_success_total"}
            assert sum(ended.values()) == 5 and ended["length"] >= 3 and ended["abort"] == ended["error"] == 0
            for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
                assert found[(f"vllm:{name}_seconds_count",)] == 5
                assert found[(f"vllm:{name}_seconds_bucket", "+Inf")] == 5
            gaps = found[("vllm:inter_token_latency_seconds_count",)]
            steps = {int(key[1]): value for key, value in found.items() if key[0] == "paceline:output_steps_total"}
            assert gaps + 5 == sum(steps.values()) and steps.keys() <= {0, 1, 2, 3} and steps[3] > 0
            assert sum(value for key, value in found.items() if key[0] == "paceline:steps_total") >= gaps / 2
            assert found[("sglang:spec_accept_rate",)] == accepted / drafted
            assert found[("vllm:num_requests_running",)] == found[("vllm:kv_cache_usage_perc",)] == 0

    running(check())


def test_what_runs_and_what_the_controller_chose_can_be_seen():
    async def check():
        async with serving(num_draft_tokens="auto", batch_size=2) as client:
            body = {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True}
            tasks = [asyncio.create_task(events(client, "/v1/completions", body)) for _ in range(3)]
            found = {}
            while not (found.get(("vllm:num_requests_running",)) == 2 and found[("vllm:num_requests_waiting",)] == 1):
                found = await scraped(client)
            assert 0 < found[("vllm:kv_cache_usage_perc",)] <= 1
            assert (await client.get("/load")).json() == {"server_load": 3}
            await asyncio.gather(*tasks)
            found = await scraped(client)
            assert found[("vllm:request_success_total", "length")] == 3
            assert 0 <= found[("paceline:speculating",)] <= 1 and found[("paceline:draft_length",)] >= 0
            assert found[("paceline:expected_speedup",)] >= 1 and found[("paceline:drafter_failed",)] == 0
            assert {key[1] for key in found if key[0] == "paceline:expected_acceptance"} == {"greedy", "sampled"}
            assert found[("paceline:tokens_per_second", "drafted")] > 0

    running(check())


def test_a_request_without_drafts_gives_the_same_tokens_and_counts_none():
    async def check():
        async with serving() as client:
            body = {"prompt": PROMPT, "max_tokens": 30, "ignore_eos": True, "seed": 5, "temperature": 0.8}

            async def ask(config):
                before = drafts(await scraped(client))
                response = await client.post("/v1/completions", json={**body, "speculative_config": config})
                after = drafts(await scraped(client))
                return response.json()["choices"][0]["text"], after[0] - before[0], after[1] - before[1]

            text, num_drafts, drafted = await ask(None)
            assert drafted > 2 * num_drafts > 0
            for off in ({"num_speculative_tokens": 0}, {"method": "none"}):
                assert await ask(off) == (text, 0, 0)
            shorter, num_short, drafted_short = await ask({"num_speculative_tokens": 1})
            assert shorter == text and drafted_short == num_short > num_drafts
            chat = {
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": 8,
                "speculative_config": {"method": "none"},
            }
            before = drafts(await scraped(client))
            assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
            assert drafts(await scraped(client)) == before

    running(check())


def test_drafts_of_requests_beside_each_other_keep_their_own_lengths():
    async def check():
        async with serving(metrics=True) as client:
            base = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
            bodies = [{**base, "speculative_config": {"num_speculative_tokens": most}} for most in (0, 1, 3)]
            answers = [
                one.json() for one in await asyncio.gather(*(client.post("/v1/completions", json=b) for b in bodies))
            ]
            assert len({one["choices"][0]["text"] for one in answers}) == 1
            said = [one["metrics"]["speculative_decoding"] for one in answers]
            assert said[0]["num_draft_tokens"] == 0
            assert said[0]["acceptance_histogram"] == [60, 0, 0, 0]
            assert said[1]["acceptance_histogram"][2:] == [0, 0] and said[1]["acceptance_histogram"][1] > 0
            assert said[2]["acceptance_histogram"][3] > 0

    running(check())


def test_a_request_chooses_among_the_drafters_of_the_server(monkeypatch):
    # Whether a draft pays must not depend on what else this machine does.
    phases = PhaseSeconds(draft=1e-3, score=1e-2, decide=1e-4, rest=1e-4)
    monkeypatch.setattr(HostTimer, "seconds", lambda timer: phases)

    async def check():
        drafters = ["suffix", str(pair().target)]  # of which every draft is accepted
        async with serving(drafter=drafters, num_draft_tokens="auto", steps=True) as client:
            body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0, "stream": True}
            texts, drafted = set(), {}
            for _ in range(3):  # which the controller learns from
                for method in ("suffix", "draft_model", "none"):
                    asked = {**body, "return_steps": True, "speculative_config": {"method": method}}
                    found = [
                        choice
                        for event in await events(client, "/v1/completions", asked)
                        for choice in event["choices"]
                    ]
                    texts.add("".join(choice["text"] for choice in found))
                    by = {token["drafter"] for choice in found for step in choice["steps"] for token in step["tokens"]}
                    drafted.setdefault(method, set()).update(by - {None})
            assert len(texts) == 1
            assert drafted == {"suffix": {"suffix"}, "draft_model": {"model"}, "none": set()}
            other = {**body, "speculative_config": {"method": "medusa"}}
            error = (await client.post("/v1/completions", json=other)).json()["error"]
            assert "this server has none, suffix, model; give one of these" in error["message"]

    running(check())


def test_what_a_request_cannot_choose_is_refused_by_name():
    async def check():
        async with serving() as client:
            for config, name, way in [
                ({"num_speculative_tokens": 4}, "num_speculative_tokens", "0 (no drafts) to 3"),
                ({"num_speculative_tokens": -1}, "num_speculative_tokens", "0 (no drafts) to 3"),
                ({"num_speculative_tokens": True}, "num_speculative_tokens", "0 (no drafts) to 3"),
                ({"method": "ngram"}, "method", "this server has none, model"),
                ({"model": "some/draft"}, "model", "leave it out"),
                ({"method": "none", "num_speculative_tokens": 2}, "num_speculative_tokens", "one of the two"),
            ]:
                response = await client.post("/v1/completions", json={"prompt": "x", "speculative_config": config})
                error = response.json()["error"]
                assert response.status_code == 400 and error["param"] == f"speculative_config.{name}"
                assert way in error["message"]
            response = await client.post("/v1/completions", json={"prompt": "x", "speculative_config": 3})
            assert response.status_code == 400 and response.json()["error"]["param"] == "speculative_config"

    running(check())


def test_what_is_cancelled_and_what_fails_is_counted_as_such(monkeypatch):
    counters = Counters()

    async def check():
        async with AsyncEngine(engine(batch_size=1), observer=counters) as served:
            metrics = Metrics(served, counters, "tiny")
            stream = await served.submit([5, 6, 7], max_tokens=400, ignore_eos=True)
            await anext(stream)
            stream.cancel()
            (result,) = await stream.results()
            found = samples((await served.read(metrics.text)).decode())
            assert found[("vllm:request_success_total", "abort")] == 1
            assert found[("vllm:generation_tokens_total",)] == len(result.token_ids)
            assert drafts(found)[2] == sum(result.stats.accepted) and drafts(found)[1] == sum(result.stats.drafted)
            monkeypatch.setattr(served.engine, "advance", lambda: 1 / 0)
            failing = await served.submit([5, 6, 7], max_tokens=4)
            try:
                await failing.results()
            except RuntimeError:
                pass
            found = samples((await served.read(metrics.text)).decode())
            assert found[("vllm:request_success_total", "error")] == 1

    running(check())


def test_the_engine_is_read_in_its_own_thread_and_errors_come_back():
    async def check():
        async with AsyncEngine(engine()) as served:
            assert await served.read(lambda: threading.current_thread().name) == "paceline engine"
            try:
                await served.read(lambda: 1 / 0)
            except ZeroDivisionError:
                pass
            else:
                raise AssertionError
            assert served.alive

    running(check())


def test_values_are_counted_in_the_first_bucket_that_holds_them():
    values = Distribution((0.1, 1))
    for value in (0.05, 0.1, 0.2, 5):
        values.add(value)
    assert values.buckets == [("0.1", 2), ("1.0", 3), ("+Inf", 4)] and values.total == 5.35
