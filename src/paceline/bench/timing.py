"""Times calls in turn, and how fast memory is read. Knows nothing of what it calls."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

WORKING_SET = 256 << 20  # bytes, larger than the caches of most processors
READS = 8  # passes over it

Clock = Callable[[], float]


@contextmanager
def heap_set_aside() -> Iterator[None]:
    """Leave what is there, garbage included, out of garbage collections within: with torch and transformers imported,
    one of all objects takes 0.1 to 0.2 s, and meets one side or another. Takes no time itself.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@heap_set_aside()
@torch.inference_mode()
def time_in_turn(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    seconds: float,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
    before: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, tuple[float, ...]]:
    """Seconds of every repeat of each of ``calls``.

    Each repeat runs all of them once, in an order that turns round from repeat to repeat, so that a machine that slows
    down favours none. There are ``repeats`` at least, and more until all together have taken ``seconds``. What
    ``before`` has under a call's name runs before each of its turns, untimed.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    prepare = before or {}
    total, repeat = 0.0, -warm_up
    while repeat < repeats or total < seconds:
        for name in calls if repeat % 2 == 0 else reversed(list(calls)):
            if name in prepare:
                prepare[name]()
            start = clock()
            calls[name]()
            elapsed = clock() - start
            if repeat >= 0:
                taken[name].append(elapsed)
                total += elapsed
        repeat += 1
    return {name: tuple(values) for name, values in taken.items()}


@torch.inference_mode()
def read_rate(*, working_set: int = WORKING_SET, reads: int = READS, clock: Clock = time.perf_counter) -> float:
    """Bytes per second at which memory is read on torch's threads: the best pass of the fastest of three reductions."""
    source = torch.ones(working_set // 4, dtype=torch.float32)  # written, or the system may map one page of zeros
    whole = source.view(torch.int32)
    taken = time_in_turn(
        {"sum": source.sum, "max": source.amax, "whole": whole.amax}, repeats=reads, seconds=0.0, clock=clock
    )
    return source.nbytes / min(map(min, taken.values()))
