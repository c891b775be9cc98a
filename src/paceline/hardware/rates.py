"""Measures memory bandwidth and the speed of matrix products with few rows.

Every figure is the best of several passes, because other work on the machine can only make a pass slower. Passes that
are compared with each other are interleaved, so that other work slows them equally.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

ROWS = (1, 2, 4, 6, 8, 16, 32)
HIDDEN, INNER = 2048, 5632  # of a feed-forward layer of about a billion parameters
SMALLEST = 256  # smallest hidden size of the measured layers
WORKING_SET = 512 << 20  # bytes, larger than the caches of most processors
MANY_ROWS = 256  # at which products are compute-bound
REPEATS, SECONDS = 5, 0.2  # fewest passes of each measurement, and least total seconds

Progress = Callable[[str], None]
MakeProduct = Callable[[Tensor], Callable[[Tensor], Tensor]]  # weight [out, in] to a function of rows [B, in]


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Matrix products in one precision: weights [out, in] times ``rows`` rows, for each number of rows."""

    itemsize: float  # bytes of a weight, scales included
    rows: tuple[int, ...]  # ascending
    bytes_per_second: tuple[float, ...]  # of weights
    peak: float  # operations per second at many rows, where products are compute-bound

    @property
    def flops(self) -> tuple[float, ...]:
        """Floating-point operations per second, two for each weight and row."""
        pairs = zip(self.rows, self.bytes_per_second, strict=True)
        return tuple(2 * rows * speed / self.itemsize for rows, speed in pairs)

    def seconds_per_byte(self, rows: int) -> float:
        """Seconds per byte of weights: interpolated linearly between measured rows, and proportional beyond them."""
        cost = [1 / speed for speed in self.bytes_per_second]
        if rows >= self.rows[-1]:
            return cost[-1] * rows / self.rows[-1]
        upper = next(at for at, measured in enumerate(self.rows) if measured >= rows)
        if self.rows[upper] == rows or upper == 0:
            return cost[upper]
        share = (rows - self.rows[upper - 1]) / (self.rows[upper] - self.rows[upper - 1])
        return cost[upper - 1] + share * (cost[upper] - cost[upper - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a device for a working set of this size, on this many threads."""

    device: str
    num_threads: int
    working_set: int  # bytes
    read: float  # bytes per second
    copy: float  # bytes read and written per second
    products: dict[str, Products]  # by name of the precision; the products that decoding runs


def measure_rates(
    *,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    gemm_for: MakeProduct,
    working_set: int = WORKING_SET,
    rows: Sequence[int] = ROWS,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Rates:
    """Measure a device with torch's current threads; takes some seconds and about twice the working set in memory.

    ``gemm_for`` makes the matrix products that are timed. ``working_set`` is in bytes: with the size
    of a model, the rates hold for that model even if it fits into a cache. ``clock`` returns seconds; the clock of the
    process excludes other programs, for one thread.

    Raises ValueError for a working set below 1 MiB, and for numbers of rows that are not ascending from 1 on.
    """
    if working_set < 1 << 20:
        raise ValueError(f"working_set={working_set}: give at least {1 << 20} bytes, or calls are measured, not memory")
    if not rows or rows[0] < 1 or list(rows) != sorted(set(rows)):
        raise ValueError(f"rows={list(rows)}: give ascending numbers, at least 1")
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: give at least 1")
    timer = PassClock(device, repeats, seconds, clock)
    say = progress or (lambda _: None)
    say("reading and copying memory")
    read, copy = _move(working_set, device, PassClock(device, 4 * repeats, seconds, clock))  # these passes are short
    products: dict[str, Products] = {}
    for dtype in dict.fromkeys(dtypes):
        say(f"multiplying in {dtype_name(dtype)}")
        layers = list(_layers(working_set, dtype, device, gemm_for))
        speeds = _multiply(layers, rows, timer)
        most = 2 * MANY_ROWS * _multiply(layers[:2], [MANY_ROWS], timer)[0] / dtype.itemsize
        at_rows = (2 * count * speed / dtype.itemsize for count, speed in zip(rows, speeds, strict=True))
        products[dtype_name(dtype)] = Products(
            itemsize=dtype.itemsize, rows=tuple(rows), bytes_per_second=speeds, peak=max(most, *at_rows)
        )
        read = max(read, speeds[0])  # a product reads memory too, possibly faster
    return Rates(
        device=str(device),
        num_threads=torch.get_num_threads(),
        working_set=working_set,
        read=read,
        copy=copy,
        products=products,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _move(working_set: int, device: torch.device, clock: "PassClock") -> tuple[float, float]:
    """Bytes per second of reading, by the fastest of several reductions, and of copying, both ways added."""
    # Written, not only allocated: the system may map unwritten memory to a single page of zeros.
    source = torch.ones(working_set // 4, dtype=torch.float32, device=device)
    target, whole = torch.empty_like(source), source.view(torch.int32)
    size = source.numel() * source.itemsize
    *reading, copying = clock.best([source.sum, source.amax, whole.amax, lambda: target.copy_(source)])
    return size / min(reading), 2 * size / copying


class _Layer:
    """One matrix as decoding multiplies with it."""

    def __init__(self, weight: Tensor, gemm_for: MakeProduct) -> None:
        self.inner, self.dtype, self.device = weight.shape[1], weight.dtype, weight.device
        self.size = weight.numel() * weight.itemsize  # bytes
        self.multiply = gemm_for(weight)


def reading(source: Tensor, *, repeats: int = REPEATS, seconds: float = SECONDS) -> float:
    """Bytes per second of reading ``source``, contiguous; memory bandwidth may depend on its location, as with NUMA."""
    whole = source.view(torch.uint8).flatten()
    words = whole[: len(whole) // 4 * 4].view(torch.int32)
    clock = PassClock(source.device, repeats, seconds)
    return words.nbytes / min(clock.best([words.amax, words.amin]))


def _layers(working_set: int, dtype: torch.dtype, device: torch.device, gemm_for: MakeProduct) -> Iterator[_Layer]:
    """Up and down projections of feed-forward layers, about ``working_set`` bytes together, at least two pairs."""
    hidden, inner = HIDDEN, INNER
    while hidden > SMALLEST and 4 * hidden * inner * dtype.itemsize > working_set:
        hidden, inner = hidden // 2, inner // 2
    num_pairs = max(2, round(working_set / (2 * hidden * inner * dtype.itemsize)))
    for shape in [(inner, hidden), (hidden, inner)] * num_pairs:
        yield _Layer(torch.full(shape, 1 / shape[1], dtype=dtype, device=device), gemm_for)


def _multiply(layers: list[_Layer], rows: Sequence[int], clock: "PassClock") -> tuple[float, ...]:
    """Bytes of weights per second, the layers one after another, for each number of rows."""

    def passing(count: int) -> Callable[[], object]:
        start = torch.ones(count, layers[0].inner, dtype=layers[0].dtype, device=layers[0].device)
        return lambda: reduce(lambda x, layer: layer.multiply(x), layers, start)

    size = sum(layer.size for layer in layers)
    return tuple(size / seconds for seconds in clock.best([passing(count) for count in rows]))


class PassClock:
    """Times passes on a device."""

    def __init__(
        self, device: torch.device, repeats: int, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device, self._repeats, self._seconds, self._clock = device, repeats, seconds, clock

    def best(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of the fastest pass of each of ``runs``, which take turns, after one pass that is not counted."""
        for run in runs:
            self._time(run)
        rounds: list[list[float]] = []
        while len(rounds) < self._repeats or sum(map(sum, rounds)) < self._seconds:
            rounds.append([self._time(run) for run in runs])
        return [min(taken) for taken in zip(*rounds, strict=True)]

    @torch.inference_mode()
    def _time(self, run: Callable[[], object]) -> float:
        self._wait()
        start = self._clock()
        run()
        self._wait()
        return self._clock() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
