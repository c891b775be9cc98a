"""What ragged lengths cost in memory: slots reserved, slots that were ever written, slots in use. Runs no model.

Requests of log-normal prompts and answers pass through rows as the scheduler lets them, each row one token a step. A
row reserves the longest sequence of all. The cache itself is then filled as the rows were, to see what the process
takes.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks.decoders import resident
from benchmarks.study import check_counts
from paceline.models.base import LM


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """``num_requests`` over ``rows`` rows; the medians are in tokens, ``spread`` is that of their logarithms.

    Raises ValueError for counts below 1 and a negative spread.
    """

    name: str
    rows: int
    num_requests: int
    prompt: int
    answer: int
    spread: float
    longest: int  # prompt and answer together are cut here

    def __post_init__(self) -> None:
        check_counts(rows=self.rows, num_requests=self.num_requests, prompt=self.prompt, answer=self.answer)
        if self.longest < 2 or self.spread < 0:
            raise ValueError(f"longest={self.longest}, spread={self.spread}: give at least 2, and 0 or more")

    def sequences(self, *, seed: int = 0) -> list[tuple[int, int]]:
        """Prompt and whole sequence of every request, in tokens."""
        random = np.random.default_rng(seed)
        drawn = np.exp(random.normal(0.0, self.spread, size=(self.num_requests, 2))) * (self.prompt, self.answer)
        prompts = drawn[:, 0].round().astype(int).clip(1, self.longest - 1)
        answers = drawn[:, 1].round().astype(int).clip(1)
        return [(int(one), min(self.longest, int(one + more))) for one, more in zip(prompts, answers, strict=True)]


EVEN = Mix(name="even", rows=8, num_requests=64, prompt=200, answer=200, spread=0.0, longest=2048)
CHAT = Mix(name="chat", rows=8, num_requests=64, prompt=200, answer=200, spread=0.8, longest=2048)
ONE_LONG = Mix(name="one long", rows=8, num_requests=8, prompt=100, answer=100, spread=1.5, longest=2048)
MIXES = (EVEN, CHAT, ONE_LONG)


def occupy(sequences: Sequence[tuple[int, int]], rows: int) -> Iterator[list[int]]:
    """Tokens in every row, step by step; 0 in a row that has nothing to do.

    A row takes the next waiting request as soon as its own has ended.
    """
    waiting = list(reversed(sequences))
    length, end = [0] * rows, [0] * rows
    while True:
        for row in range(rows):
            if length[row] >= end[row]:
                length[row], end[row] = waiting.pop() if waiting else (0, 0)
        if not any(end):
            return
        yield list(length)
        length = [tokens + 1 if tokens < last else tokens for tokens, last in zip(length, end, strict=True)]


@torch.inference_mode()
def measure_ragged(mix: Mix, target: LM) -> dict[str, Any]:
    """Slots of the mix, averaged over its steps, and the bytes that its cache takes when it is as full as it ever was.

    ``touched_slots`` counts, for every row, the longest sequence it has held.
    """
    sequences = mix.sequences()
    steps = list(occupy(sequences, mix.rows))
    touched = [max(lengths) for lengths in zip(*steps, strict=True)]
    capacity = max(end for _, end in sequences) + 1
    gc.collect()
    before = resident()
    storage = target.new_cache(mix.rows, capacity)
    for row, length in enumerate(touched):
        storage.keys[:, row, :length] = 1
        storage.values[:, row, :length] = 1
    grown = resident() - before
    return {
        "reserved_slots": mix.rows * capacity,
        "used_slots": mean(map(sum, steps)),
        "most_used_slots": max(map(sum, steps)),
        "touched_slots": sum(touched),
        "slot_bytes": target.slot_bytes,
        "cache_bytes": storage.keys.nbytes + storage.values.nbytes,
        "resident_bytes": grown,
    }
