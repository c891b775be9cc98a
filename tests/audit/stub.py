"""An OpenAI-compatible server in this process: completions of a model by ``paceline.generate``, honest or not."""

import json
import queue
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from paceline.api import Loaded, SamplingParams, generate

PLAIN = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}


class Changed(torch.nn.Module):
    """An LM whose logits are changed by ``change``; a text is never decoded by a faster way around it."""

    def __init__(self, lm, change):
        super().__init__()
        self.lm, self.change = lm, change

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("lm"), name)

    def forward(self, *args, **options):
        output = self.lm(*args, **options)
        return replace(output, logits=None if output.logits is None else self.change(output.logits))


def altered(target, change):
    return replace(target, lm=Changed(target.lm, change), enforce_eager=True)


@dataclass
class Stub:
    """What is served, and how: ``tells`` ids, strings or nothing; ``known`` are the words that it takes."""

    target: Loaded
    name: str = "the-model"
    tells: str = "ids"
    known: frozenset | None = None
    seeds: bool = True
    key: str | None = None
    bos: bool = False
    finish: str = "stop"
    usage: bool = True
    shift: float = 0.0  # of the log-probabilities it gives
    drafting: dict = field(default_factory=dict)
    refuse: tuple[int, dict] | None = None
    asked: list = field(default_factory=list)

    def __post_init__(self):
        self._queue, self._count = queue.Queue(), 0
        threading.Thread(target=self._work, daemon=True).start()

    def complete(self, body):
        """Waits for a turn: what comes together is decoded together."""
        ready, box = threading.Event(), []
        self._queue.put((body, ready, box))
        ready.wait()
        return box[0]

    def _work(self):
        torch.set_num_threads(1)
        while (entry := self._queue.get()) is not None:
            entries = [entry]
            try:
                while len(entries) < 16:
                    entries.append(self._queue.get(timeout=0.005))
            except queue.Empty:
                pass
            for (_, ready, box), answer in zip(entries, self._answers([body for body, _, _ in entries]), strict=True):
                box.append(answer)
                ready.set()

    def _answers(self, bodies):
        self._count += len(bodies)
        params = [
            SamplingParams(
                max_tokens=body["max_tokens"],
                temperature=body["temperature"],
                seed=body["seed"] + (0 if self.seeds else 7919 * self._count),
                logprobs=0,
            )
            for body in bodies
        ]
        prompts = [([0] if self.bos else []) + self.target.tokenizer.encode(body["prompt"]) for body in bodies]
        return [
            self._answer(result, body)
            for result, body in zip(generate(self.target, prompts, params, **self.drafting), bodies, strict=True)
        ]

    def _answer(self, result, body):
        tokenizer = self.target.tokenizer
        choice = {
            "index": 0,
            "text": result.text,
            "finish_reason": self.finish if result.finish_reason == "stop" else "length",
        }
        if self.tells == "ids" and body.get("return_token_ids"):
            choice["token_ids"] = list(result.tokens)
        if self.tells != "nothing" and "logprobs" in body:
            choice["logprobs"] = {
                "tokens": [tokenizer.decode([token], skip_special=False) for token in result.tokens],
                "token_logprobs": [chosen.raw + self.shift for chosen in result.logprobs],
            }
        usage = {"prompt_tokens": len(result.prompt_tokens), "completion_tokens": len(result.tokens)}
        return {"choices": [choice], **({"usage": usage} if self.usage else {})}


def handler_of(stub):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self._allowed():
                self._reply(200, {"data": [{"id": stub.name}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.asked.append(body)
            if not self._allowed():
                return
            unknown = set(body) - PLAIN - stub.known if stub.known is not None else ()
            if unknown:
                self._reply(400, {"error": {"message": f"unknown fields {sorted(unknown)}"}})
            elif self.path != "/v1/completions":
                self._reply(404, {"detail": "Not Found"})
            elif stub.refuse is not None:
                self._reply(*stub.refuse)
            else:
                self._reply(200, stub.complete(body))

        def _allowed(self):
            good = stub.key is None or self.headers["Authorization"] == f"Bearer {stub.key}"
            if not good:
                self._reply(401, {"error": {"message": f"no such key: {self.headers['Authorization']}"}})
            return good

        def _reply(self, status, content):
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    return Handler


@contextmanager
def serving(stub):
    """The URL of ``stub`` while it serves."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(stub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        stub._queue.put(None)
