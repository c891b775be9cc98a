"""Real processes ended by real signals, again and again; the file that comes of it is that of one run."""

import random
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.batch_files import answer_file, command, lasting, lines_of, request, write

COUNT = 240


def size(path):
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("ending", "times"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGKILL, 8, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_killed_run_is_completed_to_what_one_run_gives(ending, times, tmp_path):
    lines = [request(number, max_tokens=10 + 7 * number % 60) for number in range(COUNT)]
    lines[5] = request(5, temperature=-1)
    source, whole, output = write(tmp_path / "in.jsonl", lines), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    rng, journal = random.Random(times), output.with_name("out.jsonl.waiting")
    for turn in range(times):
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli", *command(source, output)],
            stderr=subprocess.PIPE,
        )
        more, limit = size(output) + rng.randrange(1, 9000), time.monotonic() + 120
        while process.poll() is None and size(output) < more:
            assert time.monotonic() < limit, "it never wrote"
            time.sleep(0.002)
        process.send_signal(ending)
        _, error = process.communicate(timeout=60)
        if turn == 0:
            assert process.returncode == (130 if ending == signal.SIGINT else -signal.SIGKILL), error
            assert 0 < output.read_bytes().count(b"\n") < COUNT and journal.exists(), "stopped in the middle"
    done = output.read_bytes()
    done = done[: done.rfind(b"\n") + 1]
    assert answer_file(source, output) == 1 and answer_file(source, whole) == 1
    assert output.read_bytes().startswith(done) and not journal.exists()
    assert lasting(lines_of(output)) == lasting(lines_of(whole))
    assert [line["custom_id"] for line in lines_of(output)] == [line["custom_id"] for line in lines]
