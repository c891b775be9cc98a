"""How likely draft tokens are accepted, by depth: of one request, and of all recent ones of a drafter.

An acceptance is conditional on the token before being accepted; deeper tokens of a draft say nothing once one is
rejected.
"""

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any, final

from paceline.engine.confidence import Confidence
from paceline.engine.copies import CopyRates

FIRST_GUESS = 0.6  # of a drafter that nothing is known of
LEAST, MOST = 0.01, 0.99  # no acceptance is taken for impossible or certain
HEAVIEST = 1e12


@final
class Counts:
    """Accepted and submitted tokens by depth, and steps that were asked for a draft and gave one.

    Former steps fade. Instead, newer ones are given more ``weight``; what is counted is over the weight of the newest.
    """

    def __init__(self, max_depth: int) -> None:
        self.accepted = [0.0] * max_depth  # by depth - 1
        self.tried = [0.0] * max_depth
        self.asked = self.offered = 0.0
        self.weight = 1.0

    def add(
        self, *, num_accepted: int, depth: int, keep: float, left_out: float | None = None, share: float = 1.0
    ) -> None:
        """Add a step whose draft was ``depth`` deep (0: the drafter had none); former ones weigh ``keep`` of before.

        ``left_out`` is the chance of a further token that was not submitted for it, the others being accepted. The step
        weighs but ``share`` of others.
        """
        self.weight /= keep
        if self.weight > HEAVIEST:
            self._rescale()
        weight = self.weight * share
        self.asked += weight
        self.offered += weight if depth or left_out is not None else 0.0
        for index in range(min(depth, num_accepted + 1)):
            self.tried[index] += weight
            if index < num_accepted:
                self.accepted[index] += weight
        if left_out is not None and num_accepted >= depth:
            self.tried[depth] += weight
            self.accepted[depth] += weight * left_out

    def add_all(self, others: Iterable["Counts"], share: float = 1.0) -> None:
        """Add what ``others`` counted, each step weighing ``share`` of a newest one."""
        weight = self.weight * share
        for other in others:
            scale = weight / other.weight
            self.accepted = [own + scale * more for own, more in zip(self.accepted, other.accepted, strict=True)]
            self.tried = [own + scale * more for own, more in zip(self.tried, other.tried, strict=True)]
            self.asked, self.offered = self.asked + scale * other.asked, self.offered + scale * other.offered

    def as_record(self) -> dict[str, object]:
        """What is counted, for JSON; a newest step weighs 1."""
        self._rescale()
        return {"accepted": self.accepted, "tried": self.tried, "asked": self.asked, "offered": self.offered}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Counts":
        """The counts that ``as_record`` gave. Raises KeyError, TypeError or ValueError for anything else."""
        accepted, tried = ([float(count) for count in record[name]] for name in ("accepted", "tried"))
        counts = cls(len(tried))
        counts.accepted, counts.tried = accepted, tried
        counts.asked, counts.offered = float(record["asked"]), float(record["offered"])
        pairs = [*zip(accepted, tried, strict=True), (counts.offered, counts.asked)]
        if not all(0 <= part <= whole < HEAVIEST for part, whole in pairs):
            raise ValueError("counts that cannot be")
        return counts

    def _rescale(self) -> None:
        self.accepted = [count / self.weight for count in self.accepted]
        self.tried = [count / self.weight for count in self.tried]
        self.asked, self.offered, self.weight = self.asked / self.weight, self.offered / self.weight, 1.0


@final
class Pool:
    """The acceptance of a drafter over all recent requests: what a new request is expected to have."""

    KEEP = 0.995  # of the weight of former steps, with each
    WEIGHT = 4.0  # of the guess, in steps

    def __init__(self, max_depth: int) -> None:
        self.counts = Counts(max_depth)
        self.confidence, self.copies = Confidence(), CopyRates()
        self.rates: list[float] = []  # by depth - 1
        self.offers = 1.0  # share of the steps that had a draft when asked for one
        self.refresh()

    def expected(self, *, deviations: float = 0.0) -> list[float]:
        """Tokens that a step of a row gives by the depth of its draft, from 0; with all rates so many standard
        deviations above what was seen.
        """
        found, alive = [1.0], self._above(self.offers, self.counts.asked, deviations)
        for rate, tried in zip(self.rates, self.counts.tried, strict=True):
            alive *= self._above(rate, tried, deviations)
            found.append(found[-1] + alive)
        return found

    def _above(self, rate: float, tried: float, deviations: float) -> float:
        """So many standard deviations more than ``rate``, which is of ``tried`` steps and of the guess."""
        return min(1.0, rate + deviations * sqrt(rate * (1 - rate) / (self.WEIGHT + tried / self.counts.weight)))

    def refresh(self) -> None:
        """Compute ``rates``, ``offers`` and the confidence; a depth is first expected to be like the one above."""
        self.confidence.refresh()
        counts, guess, own = self.counts, FIRST_GUESS, self.WEIGHT * self.counts.weight
        self.rates = []
        for accepted, tried in zip(counts.accepted, counts.tried, strict=True):
            guess = (own * guess + accepted) / (own + tried)
            self.rates.append(guess)
        self.offers = (own + counts.offered) / (own + counts.asked)


def survival(counts: Counts, pool: Pool, *, weight: float) -> list[float]:
    """The chance that a draft of the request is accepted down to each depth, the drafter offering one.

    The request's own counts against ``weight`` steps of the pool. A request that differs from the pool at one depth is
    expected to differ as much at the next.
    """
    found: list[float] = []
    alive, odds = 1.0, 1.0  # odds: how many times likelier than the pool the request is rejected
    weight *= counts.weight
    for accepted, tried, rate in zip(counts.accepted, counts.tried, pool.rates, strict=True):
        rejected = 1.0 - rate if rate < MOST else LEAST
        expected = 1.0 - odds * rejected
        expected = LEAST if expected < LEAST else MOST if expected > MOST else expected
        if tried:
            own = (weight * expected + accepted) / (weight + tried)
            odds = (1.0 - own) / rejected
            odds = 0.1 if odds < 0.1 else 10.0 if odds > 10.0 else odds
        else:
            own = expected
        alive *= own
        found.append(alive)
    return found


def offers(counts: Counts, pool: Pool, *, weight: float) -> float:
    """The share of steps in which the drafter has a draft for the request when asked for one."""
    weight *= counts.weight
    return (weight * pool.offers + counts.offered) / (weight + counts.asked)
