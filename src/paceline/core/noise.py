"""Counter-based random numbers: every choice is a function of its key, never of a generator's history.

Philox4x32-10 (Salmon et al., SC'11) in 64-bit integer tensor arithmetic. V vocabulary; keys have any shape [...].
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Stream(IntEnum):
    """The purpose of a random number. Numbers of different streams are independent."""

    TARGET = 0  # the target's own pick at a position; the only stream that steps and drafters share
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Names one random choice; the fields broadcast against each other.

    Under TARGET, ``step``, ``node`` and ``stage`` stay 0: the choice depends on the row's seed and the position alone.
    Every other stream carries the row's step and the node, so that a position drafted again, a sibling or a nested
    stage never reuses noise.
    """

    seed: Tensor  # int64, 0 <= seed < 2**63
    position: Tensor  # int64, absolute index of the token being chosen
    stream: Stream
    step: Tensor | int = 0
    node: Tensor | int = 0  # < 2**20
    stage: int = 0  # of the batch, < 2**8: batches of drafters that are verified before the target have others than 0


class Noise(Protocol):
    """A source of keyed choices."""

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        """Index drawn with probability proportional to exp(scores) over the last axis; key shape = scores' less it."""
        ...

    def choose_at(self, scores: Tensor, key: Key, at: Tensor) -> Tensor:
        """``choose`` for ``scores`` [R, n, V] where the key of entry [b, i] is the one at [b, at[b, i]] of [R, m]."""
        ...

    def draw(self, weights: Tensor, key: Key) -> Tensor:
        """Index drawn with probability proportional to ``weights`` [..., V], none below 0; no race to share."""
        ...

    def order(self, scores: Tensor, key: Key, count: int) -> Tensor:
        """The first ``count`` finishers [..., count] of the race that ``choose`` returns the winner of.

        They are draws without replacement, in draw order. Those with a score of -inf come last, in any order.
        """
        ...

    def coin(self, numerator: Tensor, denominator: Tensor, key: Key) -> Tensor:
        """True with probability min(1, numerator / denominator); never if the numerator is 0."""
        ...


class RandomKernel(Protocol):
    """A faster implementation of what Philox draws, with the same results."""

    dtypes: frozenset[torch.dtype]  # of the uniforms and scores that it takes

    def bits(self, key: Key, count: int) -> Tensor: ...

    def uniforms(self, key: Key, count: int, dtype: torch.dtype) -> Tensor: ...

    def choose(self, scores: Tensor, key: Key) -> Tensor: ...


class Philox:
    """The noise of every real run, drawn by ``kernel`` where there is one."""

    _kernel: RandomKernel | None = None

    def __init__(self, kernel: RandomKernel | None = None) -> None:
        self._kernel = kernel

    def bits(self, key: Key, count: int) -> Tensor:
        """``count`` words [..., count], int64 holding 32 random bits each."""
        if self._kernel is not None:
            return self._kernel.bits(key, count)
        zero = key.seed * 0 + key.position * 0 + key.step * 0 + key.node * 0  # the shape that the fields broadcast to
        group = torch.arange((count + 3) // 4, device=zero.device)
        position, step, node = ((zero + field)[..., None] + group * 0 for field in (key.position, key.step, key.node))
        seed = (zero + key.seed)[..., None]
        counter = (position * 0 + group, position & MASK, step & MASK, tag_of(key) | node)
        words = philox(counter, (seed & MASK, (seed >> 32) & MASK))
        return torch.stack(words, dim=-1).flatten(-2)[..., :count]

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        """The winner of a race of exponentials: argmin E_v / p_v with E = -log1p(-u), as argmax in logarithms.

        Small exponentials win, and they come from small u, where 32 bits in floating point stay exact.
        """
        if self._kernel is not None and scores.dtype in self._kernel.dtypes:
            return self._kernel.choose(scores, key)
        return self._race(scores, key).argmax(-1)

    def choose_at(self, scores: Tensor, key: Key, at: Tensor) -> Tensor:
        """Races of entries with the same key have the same times, which are made once."""
        times = self._times(key, scores.shape[-1], scores.dtype)  # [R, m, V]
        rows = torch.arange(len(scores), device=scores.device)
        # One by one: what a race passes through stays in the cache.
        winners = [(scores[:, i] - times[rows, at[:, i]]).argmax(-1) for i in range(scores.shape[1])]
        return torch.stack(winners, dim=1)

    def draw(self, weights: Tensor, key: Key) -> Tensor:
        """The inverse of the distribution function at one number of 53 bits; a weight of 0 is never met."""
        reach = weights.double().cumsum(-1)
        high, low = self.bits(key, 2).unbind(-1)
        goal = ((high << 21) | (low >> 11)).double()[..., None] * 2.0**-53 * reach[..., -1:]
        return torch.searchsorted(reach, goal, right=True)[..., 0].clamp(max=weights.shape[-1] - 1)

    def order(self, scores: Tensor, key: Key, count: int) -> Tensor:
        """The race's ranking as far as ``count``: the next finisher among the rest is a draw from their
        distribution.
        """
        if count == 1:
            return self.choose(scores, key)[..., None]
        return self._race(scores, key).topk(count, dim=-1).indices

    def _race(self, scores: Tensor, key: Key) -> Tensor:
        """log(p_v / E_v), up to a constant."""
        return scores - self._times(key, scores.shape[-1], scores.dtype)

    def _times(self, key: Key, count: int, dtype: torch.dtype) -> Tensor:
        """log(E_v) of ``count`` runners."""
        exponential = self.uniforms(key, count, dtype).neg_().log1p_().neg_()
        return exponential.log_()

    def uniforms(self, key: Key, count: int, dtype: torch.dtype) -> Tensor:
        """``count`` new numbers [..., count] between 0 and 1, neither of them included."""
        if self._kernel is not None and dtype in self._kernel.dtypes:
            return self._kernel.uniforms(key, count, dtype)
        return ((self.bits(key, count).to(dtype) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)

    def coin(self, numerator: Tensor, denominator: Tensor, key: Key) -> Tensor:
        """``u * denominator < numerator``, strictly and without a division: numerator 0 never passes."""
        u = (self.bits(key, 1)[..., 0].to(numerator.dtype) * 2.0**-32).clamp(max=1 - 2.0**-24)
        return u * denominator < numerator


def tag_of(key: Key) -> int:
    """What the stream and the stage are in the last word of the counter, beside the lane."""
    return (int(key.stream) << 28) | (key.stage << 20)


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds over four 32-bit counter words and two key words, all held in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    return c0, c1, c2, c3


def _multiply(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product. The constant enters less 2**32, so that int64 never overflows."""
    product = word * (constant - (1 << 32))
    return (product >> 32) + word, product & MASK


def split_seed(seed: int, index: int) -> int:
    """A seed for the ``index``-th of several sequences that share one seed; index 0 keeps it (splitmix64)."""
    if index == 0:
        return seed
    mask = (1 << 64) - 1
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
