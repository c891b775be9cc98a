"""vLLM's own server, in a Python that its user installed, for clients that are timed."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.serving import DRAFT_TOKENS, MODEL


@contextmanager
def vllm_serving(python: str, paths: Sequence[Path], drafter: str, dtype: str, num_clients: int) -> Iterator[str]:
    """The address of vLLM's server under ``python``. Raises RuntimeError where it does not start."""
    port = 18_000 + os.getpid() % 2000
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(paths[0]), "--dtype", dtype]
    words += ["--port", str(port), "--max-num-seqs", str(num_clients), "--max-model-len", "1024"]
    words += ["--no-enable-prefix-caching", "--served-model-name", "model", "--disable-log-requests"]
    if drafter == MODEL:
        config = {"method": "draft_model", "model": str(paths[1]), "num_speculative_tokens": DRAFT_TOKENS}
        words += ["--speculative-config", json.dumps(config)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                if process.poll() is not None:
                    raise RuntimeError(f"vLLM's server ended with {process.returncode}: {' '.join(words)}")
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
