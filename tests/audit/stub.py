"""An OpenAI-compatible server in this process: completions of a model by ``paceline.generate``, correct or altered."""

import json
import queue
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from paceline.api import Loaded, SamplingParams, generate

PLAIN = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}


class AlteredLM(torch.nn.Module):
    """An LM whose logits are changed by ``change``; not native, so that no faster path bypasses it."""

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
    return replace(target, lm=AlteredLM(target.lm, change), enforce_eager=True)


@dataclass
class Stub:
    """What is served. ``reports`` is ids, strings or nothing; ``known`` are the extra fields that it accepts."""

    target: Loaded
    name: str = "the-model"
    reports: str = "ids"
    known: frozenset | None = None
    seeds: bool = True
    key: str | None = None
    bos: bool = False
    finish: str = "stop"
    usage: bool = True
    shift: float = 0.0  # added to the logprobs that it reports
    drafting: dict = field(default_factory=dict)
    refuse: tuple[int, dict] | None = None
    requests: list = field(default_factory=list)

    def __post_init__(self):
        self._queue, self._count = queue.Queue(), 0
        threading.Thread(target=self._work, daemon=True).start()

    def answer(self, path, body, headers):
        """The status and the content of the response."""
        if body is not None:
            self.requests.append(body)
        if self.key is not None and headers["Authorization"] != f"Bearer {self.key}":
            return 401, {"error": {"message": f"no such key: {headers['Authorization']}"}}
        if body is None:
            return 200, {"data": [{"id": self.name}]}
        unknown = set(body) - PLAIN - self.known if self.known is not None else ()
        if unknown:
            return 400, {"error": {"message": f"unknown fields {sorted(unknown)}"}}
        if path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        if self.refuse is not None:
            return self.refuse
        ready, box = threading.Event(), []
        self._queue.put((body, ready, box))
        ready.wait()
        return 200, box[0]

    def close(self):
        self._queue.put(None)

    def _work(self):
        """Decodes requests that arrive together in one batch."""
        torch.set_num_threads(1)
        while (entry := self._queue.get()) is not None:
            entries = [entry]
            try:
                while len(entries) < 16:
                    entries.append(self._queue.get(timeout=0.005))
            except queue.Empty:
                pass
            responses = self._complete([body for body, _, _ in entries])
            for (_, ready, box), response in zip(entries, responses, strict=True):
                box.append(response)
                ready.set()

    def _complete(self, bodies):
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
        results = generate(self.target, prompts, params, **self.drafting)
        return [self._response(result, body) for result, body in zip(results, bodies, strict=True)]

    def _response(self, result, body):
        tokenizer = self.target.tokenizer
        finish = self.finish if result.finish_reason == "stop" else "length"
        choice = {"index": 0, "text": result.text, "finish_reason": finish}
        if self.reports == "ids" and body.get("return_token_ids"):
            choice["token_ids"] = list(result.tokens)
        if self.reports != "nothing" and "logprobs" in body:
            choice["logprobs"] = {
                "tokens": [tokenizer.decode([token], skip_special=False) for token in result.tokens],
                "token_logprobs": [chosen.raw + self.shift for chosen in result.logprobs],
            }
        usage = {"prompt_tokens": len(result.prompt_tokens), "completion_tokens": len(result.tokens)}
        return {"choices": [choice], **({"usage": usage} if self.usage else {})}


@contextmanager
def answering(answer):
    """The URL of a server that responds ``answer(path, body, headers)``: a status, and an object or bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.do_POST()

        def do_POST(self):
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(self.path, json.loads(raw) if raw else None, self.headers)
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(stub):
    """The URL of ``stub`` while it serves."""
    try:
        with answering(stub.answer) as url:
            yield url
    finally:
        stub.close()
