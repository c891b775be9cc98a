"""What steps with drafts of a head cost, timed in the engine that serves; whether drafts are accepted does not matter.

k draft tokens.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from paceline.api.draft_heads import build_head_drafter
from paceline.api.engine import Engine
from paceline.api.loading import Loaded
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.drafters.base import Drafter
from paceline.drafters.none import NoDrafter

LENGTHS = (1, 2, 4, 8)  # draft tokens that are timed
ROUNDS, SECONDS = 5, 0.5  # of each length, at least
WARM_UP, STEPS = 2, 4  # of a round, and those that are timed

Clock = Callable[[], float]


def steady_clock(device: torch.device) -> Clock:
    """Processor time on a CPU with one thread, which leaves other programs out; else wall time."""
    single = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if single else time.perf_counter


def measure_costs(target: Loaded, head: Path, *, request: Request, clock: Clock) -> tuple[float, ...]:
    """Seconds of a step with k = 1, 2, ... over those of a plain step, in one row that begins as ``request``.

    The last k is that of ``LENGTHS``, or of the longest draft of the head in the directory ``head``. Each of
    ``LENGTHS`` is timed in turns with plain steps; between them, costs are linear. Raises ValueError where ``target``
    has no room for the steps.
    """
    drafter = build_head_drafter(head, target=target)
    longest = drafter.max_nodes(max(LENGTHS)) - 1
    timed = sorted({min(k, longest) for k in LENGTHS})
    plain = _Steps(target, NoDrafter(), 0, request, clock)
    costs: list[float] = []
    for k in timed:
        drafted = _Steps(target, drafter, k, request, clock)
        rounds: list[tuple[float, float]] = []
        while len(rounds) < ROUNDS or sum(map(sum, rounds)) < SECONDS:
            rounds.append((plain.seconds(), drafted.seconds()))
        before, after = (median(seconds) for seconds in zip(*rounds, strict=True))
        costs.append(after / before)
    return tuple(np.interp(range(1, longest + 1), (0, *timed), (1.0, *costs)).tolist())


class _Steps:
    """Steps with ``k`` draft tokens each."""

    def __init__(self, target: Loaded, drafter: Drafter, k: int, request: Request, clock: Clock) -> None:
        self.request = replace(request, max_tokens=1 + (WARM_UP + STEPS) * (1 + k), stop_tokens=())
        self.clock = clock
        self.scheduler = Engine(
            target,
            drafter=drafter,
            num_draft_tokens=Fixed(k),
            batch_size=1,
            max_length=len(request.tokens) + self.request.max_tokens,
            profile=None,
        ).scheduler

    def seconds(self) -> float:
        """Of ``STEPS`` steps."""
        ticket = self.scheduler.submit(self.request)
        for _ in range(WARM_UP):
            self.scheduler.advance()
        start = self.clock()
        for _ in range(STEPS):
            self.scheduler.advance()
        taken = self.clock() - start
        self.scheduler.cancel(ticket)
        self.scheduler.forget(ticket)
        return taken
