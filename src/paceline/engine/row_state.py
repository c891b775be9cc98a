"""A running request, as the controller sees it: what its drafts gained, and what is expected of the next one."""

from dataclasses import dataclass, field
from math import exp, log
from sys import maxsize
from typing import final

from paceline.core.early_stop import noted_levels
from paceline.core.request import Request
from paceline.core.step import Finish, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.acceptance import Counts, Pool, offers, survival

FIRST_WAIT = 8  # steps until the second probe
TELLING = 16  # drafted steps of a request that count in full for the next ones; later ones count less and less
KEEP = 0.94  # weight of a request's former drafted steps, with each
KEEP_PLAIN = 0.99  # the same with each of its plain ones
LONGEST_MEMORY = 1000  # plain steps after which nothing more is forgotten
TYPICAL, OTHER = 16.0, 0.5  # weight of the pool against the steps of a request like the others, and of one unlike them
RARE = 1.5  # the logarithm of the odds that a request is like the others
SURE = 3.0  # the most that its drafts add to that, or take away
RECENT = 0.2  # rate at which its latest drafts are followed
LEAST = 0.02  # nothing is taken to be less likely
FORGET = 0.05  # share of its former steps that a request unlike the others forgets with each


@final
@dataclass(slots=True, kw_only=True)
class RowState:
    """What is known of a request, and what was chosen for it."""

    counts: Counts
    pool: Pool  # of requests like it
    most: int  # draft tokens that the request allows
    left: int  # tokens until its end, at most
    lasts: bool = False  # whether it certainly does not end before
    depth: int = 0  # chosen for the next steps
    least: float = 0.0  # chance to be accepted below which a token is not worth drafting
    wait: int = 1  # steps until the next probe
    interval: int = FIRST_WAIT
    burst: int = 1  # depth of the next probe
    learned: int = 0  # drafts that said something
    missed: int = 0  # tokens since the drafter was last asked
    recent: float = 0.0  # share of its latest drafts of which a token was accepted
    differs: float = 0.0  # evidence that it is unlike the others, or what it was: logarithm of odds
    survival: list[float] = field(default_factory=list[float])  # chance that a draft is accepted down to each depth
    offers: float = 1.0  # chance that the drafter has a draft

    @classmethod
    def of(cls, request: Request, *, pool: Pool, max_depth: int, plain: bool) -> "RowState":
        """A new request; ``plain``: it has no drafts to its end."""
        most = max_depth if request.num_draft_tokens is None else min(max_depth, request.num_draft_tokens)
        state = cls(counts=Counts(max_depth), pool=pool, most=most, left=request.max_tokens, lasts=request.lasts)
        if plain:
            state.give_up()
        return state

    def give_up(self) -> None:
        """It has no draft from now on, to its end."""
        self.most, self.wait = 0, maxsize

    @property
    def room(self) -> int:
        """The deepest draft there is room for: the target adds the last token itself."""
        return min(self.most, max(0, self.left - 1))

    def expect(self) -> None:
        """Compute ``survival`` and ``offers``: from its own drafts and the pool, which weighs less the more the request
        differs.
        """
        weight = TYPICAL * (OTHER / TYPICAL) ** self._difference() / _keep_over(self.missed)
        self.survival = survival(self.counts, self.pool, weight=weight)
        self.offers = offers(self.counts, self.pool, weight=weight)

    def learn(self, result: StepResult, row: int, depth: int, *, levels: bool, timed: bool, sample: bool) -> int | None:
        """Learn from its draft of at most ``depth`` tokens, and let the pool learn. How many of the submitted tokens
        count; None if the draft says nothing.

        With ``levels`` chains end early. A pool that is not ``timed`` learns nothing, so that rows do not depend on
        each other; later drafts teach it levels where they are a ``sample``.
        """
        pool, reason, missed = self.pool, result.no_draft[row], self.missed
        self.missed = 0
        accepted, submitted, left_out = result.num_accepted[row], max(0, min(depth, result.num_drafted[row])), None
        if levels and submitted < depth:  # the level of what was not submitted is noted: it counts by its chance
            noted = noted_levels(result.confidence[row], submitted + 1)
            left_out = pool.confidence.acceptance[noted[-1] - 1] if len(noted) > submitted else None
        offered = submitted > 0 or left_out is not None
        if not offered and reason is not NoDraft.NO_MATCH and reason is not NoDraft.DECLINED:
            return None
        if levels and timed and (sample or self.learned <= TELLING):
            pool.confidence.add(result.confidence[row], num_accepted=accepted, num_drafted=submitted)
        if result.finish[row] is not Finish.RUNNING:
            submitted, left_out = min(submitted, accepted), None  # cut by the end, not by a rejection
        if submitted or left_out is not None or not offered:
            keep = KEEP * _keep_over(missed)
            if submitted:
                self._compare(accepted > 0)
                keep *= 1 - FORGET * self._difference()
            self.counts.add(num_accepted=accepted, depth=submitted, keep=keep, left_out=left_out)
            self.learned += 1
            if timed:  # requests that draft for long would else speak for all
                weight = min(1.0, TELLING / self.learned)
                pool.counts.add(
                    num_accepted=accepted, depth=submitted, keep=pool.KEEP**weight, left_out=left_out, share=weight
                )
        return submitted

    def _compare(self, accepted: bool) -> None:
        """Note whether the result of the first draft token was expected of a request like the others, or rather by its
        own latest drafts.
        """
        counts, rate = self.counts, self.pool.rates[0]
        typical = (TYPICAL * rate + counts.accepted[0] / counts.weight) / (TYPICAL + counts.tried[0] / counts.weight)
        if self.learned == 0:
            self.recent = rate
        recent = min(max(self.recent, LEAST), 1 - LEAST)
        evidence = log(recent / typical) if accepted else log((1 - recent) / (1 - typical))
        self.differs = min(max(KEEP * self.differs + evidence, -SURE), SURE)
        self.recent += RECENT * (accepted - self.recent)

    def _difference(self) -> float:
        """How likely it is unlike the other requests, or unlike what it was."""
        return 1 / (1 + exp(RARE - self.differs))


def _keep_over(missed: int) -> float:
    """The weight that former drafted steps keep over so many tokens that the drafter missed."""
    return KEEP_PLAIN ** min(missed, LONGEST_MEMORY) if missed else 1.0
