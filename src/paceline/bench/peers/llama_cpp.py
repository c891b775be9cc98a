"""llama.cpp as a peer: its server, built by its user, over HTTP on this machine. Times nothing.

Four ways: plain, drafting with the same draft model, the same with drafts that end where the draft model is unsure, and
its n-gram lookup. The server is started anew for every way, draft length, batch size and length of text. Weights are
written as GGUF by llama.cpp's own converter, once, into a cache.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

from paceline.bench.peers.base import PeerSettings, PeerUnavailable, cache_folder, counted
from paceline.bench.peers.llama_cpp_build import wrong_build
from paceline.bench.peers.process import PATIENCE, Process
from paceline.bench.peers.programs import Key, ProgramPeer, ProgramPool
from paceline.bench.raw import hash_model
from paceline.bench.runner import DecodingFailed, Sample
from paceline.bench.sweep import Cell

LLAMA_CPP: Final = "llama.cpp"
PLAIN, DRAFT, CONFIDENT, LOOKUP = LLAMA_CPP, "llama.cpp-draft", "llama.cpp-draft-confident", "llama.cpp-lookup"
VARIABLE: Final = "PACELINE_LLAMA_CPP"
HOW_TO: Final = f"build it as docs/benchmarks.md says and give --llama-cpp DIR, or set {VARIABLE}"
CONFIDENCE: Final = "0.75"  # what a draft token's probability must reach, in the confident way
NGRAM: Final = 3  # tokens that must have occurred before
BLOCK: Final = 256  # the server rounds the length of a text up to a multiple
TYPES: Final = {"torch.bfloat16": "bf16", "torch.float16": "f16", "torch.float32": "f32"}
WRITER: Final = Path(__file__).with_name("scripts") / "write_gguf.py"
HOST: Final = "127.0.0.1"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server; it answers only while it is awake."""

    process: Process
    port: int

    @property
    def has_ended(self) -> bool:
        return self.process.has_ended

    def close(self) -> None:
        """End it."""
        self.process.close()

    def complete(self, order: Mapping[str, object]) -> Any:
        """The server's answer. Raises DecodingFailed where it gives none, or an error."""
        try:
            status, text = _request(self.port, "POST", "/completion", body=json.dumps(order))
        except (OSError, http.client.HTTPException) as error:
            raise self.process.failure(f"no answer ({error})") from error
        if status != http.client.OK:
            raise self.process.failure(f"it answers {status}: {text[:200].decode(errors='replace')}")
        return json.loads(text)


