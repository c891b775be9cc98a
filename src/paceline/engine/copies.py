"""How likely copied tokens are accepted, and how many of those on offer are worth verifying.

Drafters that copy say before the step what they have: fixed tokens, so a plan may look at them and every lossless
verifier stays exact. Whether they would have been accepted is seen from the tokens that follow, submitted or not
(full information, as 2510.20064 has it), so nothing needs to be tried to be known.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, takewhile
from operator import mul, truediv
from typing import NamedTuple, final

from paceline.core.host_draft import NO_TOKENS, HostDraft
from paceline.core.token_index import MAX_DRAFT
from paceline.engine.costs import StepCosts

LONGEST = 64  # matched tokens that are told apart
ENDS = (1, 2, 3, 5, 8, 15, 31)  # the longest matches of all classes but the last
SURE, LIKELY = 0.9, 0.5  # chances by the drafter's own counts that are told apart
LENGTHS = tuple(bisect_right(ENDS, min(length, LONGEST) - 1) for length in range(1, LONGEST + MAX_DRAFT + 1))  # classes
CLASSES = 1 + len(ENDS)  # of lengths
SUREST = 2 * CLASSES  # the first class of tokens that the drafter's own counts say nothing against
SURE_LENGTHS = tuple(SUREST + length for length in LENGTHS)
KEEP = 0.998  # of the weight of former tokens of a class, with each
WEIGHT = 6.0  # of the guess, in tokens
FOLLOW = 0.96  # of the weight of a request's former tokens, with each
TYPICAL = 3.0  # rejected tokens of a request that weigh as much as what others were like
LEAST_ODDS, MOST_ODDS = 0.1, 8.0  # how many times likelier than in other requests a token is rejected
CERTAIN = 0.995  # no token is
WORTHLESS = 0.05  # tokens that are less likely to be accepted are not weighed
STEPS = (0.97, 0.95, 0.92, 0.88, 0.83, 0.77, 0.7, 0.62, 0.53, 0.44, 0.35, 0.26, 0.18, 0.1, WORTHLESS)
SWITCH = 1.02  # copies are verified where that is so many times better than plain decoding


GUESSES = tuple(
    (1 - 0.7 / end**0.5) * factor for factor in (0.35, 0.75, 1.0) for end in (*ENDS, 2 * ENDS[-1])
)  # the chance of a class before anything is known of it


@final
class OriginRates:
    """The share of copied tokens of one origin that the target said too, by class, each after the tokens before it were
    right.
    """

    def __init__(self) -> None:
        self._accepted, self._seen = [0.0] * len(GUESSES), [0.0] * len(GUESSES)
        self.rates = [_rate(guess, 0.0, 0.0) for guess in GUESSES]

    def learn(self, at: int, right: bool) -> None:
        """Count a token of the class ``at``."""
        accepted = self._accepted[at] = KEEP * self._accepted[at] + right
        seen = self._seen[at] = KEEP * self._seen[at] + 1
        self.rates[at] = _rate(GUESSES[at], accepted, seen)


@final
class CopyRates:
    """What is known of copies by who copied them, by the length of the match before a token, and by the chance that the
    drafter's own counts gave it.
    """

    def __init__(self) -> None:
        self._origins: dict[int, OriginRates] = {}

    def of(self, origin: int) -> OriginRates:
        """Those of one drafter."""
        known = self._origins.get(origin)
        if known is None:
            known = self._origins[origin] = OriginRates()
        return known

    def rates(self, draft: HostDraft, most: int) -> list[float]:
        """The chance of each of the first ``most`` tokens of ``draft``."""
        known = self.of(draft.origin).rates
        return [known[at] for at in classes(draft, most)]

    def learn(self, draft: HostDraft, tokens: Sequence[int]) -> list[tuple[float, bool]]:
        """Compare ``draft`` with the ``tokens`` that came; what was expected of each token that this tells of, and
        whether it was right.
        """
        known = self.of(draft.origin)
        compared: list[tuple[float, bool]] = []
        for at, drafted, said in zip(classes(draft, len(tokens)), draft.tokens, tokens, strict=False):
            right = drafted == said
            compared.append((known.rates[at], right))
            known.learn(at, right)
            if not right:
                break
        return compared


@final
class CopyRow:
    """A request that may copy: how much likelier than in others its copies are rejected."""

    def __init__(self, *, rates: CopyRates, most: int) -> None:
        self.rates, self.most = rates, most
        self._rejected = self._expected = 0.0
        self._odds = 1.0  # of a rejection, over those in other requests

    def survival(self, draft: HostDraft) -> list[float]:
        """The chance that ``draft`` is accepted down to each depth."""
        odds, rates = self._odds, self.rates.of(draft.origin).rates
        alive = accumulate((1 - odds * (1 - rates[at]) for at in classes(draft, self.most)), mul)
        return list(takewhile(WORTHLESS.__le__, alive))

    def first_chance(self, draft: HostDraft) -> float:
        """The chance that its first token is accepted: no other is likelier to be."""
        first = classes(draft, min(1, self.most))
        return 1 - self._odds * (1 - self.rates.of(draft.origin).rates[first[0]]) if first else 0.0

    def learn(self, draft: HostDraft, tokens: Sequence[int], *, shared: bool) -> None:
        """Compare ``draft`` with what came. Without ``shared`` others learn nothing from it."""
        rates = self.rates if shared else CopyRates()
        for expected, right in rates.learn(draft, tokens):
            self._rejected = FOLLOW * self._rejected + (not right)
            self._expected = FOLLOW * self._expected + 1 - expected
        odds = (self._rejected + TYPICAL) / (self._expected + TYPICAL)
        self._odds = min(max(odds, LEAST_ODDS), MOST_ODDS)


class CopyChoice(NamedTuple):
    """The drafts to verify, by row, the tokens of each that may be accepted, and the speed that they promise over that
    of plain decoding.
    """

    drafts: Mapping[int, HostDraft]
    promised: Mapping[int, float]
    speedup: float


NONE = CopyChoice({}, {}, 1.0)


def choose_copies(
    offers: Mapping[int, Sequence[HostDraft]],
    rows: Mapping[int, CopyRow],
    costs: StepCosts,
    *,
    running: int,
    fixed: float = 0.0,
) -> CopyChoice:
    """Of each row the draft that promises most, cut where further tokens cost more than they give.

    ``fixed`` is what a step costs more that verifies any copy, in the unit of ``costs``.
    All rows are cut at the same chance to be accepted, as a token costs the same in each.
    """
    least = costs.least_rate(running, speedup=SWITCH, fixed=fixed)
    offered = ((rows[row], draft) for row, several in offers.items() if row in rows for draft in several)
    if not any(state.first_chance(draft) >= least for state, draft in offered):
        return NONE  # as in most steps on text that copies little; what follows takes many times longer
    weighed: list[tuple[int, HostDraft, list[float]]] = []
    for row, several in offers.items():
        state = rows.get(row)
        if state is None or not state.most:
            continue
        best: tuple[float, HostDraft, list[float]] = (0.0, NO_TOKENS, [])
        for draft in several:
            chances = state.survival(draft)
            promised = sum(chances)
            if promised > best[0]:
                best = (promised, draft, chances)
        if best[0]:
            weighed.append((row, best[1], best[2]))
    rising = sorted(chain.from_iterable([chances for _, _, chances in weighed]))  # of all rows
    gained = [0.0, *accumulate(reversed(rising))]
    plain, found, cut, before = costs.verifying(running, running), SWITCH, 1.0, 0
    for least in STEPS:
        count = len(rising) - bisect_left(rising, least)
        if count == before:
            continue
        before = count
        speedup = (running + gained[count]) / running * plain / (costs.verifying(running, running + count) + fixed)
        if speedup > found:
            found, cut = speedup, least
    if cut == 1.0:
        return NONE
    kept = [(row, draft, [chance for chance in chances if chance >= cut]) for row, draft, chances in weighed]
    drafts = {row: draft.first(len(chances)) for row, draft, chances in kept if chances}
    return CopyChoice(drafts, {row: sum(chances) for row, _, chances in kept if chances}, found)


def classes(draft: HostDraft, most: int) -> Sequence[int]:
    """What tells of the chance of each of its first ``most`` tokens: the class of the length of the match before it,
    and ``CLASSES`` more for each step that the drafter's own counts are surer of it, given the one before.
    """
    probs, first = draft.probs, min(max(draft.match, 1), LONGEST) - 1
    most = min(most, len(draft.tokens))
    if probs is None or (most and min(probs[:most]) >= SURE):  # of at most 1, so that no share is less
        return SURE_LENGTHS[first : first + most]
    lengths = LENGTHS[first : first + most]
    shares = map(truediv, probs, (1.0, *probs))
    return [
        length + (SUREST if share >= SURE else CLASSES if share >= LIKELY else 0)
        for length, share in zip(lengths, shares, strict=False)
    ]


def _rate(guess: float, accepted: float, seen: float) -> float:
    return min(CERTAIN, (WEIGHT * guess + accepted) / (WEIGHT + seen))
