"""The process of a server: ends by signals without cutting off what runs, and bounds what connections may take."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from paceline.serve import process as process_module
from paceline.serve.settings import Limits
from tests.api.checkpoints import pair
from tests.serve.listening import answer, listening, sent
from tests.serve.served import PROMPT

COUNTING = """
import atexit, gc, sys
from paceline.cli import main
atexit.register(lambda: print(gc.get_freeze_count(), file=sys.stderr))
main()
"""
LONG = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}


def stream(url, found, began, more):
    """Read a long stream into ``found``; ``began`` is set by its first event."""
    with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, **more}, timeout=60) as response:
        for line in response.iter_lines():
            if line:
                found.append(line.removeprefix("data: "))
                began.set()


def begin(url, **more):
    found, began = [], threading.Event()
    reader = threading.Thread(target=stream, args=(url, found, began, more))
    reader.start()
    assert began.wait(30)
    return reader, found


def before_each_step(engine, do):
    advance = engine.engine.advance

    def step():
        do()
        advance()

    engine.engine.advance = step


def text_and_end(found):
    choices = [json.loads(line)["choices"][0] for line in found[:-1]]
    assert found[-1] == "[DONE]"
    return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


def test_the_first_signal_lets_requests_end_and_answers_503_to_new_ones():
    with listening(drain_seconds=60.0) as server:
        whole = {**LONG, "stream": False}
        expected = httpx.post(f"{server.url}/v1/completions", json=whole, timeout=60).json()["choices"][0]["text"]
        steps, go_on = itertools.count(), threading.Event()  # so that nothing ends before the server is asked below
        before_each_step(server.process.engine, lambda: next(steps) < 8 or go_on.wait(60))
        reader, found = begin(server.url)
        server.process.handle_exit(signal.SIGTERM, None)
        while not server.process.engine.draining:
            time.sleep(0.01)
        refused = httpx.post(f"{server.url}/v1/completions", json=whole)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["type"] == "internal_server_error"
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and "ending" in health.json()["error"]["message"]
        go_on.set()
        reader.join(60)
        assert text_and_end(found) == (expected, "length")
        server.thread.join(30)
        assert server.process.complete and not process_module.interrupted(server.process)
        assert "waiting for open requests (1), 60 s at most" in server.said[0]


@pytest.mark.parametrize("by", ["second signal", "limit"])
def test_the_second_signal_and_the_limit_cancel_what_runs(by):
    with listening(drain_seconds=0.2 if by == "limit" else 60.0) as server:
        before_each_step(server.process.engine, lambda: time.sleep(0.01))  # all tokens would take 3 s
        reader, found = begin(server.url, n=12)
        server.process.handle_exit(signal.SIGINT, None)
        if by == "second signal":
            server.process.handle_exit(signal.SIGINT, None)
        reader.join(30)
        assert found[-1] == "[DONE]" and len(found) < 12 * 100  # a step gives at most four of 400 tokens
        server.thread.join(30)
        assert not server.process.complete and process_module.interrupted(server.process)


def test_the_server_ends_with_its_engine():
    with listening() as server:
        server.process.engine._orders.put(lambda: 1 / 0)  # a fault of the thread
        server.thread.join(30)
        assert not server.process.complete and server.said == ["the engine has ended; so does the server"]


def test_long_heads_slow_heads_and_slow_bodies_are_cut_off(monkeypatch):
    monkeypatch.setattr(process_module, "HEAD_SECONDS", 0.4)
    with listening(limits=Limits(body_seconds=0.4)) as server:
        long = b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * process_module.HEADER_BYTES
        assert answer(sent(server.port, long)).startswith(b"HTTP/1.1 400")
        assert answer(sent(server.port, b"GET /health HTTP/1.1\r\nhost: x\r\n")) == b""
        assert answer(sent(server.port)) == b"", "nothing at all was sent"
        head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
        late = answer(sent(server.port, head, b'{"prompt": '))
        assert late.startswith(b"HTTP/1.1 408") and b"within 0.4 s" in late and b"connection: close" in late.lower()
        kept = sent(server.port, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET /health")  # the head of a second request on the same connection
        assert answer(kept) == b""
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_the_command_serves_until_sigterm_and_its_key_covers_it(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    words = ["serve", pair().target, "--draft", pair().draft, "--port", 0, "--api-key-file", keys]
    words += ["--served-model-name", "tutor", "--max-num-seqs", 2, "--max-model-len", 512, "--log-level", "error"]
    command = [sys.executable, "-c", COUNTING, *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            lines = []
            while not lines or not lines[-1].startswith("  key"):
                lines.append(running.stderr.readline())
                assert lines[-1], lines
            url = next(line for line in lines if line.startswith("Paceline serves ")).split()[-1].removesuffix("/v1")
            assert "".join(lines).count("tutor") == 1 and "2 requests at once" in "".join(lines)
            assert lines[-1].split() == ["key", "needed"]
            assert httpx.get(f"{url}/v1/models").status_code == 401
            with httpx.Client(base_url=url, headers={"authorization": "Bearer second"}, timeout=60) as client:
                (model,) = client.get("/v1/models").json()["data"]
                assert (model["id"], model["max_model_len"]) == ("tutor", 512)
                found, began = [], threading.Event()

                def read():
                    with client.stream("POST", "/v1/completions", json=LONG) as response:
                        for line in response.iter_lines():
                            found.extend([line.removeprefix("data: ")] if line else [])
                            began.set()

                reader = threading.Thread(target=read)
                reader.start()
                assert began.wait(30)
                running.send_signal(signal.SIGTERM)
                reader.join(60)
            assert text_and_end(found)[1] == "length"
            assert running.wait(30) == 0
            # What it loaded is left out of garbage collections, which would stop all requests.
            assert int(running.stderr.read().split()[-1]) > 100_000
        finally:
            running.kill()
