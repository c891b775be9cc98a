"""How likely draft tokens are accepted, by depth: of one request, and of all recent ones of a drafter.

An acceptance is conditional on the token before being accepted; deeper tokens of a draft say nothing once one is
rejected.
"""

from typing import final

FIRST_GUESS = 0.6  # of a drafter that nothing is known of
LEAST, MOST = 0.01, 0.99  # no acceptance is taken for impossible or certain


@final
class Counts:
    """Accepted and submitted tokens by depth, and steps that were asked for a draft and gave one, all fading."""

    def __init__(self, max_depth: int) -> None:
        self.accepted = [0.0] * max_depth  # by depth - 1
        self.tried = [0.0] * max_depth
        self.asked = self.offered = 0.0

    def add(self, *, num_accepted: int, depth: int, keep: float) -> None:
        """Add a step whose draft was ``depth`` deep (0: the drafter had none); former ones weigh ``keep`` of before."""
        self.fade(keep)
        self.asked += 1
        self.offered += depth > 0
        for index in range(min(depth, num_accepted + 1)):
            self.tried[index] += 1
            self.accepted[index] += index < num_accepted

    def fade(self, keep: float) -> None:
        """Let all steps so far weigh ``keep`` of what they did."""
        self.accepted = [keep * count for count in self.accepted]
        self.tried = [keep * count for count in self.tried]
        self.asked *= keep
        self.offered *= keep


@final
class Pool:
    """The acceptance of a drafter over all recent requests: what a new request is expected to have."""

    KEEP = 0.995  # of the weight of former steps, with each
    WEIGHT = 4.0  # of the guess, in steps

    def __init__(self, max_depth: int) -> None:
        self.counts = Counts(max_depth)
        self.rates: list[float] = []  # by depth - 1
        self.offers = 1.0  # share of the steps that had a draft when asked for one
        self.refresh()

    def refresh(self) -> None:
        """Compute ``rates`` and ``offers`` from the counts; a depth is first expected to be like the one above."""
        counts, guess = self.counts, FIRST_GUESS
        self.rates = []
        for accepted, tried in zip(counts.accepted, counts.tried, strict=True):
            guess = (self.WEIGHT * guess + accepted) / (self.WEIGHT + tried)
            self.rates.append(guess)
        self.offers = (self.WEIGHT + counts.offered) / (self.WEIGHT + counts.asked)


def survival(counts: Counts, pool: Pool, *, weight: float) -> list[float]:
    """The chance that a draft of the request is accepted down to each depth, the drafter offering one.

    The request's own counts against ``weight`` steps of the pool. A request that differs from the pool at one depth is
    expected to differ as much at the next.
    """
    found: list[float] = []
    alive, odds = 1.0, 1.0  # odds: how many times likelier than the pool the request is rejected
    for accepted, tried, rate in zip(counts.accepted, counts.tried, pool.rates, strict=True):
        expected = min(max(1 - odds * (1 - rate), LEAST), MOST)
        own = (weight * expected + accepted) / (weight + tried)
        odds = min(max((1 - own) / max(1 - rate, LEAST), 0.1), 10.0)
        alive *= own
        found.append(alive)
    return found