@final
@dataclass(slots=True, kw_only=True)
class LlamaCpp(ProgramPeer[Server]):
    """The server and the converter in ``folder``, llama.cpp's sources with a build in them. Made by ``find``."""

    plain: ClassVar[str] = PLAIN
    drafts: ClassVar[tuple[str, ...]] = (DRAFT, CONFIDENT)

    folder: Path
    cache: Path

    def decode(self, program: Server, cell: Cell, prompts: list[list[int]], seed: int) -> Sample:
        """What the server answers to one request; its steps are the tokens that it did not draft."""
        order = {
            "prompt": prompts,
            "n_predict": cell.max_tokens,
            "temperature": cell.temperature,
            "top_p": cell.top_p,
            "samplers": ["temperature", "top_p"],  # in our order
            "seed": seed,
            "ignore_eos": True,
            "cache_prompt": False,  # every call reads its prompts, as ours does
            "return_tokens": True,
        }
        with program.process.awake():
            answers = program.complete(order)
        rows = sorted(answers if isinstance(answers, list) else [answers], key=lambda row: row["index"])
        steps = [len(row["tokens"]) - row.get("timings", {}).get("draft_n_accepted", 0) for row in rows]
        return counted([row["tokens"] for row in rows], steps)

    def start(self, key: Key) -> Server:
        """A server with the settings of what is timed."""
        way, num_draft_tokens, batch_size, longest = key
        threads = str(self.setting.num_threads)
        each = -(-longest // BLOCK) * BLOCK
        command = [
            *(str(server_of(self.folder)), "--model", str(self._gguf(self.setting.target))),
            *("--threads", threads, "--threads-batch", threads),
            *("--parallel", str(batch_size), "--ctx-size", str(each * batch_size)),
            *("--cache-ram", "0", "--no-cache-prompt", "--offline"),
        ]
        if way in (DRAFT, CONFIDENT):
            assert self.setting.draft is not None
            command += ["--spec-type", "draft-simple", "--model-draft", str(self._gguf(self.setting.draft))]
            command += ["--spec-draft-n-max", str(num_draft_tokens), "--threads-draft", threads]
            command += ["--spec-draft-p-min", CONFIDENCE if way == CONFIDENT else "0"]
        elif way == LOOKUP:
            # It drops drafts that are shorter than what must have occurred: a longer one would never draft.
            command += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(min(NGRAM, num_draft_tokens))]
            command += ["--spec-ngram-simple-size-m", str(num_draft_tokens)]
        return start_server(way, command)

    def _gguf(self, model: Path) -> Path:
        """The model as GGUF in the same precision, written where it is not there yet."""
        kind = TYPES[str(self.setting.dtype)]
        path = self.cache / f"{model.name}-{hash_model(model)[:16]}-{kind}.gguf"
        if path.is_file():
            return path
        self.cache.mkdir(parents=True, exist_ok=True)
        partly = path.with_suffix(f".{os.getpid()}.part")
        script = self.folder / "convert_hf_to_gguf.py"
        words = [sys.executable, str(WRITER), str(script), str(model), "--outtype", kind, "--outfile", str(partly)]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE)
            partly.replace(path)
        except (OSError, subprocess.SubprocessError) as error:
            partly.unlink(missing_ok=True)
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            last = "\n".join(f"  | {line}" for line in str(said).splitlines()[-10:])
            raise DecodingFailed(f"{LLAMA_CPP}: its converter wrote no GGUF of {model}\n{last}") from error
        return path


def start_server(name: str, command: Sequence[str]) -> Server:
    """The server of ``command`` on a free port, once it answers."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    process = Process(name, [*command, "--host", HOST, "--port", str(port)], environment={})
    deadline = time.monotonic() + PATIENCE
    try:
        with process.awake():
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if _request(port, "GET", "/health")[0] == http.client.OK:
                        return Server(process=process, port=port)
                if process.has_ended or time.monotonic() > deadline:
                    raise process.failure("it did not start")
                time.sleep(0.1)
    except BaseException:
        process.close()
        raise


def _request(port: int, method: str, path: str, *, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def server_of(folder: Path) -> Path:
    """Where a build puts the server."""
    return folder / "build" / "bin" / "llama-server"


def find(folder: Path | None, setting: PeerSettings, *, num_open: int = 1) -> LlamaCpp | PeerUnavailable:
    """llama.cpp in ``folder``, or why it is not there."""
    if setting.device.type != "cpu":
        return PeerUnavailable(
            name=LLAMA_CPP, reason=f"its CPU build meets no model on {setting.device}; give --device cpu"
        )
    if folder is None:
        return PeerUnavailable(name=LLAMA_CPP, reason=HOW_TO)
    if str(setting.dtype) not in TYPES:
        return PeerUnavailable(name=LLAMA_CPP, reason=f"its files hold no {setting.dtype}; give --dtype bfloat16")
    for needed in (server_of(folder), folder / "convert_hf_to_gguf.py"):
        if not needed.is_file():
            return PeerUnavailable(name=LLAMA_CPP, reason=f"no {needed}; {HOW_TO}")
    wrong = None if setting.isa is None else wrong_build(folder, setting.isa)
    if wrong is not None:
        return PeerUnavailable(name=LLAMA_CPP, reason=wrong)
    try:
        said = subprocess.run(
            [str(server_of(folder)), "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        return PeerUnavailable(name=LLAMA_CPP, reason=f"{server_of(folder)} does not run ({error}); {HOW_TO}")
    version = next((line for line in (said.stdout + said.stderr).splitlines() if line.startswith("version")), "unknown")
    return LlamaCpp(
        folder=folder,
        setting=setting,
        version=version.removeprefix("version: "),
        copies=(LOOKUP,),
        cache=cache_folder() / "gguf",
        programs=ProgramPool(num_open),
    )
