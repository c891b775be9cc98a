"""Real processes ended by real signals; the file that comes of it is that of one run."""

import signal
import subprocess
import sys
import time

import pytest

from tests.api.checkpoints import pair
from tests.cli.files import PROMPTS, command, generate_file, journal_of, lines_of, write

OPTIONS = ["--temperature", "0.8", "--seed", "3", "--batch-size", "2", "--draft", pair().draft, "--quiet"]
OPTIONS += ["--num-draft-tokens", "3"]  # rows that accept drafts do not end together
NUM_PROMPTS, NUM_TOKENS = 200, 50  # some seconds, also where the kernel is fast


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    "ending", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT], ids=lambda ending: ending.name
)
def test_file_of_a_killed_run_is_completed_to_that_of_one_run(ending, tmp_path):
    prompts = write(tmp_path / "prompts.txt", [f"{PROMPTS[i % 8]} # {i}" for i in range(NUM_PROMPTS)])
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", *command(prompts, output, *OPTIONS, max_tokens=NUM_TOKENS)],
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + 60
    while process.poll() is None and not (output.exists() and output.stat().st_size > 1500):
        assert time.monotonic() < limit, "it never wrote"
        time.sleep(0.005)
    process.send_signal(ending)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (130 if ending == signal.SIGINT else -signal.SIGKILL), error
    done = output.read_bytes()
    assert 0 < done.count(b"\n") < NUM_PROMPTS, "stopped in the middle"
    assert journal_of(output).exists()
    if ending == signal.SIGINT:
        assert b'"finish_reason": "cancelled"' in journal_of(output).read_bytes()
    assert generate_file(prompts, output, *OPTIONS, max_tokens=NUM_TOKENS) == 0
    assert generate_file(prompts, whole, *OPTIONS, max_tokens=NUM_TOKENS) == 0
    assert output.read_bytes() == whole.read_bytes() and output.read_bytes().startswith(done)
    assert len(lines_of(output)) == NUM_PROMPTS and not journal_of(output).exists()
