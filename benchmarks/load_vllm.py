"""vLLM's own server, in a Python that its user installed, for clients that are timed."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.serving import DRAFT_TOKENS, MODEL
from paceline.bench.peers.vllm import environment, fitting, probe


@contextmanager
def vllm_serving(python: Path, paths: Sequence[Path], drafter: str, dtype: str, num_clients: int) -> Iterator[str]:
    """The address of vLLM's server under ``python``, whose models have heads that it has kernels for, and whose
    processes have the libraries that its manual would have loaded first. Raises RuntimeError where it does not start.
    """
    port = 18_000 + os.getpid() % 2000
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(fitting(paths[0]))]
    words += ["--dtype", dtype, "--tokenizer", str(paths[0])]
    words += ["--port", str(port), "--max-num-seqs", str(num_clients), "--max-model-len", "1024"]
    words += ["--no-enable-prefix-caching", "--served-model-name", "model"]
    if drafter == MODEL:
        config = {"method": "draft_model", "model": str(fitting(paths[1])), "num_speculative_tokens": DRAFT_TOKENS}
        words += ["--speculative-config", json.dumps(config)]
    own = {**os.environ, **environment(1, probe(python)["preload"]), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    own.pop("PYTHONPATH", None)
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=said) as process,
    ):
        try:
            for _ in range(600):
                if process.poll() is not None:
                    said.seek(0)
                    raise RuntimeError(f"vLLM's server ended with {process.returncode}: {said.read()[-2000:]}")
                connection = HTTPConnection("127.0.0.1", port, timeout=5)
                try:
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                except OSError:
                    time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)
