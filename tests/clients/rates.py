"""The time of an output token as a client measures it, beside what the server counted of the same requests."""

import json
import re

import httpx

METRIC = "vllm:request_time_per_output_token_seconds"
MOST = 0.05  # by which the two may differ


def of_vllm(printed, folder):
    """Milliseconds, of what `vllm bench serve` printed."""
    return float(re.search(r"Mean TPOT \(ms\):\s+([\d.]+)", printed).group(1))


def of_aiperf(printed, folder):
    """Of the file that aiperf wrote."""
    return json.loads((folder / "aiperf-run/profile_export_aiperf.json").read_text())["inter_token_latency"]["avg"]


def of_guidellm(printed, folder):
    """Of the file that guidellm wrote."""
    (found,) = json.loads((folder / "benchmarks.json").read_text())["benchmarks"]
    return found["metrics"]["inter_token_latency_ms"]["successful"]["mean"]


def counted(url):
    """Seconds and outputs so far, at the server."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return [
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"{METRIC}_{what}"))
        for what in ("sum", "count")
    ]


def compared(theirs, before, after):
    """(words, whether they agree)."""
    ours = 1000 * (after[0] - before[0]) / (after[1] - before[1])
    return f"{theirs:.2f} ms a token, {ours:.2f} by the server", abs(theirs / ours - 1) <= MOST
