"""The order in which rows are read: a permutation without state or memory.

A Feistel network over the smallest even number of bits that covers the range, repeated until the value is in the range.
"""

from dataclasses import dataclass

ROUNDS = 8
WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A permutation of range(size), keyed by seed and epoch."""

    size: int
    seed: int
    epoch: int

    def __getitem__(self, index: int) -> int:
        """The value at ``index``."""
        assert 0 <= index < self.size
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        value = self._permute(index, half)
        while value >= self.size:  # under four times on average: the network covers less than four times the range
            value = self._permute(value, half)
        return value

    def _permute(self, value: int, half: int) -> int:
        mask = (1 << half) - 1
        left, right = value >> half, value & mask
        for index in range(ROUNDS):
            left, right = right, left ^ (hash64(self.seed, self.epoch, index, right) & mask)
        return left << half | right


def hash64(*words: int) -> int:
    """A 64-bit hash of ``words``: the finaliser of SplitMix64 over each in turn."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ (word & WORD)) + 0x9E3779B97F4A7C15 & WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
        state ^= state >> 31
    return state
