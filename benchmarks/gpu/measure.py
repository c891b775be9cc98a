"""Times all sides of every batch size in turn, within a given time, and keeps what was found. Draws no figure."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.models import Models
from paceline.bench.own import continuing
from paceline.bench.peers.transformers import ASSISTED, transformers_decoding
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import DEVICE, RawFile
from paceline.bench.runner import Configuration, Measured, compare
from paceline.bench.statistics import is_void

PLAIN, CONTROL = "plain", "control"
BATCHES = (1, 8, 32, 4, 16)  # those that matter most first, in case the time runs out
DRAFT_TOKENS = (3, 5)
NUM_PROMPTS = 4  # at least; a batch has as many as it has rows
MOST_REPEATS, FEWEST_REPEATS = 7, 3

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is timed. Raises ValueError for counts below 1 and no time."""

    batches: Sequence[int] = BATCHES
    draft_tokens: Sequence[int] = DRAFT_TOKENS
    num_tokens: int = 48  # of every text
    minutes: float = 6.0  # for all batch sizes; what does not fit is left out, and said

    def __post_init__(self) -> None:
        for name, values in (("batch", self.batches), ("k", self.draft_tokens), ("tokens", [self.num_tokens])):
            if not values or min(values) < 1:
                raise ValueError(f"{name}={list(values)}: give numbers of at least 1")
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes}: give more than 0")


def drafted(num_draft_tokens: int) -> str:
    """What our drafted side is called."""
    return f"drafted k={num_draft_tokens}"


def assisted(num_draft_tokens: int) -> str:
    """What transformers' assisted side is called."""
    return f"{ASSISTED} k={num_draft_tokens}"


def run_course(
    course: Course,
    *,
    models: Models,
    prompts: Sequence[Sequence[int]],
    raw: RawFile,
    run: str,
    say: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> list[int]:
    """Put into ``raw`` what it lacks of ``course``; the batch sizes that there was no time for.

    Every side runs once to warm up. What that took says how many repeats fit into an even share of the time that is
    left: 3 at least, or the batch size is left out, and 7 at most.
    """
    until = clock() + 60 * course.minutes
    waiting = [batch for batch in dict.fromkeys(course.batches) if not _has(raw, run, batch)]
    left_out: list[int] = []
    while waiting:
        batch = waiting.pop(0)
        sides = _sides(batch, course, models, prompts)
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
                "kind": DEVICE,
                "run": run,
                "batch": batch,
                "prompts": [len(prompt) for prompt in _chosen(prompts, batch)],
                "num_tokens": course.num_tokens,
                "void": is_void(compared[CONTROL].speedup.values),
                "sides": {measured.name: _record(measured) for measured in compared.measured},
            }
        )
    return left_out


def _has(raw: RawFile, run: str, batch: int) -> bool:
    return any(
        record["kind"] == DEVICE and record["run"] == run and record["batch"] == batch and not record["void"]
        for record in raw.records
    )


def _chosen(prompts: Sequence[Sequence[int]], batch: int) -> list[Sequence[int]]:
    count = max(NUM_PROMPTS, batch) // batch * batch
    return [prompts[at % len(prompts)] for at in range(count)]


def _sides(batch: int, course: Course, models: Models, prompts: Sequence[Sequence[int]]) -> list[Configuration]:
    chosen = _chosen(prompts, batch)

    def own(name: str, num_draft_tokens: int = 0) -> Configuration:
        return continuing(
            name,
            target=models.target,
            prompts=chosen,
            num_tokens=course.num_tokens,
            drafter=models.draft if num_draft_tokens else None,
            num_draft_tokens=num_draft_tokens,
            batch_size=batch,
            temperature=0.0,
            seed=0,
        )

    def other(name: str, kind: str, num_draft_tokens: int = 0) -> Configuration:
        return transformers_decoding(
            name,
            model=models.peer,
            draft=models.peer_draft,
            kind=kind,
            prompts=chosen,
            num_tokens=course.num_tokens,
            num_draft_tokens=num_draft_tokens,
            batch_size=batch,
            temperature=0.0,
            seed=0,
        )

    sides = [own(PLAIN), *(own(drafted(count), count) for count in course.draft_tokens), other(PEER, PEER)]
    if batch == 1:  # it assists one text at a time
        sides += [other(assisted(count), ASSISTED, count) for count in course.draft_tokens]
    return [*sides, own(CONTROL)]


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
