"""Times all sides of every batch size in turn, within a given time, and keeps what was found."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.inflate.on_device import Models
from benchmarks.study import (
    Progress,
    check_counts,
)
from paceline.bench.generation import decoding
from paceline.bench.peers.transformers import ASSISTED, transformers_decoding
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import RawFile
from paceline.bench.runner import Configuration, Measured, compare
from paceline.bench.statistics import is_void

KIND = "device"
PLAIN, CONTROL, DRAFTED = "plain", "control", "drafted"
BATCHES = (1, 8, 32, 4, 16)  # those that matter most first, in case the time runs out
FEWEST_PROMPTS = 4  # a batch has as many as it has rows, and these at least
MOST_REPEATS, FEWEST_REPEATS = 7, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is timed. Raises ValueError for counts below 1 and no time."""

    batches: Sequence[int] = BATCHES
    draft_tokens: Sequence[int] = (3, 5)
    num_tokens: int = 48  # of every output
    minutes: float = 6.0  # for all batch sizes; what does not fit is left out, and said

    def __post_init__(self) -> None:
        check_counts(batch=self.batches, k=self.draft_tokens, tokens=self.num_tokens)
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes}: give more than 0")


def run_plan(
    plan: Plan,
    *,
    models: Models,
    prompts: Sequence[Sequence[int]],
    raw: RawFile,
    run: str,
    say: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> list[int]:
    """Put into ``raw`` what it lacks of ``plan``; the batch sizes that there was no time for.

    Every side runs once to warm up. What that took says how many repeats fit into an even share of the time that is
    left: 3 at least, or the batch size is left out, and 7 at most.
    """
    until = clock() + 60 * plan.minutes
    identity = {"kind": KIND, "run": run}
    waiting = [batch for batch in dict.fromkeys(plan.batches) if not raw.has({**identity, "batch": batch})]
    left_out: list[int] = []
    while waiting:
        batch = waiting.pop(0)
        sides = _sides(batch, plan, models, prompts)
        say(f"batch {batch}: warming up")
        begun = clock()
        for side in sides:
            side.run()
        once = clock() - begun
        left = until - clock()
        repeats = min(MOST_REPEATS, max(FEWEST_REPEATS, int(left / (len(waiting) + 1) / max(once, 1e-9))))
        if repeats * once > left:
            left_out.append(batch)
            continue
        compared = compare(
            sides,
            baseline=PLAIN,
            repeats=repeats,
            warm_up=0,
            progress=lambda what, batch=batch: say(f"batch {batch}: {what}"),
        )
        raw.append(
            {
                **identity,
                "batch": batch,
                "prompts": [len(prompt) for prompt in _chosen(prompts, batch)],
                "num_tokens": plan.num_tokens,
                "void": is_void(compared[CONTROL].speedup.values),
                "sides": {measured.name: _record(measured) for measured in compared.measured},
            }
        )
    return left_out


def _chosen(prompts: Sequence[Sequence[int]], batch: int) -> list[Sequence[int]]:
    count = max(FEWEST_PROMPTS, batch) // batch * batch
    return [prompts[at % len(prompts)] for at in range(count)]


def _sides(batch: int, plan: Plan, models: Models, prompts: Sequence[Sequence[int]]) -> list[Configuration]:
    chosen = _chosen(prompts, batch)

    given = {"prompts": chosen, "num_tokens": plan.num_tokens, "batch_size": batch, "temperature": 0.0, "seed": 0}

    def ours(name: str, count: int = 0) -> Configuration:
        draft = models.draft if count else None
        return decoding(name, target=models.target, drafter=draft, num_draft_tokens=count, **given)

    def theirs(name: str, kind: str, count: int = 0) -> Configuration:
        peer = {"model": models.peer, "draft": models.peer_draft}
        return transformers_decoding(name, **peer, kind=kind, num_draft_tokens=count, **given)

    sides = [ours(PLAIN), *(ours(f"{DRAFTED} k={count}", count) for count in plan.draft_tokens), theirs(PEER, PEER)]
    if batch == 1:  # it assists one prompt at a time
        sides += [theirs(f"{ASSISTED} k={count}", ASSISTED, count) for count in plan.draft_tokens]
    return [*sides, ours(CONTROL)]


def _record(measured: Measured) -> dict[str, Any]:
    sample = measured.sample
    phases = [one.phases for one in measured.samples if one.phases is not None]
    return {
        "seconds": list(measured.seconds.values),
        "tokens": sample.num_tokens,
        "steps": None if sample.summary is None else sample.summary.steps,
        "drafted": None if sample.summary is None else sum(sample.summary.drafted),
        "accepted": None if sample.summary is None else sum(sample.summary.accepted),
        "phases": [list(one) for one in phases],
        "identical": measured.identical,
    }
