"""What the drafter's own distributions say of acceptance: by how peaked they are (core/early_stop.level_of)."""

from typing import final

from paceline.core.early_stop import LEVELS, noted_levels

EVEN = 8  # the level that begins where the likeliest token has a probability of a half


@final
class Confidence:
    """The share of draft tokens accepted by the level of their distributions, the tokens before them being accepted.

    Before anything is known it is the probability of the likeliest token.
    """

    KEEP = 0.998  # of the weight of former tokens of a level, with each
    WEIGHT = 6.0  # of the guess, in tokens

    def __init__(self) -> None:
        odds = [2 ** ((level + 0.5 - EVEN) / 2) for level in range(1, LEVELS + 1)]
        self._guesses = [one / (1 + one) for one in odds]
        self._accepted = [0.0] * LEVELS
        self._tried = [0.0] * LEVELS
        self.acceptance: tuple[float, ...] = ()  # by level, from the lowest
        self.refresh()

    def add(self, note: int, *, num_accepted: int, num_drafted: int) -> None:
        """Learn from a row's note; tokens after the first rejected one say nothing."""
        for index, level in enumerate(noted_levels(note, min(num_drafted, num_accepted + 1))):
            at = level - 1
            self._tried[at] = self.KEEP * self._tried[at] + 1
            self._accepted[at] = self.KEEP * self._accepted[at] + (index < num_accepted)

    def refresh(self) -> None:
        """Compute ``acceptance`` from what was counted."""
        counts = zip(self._guesses, self._accepted, self._tried, strict=True)
        self.acceptance = tuple(
            (self.WEIGHT * guess + accepted) / (self.WEIGHT + tried) for guess, accepted, tried in counts
        )
