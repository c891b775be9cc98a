"""Replicas that follow the load on a local Ray: more where requests wait, fewer after, and always the same answers.

Needs Ray: ``pip install -e '.[ray]'``.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from paceline.serve.settings import Settings
from tests.serve.served import PROMPT, engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
PORT = 18438
URL = f"http://127.0.0.1:{PORT}"
CLIENTS, MOST = 12, 2
TOKENS = 48


@pytest.fixture
def served(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray import serve

    from paceline.serve import ray_serve

    monkeypatch.setattr(ray_serve, "DELAYS", {"upscale_delay_s": 2.0, "downscale_delay_s": 10.0})
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    replicas = ray_serve.Replicas(count=1, most=MOST, requests=1, cpus=1)
    serve.run(ray_serve.application(partial(engine, batch_size=1), Settings(names=("tiny",)), replicas))
    yield
    serve.shutdown()
    ray.shutdown()


def answer(number):
    body = {"prompt": f"{number} {PROMPT}", "max_tokens": TOKENS, "temperature": 0.8, "seed": number}
    found = httpx.post(f"{URL}/v1/completions", json=body, timeout=120)
    assert found.status_code == 200, found.text
    return number, found.json()["choices"][0]["text"]


def num_replicas():
    page = httpx.get(f"{URL}/metrics", timeout=60).text
    return sum(line.startswith("vllm:generation_tokens_total{") for line in page.splitlines())


def test_replicas_follow_the_load_and_answer_alike(served):
    prompts = [f"{number} {PROMPT}" for number in range(CLIENTS)]
    texts = [
        engine().generate([prompt], max_tokens=TOKENS, temperature=0.8, seed=number)[0].text
        for number, prompt in enumerate(prompts)
    ]
    assert num_replicas() == 1
    limit, most = time.monotonic() + 240, 1
    with ThreadPoolExecutor(CLIENTS) as clients:
        while most < MOST:
            assert time.monotonic() < limit, "no replica was started under load"
            for number, text in clients.map(answer, range(CLIENTS)):
                assert text == texts[number]
            most = num_replicas()
    while num_replicas() > 1:
        assert time.monotonic() < limit, "no replica was ended after it"
        time.sleep(2.0)
    assert answer(3) == (3, texts[3])
