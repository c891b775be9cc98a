"""A local cluster of Ray's with two workers: the answers are those of one engine, whoever is killed in the middle.

Needs Ray: ``pip install -e '.[ray]'``.
"""

import subprocess
import sys
import time

import psutil
import pytest

from tests.cli.batch_files import answer_file, command, lasting, lines_of, request, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COUNT, RAY = 160, ["--ray", "local", "--workers", "2"]


def workers_of(driver):
    """The processes that hold engines."""
    found = []
    for process in psutil.Process(driver.pid).children(recursive=True):
        try:
            found += [process] * ("MapWorker" in "".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("who", ["a worker", "the driver"])
def test_who_is_killed_costs_no_line_and_repeats_none(who, tmp_path):
    pytest.importorskip("ray")
    lines = [request(number, max_tokens=10 + 7 * number % 60) for number in range(COUNT)]
    lines[3], lines[90] = request(3, temperature=-1), {**request(90), "method": "GET"}
    source, whole, output = write(tmp_path / "in.jsonl", lines), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert answer_file(source, whole) == 1
    driver = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", *command(source, output, *RAY)],
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + 400
    while driver.poll() is None and not (output.exists() and output.stat().st_size > 3000):
        assert time.monotonic() < limit, "it never wrote"
        time.sleep(0.002)
    if who == "a worker":
        begun = workers_of(driver)
        assert len(begun) == 2 and output.read_bytes().count(b"\n") < COUNT, "in the middle"
        begun[0].kill()
    else:
        driver.kill()
    _, said = driver.communicate(timeout=400)
    if who == "a worker":
        assert driver.returncode == 1, said.decode()
        assert b"paceline: 2 of 160 requests failed" in said
    else:
        assert 0 < output.read_bytes().count(b"\n") < COUNT
        assert answer_file(source, output) == 1, "with or without a cluster"
    assert lasting(lines_of(output)) == lasting(lines_of(whole))
    assert [line["custom_id"] for line in lines_of(output)] == [line["custom_id"] for line in lines]
    assert not output.with_name("out.jsonl.waiting").exists()
