"""Whether drafting is as fast as was expected of it.

The drafts that are chosen are those that seem best, so what is expected of them is too much on average; and what a step
costs beside others may differ from what it costs by itself. Both are found out by what drafted steps turned out to be.
"""

from typing import final

WINDOW = 256.0  # steps of a row that are remembered
FIRST = 64.0  # plain steps of a row that weigh for expectations being right
PLAIN_WINDOW = 1024.0  # plain steps of a row, over which what is remembered fades
DISTURBED = 1.5  # a step that took so many times what was expected counts as no more
HIGHEST = 1.1


@final
class Calibration:
    """What drafted steps turned out to be, over what was expected of them; steps of many rows say more."""

    def __init__(self) -> None:
        self._expected = self._found = 0.0  # plain steps of a row, that drafted steps were worth

    @property
    def factor(self) -> float:
        """By what an expected speed-up is to be multiplied."""
        return min((FIRST + self._found) / (FIRST + self._expected), HIGHEST)

    def add(self, *, rows: int, tokens: float, cost: float, speedup: float, expected_cost: float) -> None:
        """A drafted step gave ``tokens`` per row and took ``cost`` plain steps; expected were a speed-up and a cost."""
        keep = 1.0 - rows / (rows + WINDOW)
        self._found = keep * self._found + rows * tokens
        self._expected = keep * self._expected + rows * speedup * min(cost, DISTURBED * expected_cost)

    def fade(self, steps: int) -> None:
        """Remember less, after so many plain steps of a row."""
        keep = 1.0 / (1.0 + steps / PLAIN_WINDOW)
        self._expected *= keep
        self._found *= keep
