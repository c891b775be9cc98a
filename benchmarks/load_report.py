"""What is shown of a server under load."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.serving import OFFLINE, SERVED, control, unless_void
from paceline.bench.columns import Column
from paceline.bench.raw import Record
from paceline.bench.statistics import estimate

VLLM = "vllm"
WARM_UP = 0.2  # of the samples of memory, which prove nothing
BLOCKS = 20  # of a siege, whose percentiles tell an interval


def growth_of(samples: Sequence[tuple[float, float]]) -> Any:
    """MiB by which the last third of the samples after the warm-up exceeds the first, with an interval."""
    kept = [value for _, value in samples[round(WARM_UP * len(samples)) :]]
    third = max(1, len(kept) // 3)
    before = float(np.median(kept[:third]))
    return estimate([value - before for value in kept[-third:]])


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50 and p99, in milliseconds."""
    return {f"p{which}": 1000 * float(np.percentile(values, which)) for which in (50, 99)} if values else {}


def in_blocks(values: Sequence[float]) -> list[float]:
    """The 99th percentile of each of BLOCKS parts of the time, in milliseconds; fewer where there are few values."""
    parts = np.array_split(np.asarray(values), min(BLOCKS, len(values))) if values else []
    return [1000 * float(np.percentile(part, 99)) for part in parts]


def ratio(name: str) -> Any:
    """Rate of what is served over that of ``name``."""

    def found(record: Record) -> Any:
        seconds: Mapping[str, Sequence[float]] = record["seconds"]
        if name not in seconds:
            return None
        return estimate([other / own for other, own in zip(seconds[name], seconds[SERVED], strict=True)])

    return found


def rate(record: Record) -> float:
    """Tokens per second of what is served."""
    return float(record["num_tokens"] / estimate(record["seconds"][SERVED]).value)


SOAKS: list[Column[Record]] = [
    Column("clients", "cell.num_clients"),
    Column("minutes", lambda record: record["seconds_run"] / 60, ".1f"),
    Column("answers", "finished"),
    Column("left", "left"),
    Column("failed", "failed"),
    Column("different", "different"),
    Column("still running", "running"),
    Column("MiB grown", lambda record: growth_of(record["memory"]), ".2f"),
    Column("first token p50", "first.p50", ".0f"),
    Column("p99 ms", lambda record: estimate(record["first_blocks"]), ".0f"),
    Column("token p50", "per_token.p50", ".1f"),
    Column("p99 ms ", lambda record: estimate(record["per_token_blocks"]), ".1f"),
]
RATES: list[Column[Record]] = [
    Column("drafter", "cell.drafter", left=True),
    Column("clients", "cell.num_clients"),
    Column("tokens/s", unless_void(rate, ".1f")),
    Column("of offline", unless_void(ratio(OFFLINE), ".3f")),
    Column("of vLLM's", unless_void(ratio(VLLM), ".3f")),
    Column("in", lambda record: record["cell"].get("vllm"), left=True),
    Column("control", control, ".3f"),
]
NOTES = [
    "different: finished answers that a plain engine in another process does not give, of all that finished",
    "MiB grown: the server's memory in the last third of the time over that in the first, after a fifth that is left "
    "out; median [95 % interval]",
    "token: time between the first and the last token of a stream, of each token, as its client sees it; p99: median "
    "[95 % interval] of those of twenty parts of the time",
    "of offline: rate over that of the same engine given the same prompts at once without a server, paired repeats",
]
