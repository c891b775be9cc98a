"""In which order rows are read: a shuffle that needs neither state nor memory. Knows nothing of what a row holds.

A Feistel network over the smallest even number of bits that holds the range, walked until it falls into the range.
"""

from dataclasses import dataclass

ROUNDS = 8
WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A bijection of range(size), one for every key."""

    size: int
    seed: int
    epoch: int

    def __getitem__(self, index: int) -> int:
        """What stands at ``index``."""
        assert 0 <= index < self.size
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        found = self._scramble(index, half)
        while found >= self.size:  # under four turns on average, for the network covers less than four times the range
            found = self._scramble(found, half)
        return found

    def _scramble(self, value: int, half: int) -> int:
        mask = (1 << half) - 1
        left, right = value >> half, value & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (mixed(self.seed, self.epoch, turn, right) & mask)
        return left << half | right


def mixed(*words: int) -> int:
    """64 bits that depend on every bit of ``words``: the finaliser of SplitMix64 over each in turn."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ (word & WORD)) + 0x9E3779B97F4A7C15 & WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
        state ^= state >> 31
    return state
