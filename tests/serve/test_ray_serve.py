"""Two replicas on a local Ray: the engine's answers, whichever replica gives them, and whichever is killed.

Needs Ray: ``pip install -e '.[ray]'``.
"""

import gc
import json
import time
from functools import partial

import httpx
import psutil
import pytest

from paceline.serve.settings import Settings
from tests.serve.served import PROMPT, engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
PORT = 18437
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def served():
    ray = pytest.importorskip("ray")
    from ray import serve

    from paceline.serve.ray_serve import Replicas, application

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    settings = Settings(names=("tiny",), api_keys=("secret",))
    serve.run(application(partial(engine, batch_size=2), settings, Replicas(count=2, cpus=1)))
    yield
    serve.shutdown()
    ray.shutdown()


def ask(path, body=None, **options):
    headers = {"authorization": "Bearer secret", **options}
    if body is None:
        return httpx.get(f"{URL}{path}", headers=headers, timeout=60)
    return httpx.post(f"{URL}{path}", json=body, headers=headers, timeout=60)


def body_of(number, **more):
    return {"prompt": f"{number} {PROMPT}", "max_tokens": 8, "temperature": 0.8, "seed": number, **more}


def wanted(number):
    (found,) = engine().generate([f"{number} {PROMPT}"], max_tokens=8, temperature=0.8, seed=number)
    return found.text


def test_two_replicas_answer_as_the_engine_does_and_a_killed_one_is_replaced(served):
    for number in range(12):
        answer = ask("/v1/completions", body_of(number))
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == wanted(number)
    assert ask("/v1/completions", body_of(0), authorization="Bearer no").status_code == 401
    refused = ask("/v1/completions", body_of(0, temperature=-1))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"
    lines = ask("/v1/completions", body_of(3, stream=True)).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == wanted(3) and "data: [DONE]" in lines
    assert ask("/v1/models").json()["data"][0]["id"] == "tiny"
    page = ask("/metrics").text
    counts = [line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total{")]
    assert len(counts) == 2 and all(float(line.split()[1]) > 0 for line in counts), "both were asked"
    assert page.count("# TYPE vllm:generation_tokens_total counter") == 1

    replicas = [
        process
        for process in psutil.Process().children(recursive=True)
        if "ServeReplica:default:engine" in "".join(process.cmdline())
    ]
    assert len(replicas) == 2
    replicas[0].kill()
    limit, good = time.monotonic() + 300, 0
    while good < 24:  # all prompts twice: the replacement answers its share again
        assert time.monotonic() < limit, "it was not replaced"
        answer = ask("/v1/completions", body_of(good % 12))
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"] == wanted(good % 12)
            good += 1
        else:
            assert answer.status_code in (500, 503)
            time.sleep(0.5)


def test_requests_that_begin_alike_have_one_key():
    pytest.importorskip("ray")
    from paceline.serve.ray_serve import BEGINNING, beginning

    def key(**body):
        return beginning(json.dumps(body).encode())

    chat = [{"role": "system", "content": "x" * BEGINNING}, {"role": "user", "content": "a"}]
    assert key(messages=chat, seed=1) == key(messages=[*chat, {"role": "user", "content": "b"}])
    assert key(prompt="x" * BEGINNING + "a") == key(prompt="x" * BEGINNING + "b") != key(prompt="y")
    assert key(prompt=[[1, 2]]) != key(prompt=[[1, 3]]) and beginning(b"{") == beginning(b"[]")


def test_what_a_replica_loads_is_left_out_of_garbage_collections():
    pytest.importorskip("ray")
    from paceline.serve.ray_serve import Replica

    before = gc.get_freeze_count()
    try:
        Replica(partial(engine, batch_size=2), Settings(names=("tiny",)), {})
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
