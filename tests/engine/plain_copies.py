"""What is expected of copies and which are verified, token by token as engine/copies.py has it in a few operations."""

from bisect import bisect_right
from itertools import accumulate

from paceline.core.host_draft import NO_TOKENS
from paceline.engine import copies


class PlainRates:
    """Accepted and all tokens, by who copied them, the class of the match's length, and that of the counts."""

    def __init__(self):
        self.counts = {}

    def rate(self, place):
        accepted, seen = self.counts.get(place, (0.0, 0.0))
        _, length, sure = place
        end = (*copies.ENDS, 2 * copies.ENDS[-1])[length]
        guess = (1 - 0.7 / end**0.5) * (0.35, 0.75, 1.0)[sure]
        return min(copies.CERTAIN, (copies.WEIGHT * guess + accepted) / (copies.WEIGHT + seen))

    def learn(self, draft, tokens):
        compared = []
        for place, drafted, said in zip(places(draft, len(tokens)), draft.tokens, tokens, strict=False):
            compared.append((self.rate(place), drafted == said))
            accepted, seen = self.counts.get(place, (0.0, 0.0))
            self.counts[place] = copies.KEEP * accepted + (drafted == said), copies.KEEP * seen + 1
            if drafted != said:
                break
        return compared


class PlainRow:
    """As CopyRow."""

    def __init__(self, *, rates, most):
        self.rates, self.most = rates, most
        self.rejected = self.expected = 0.0

    def chances(self, draft):
        odds = (self.rejected + copies.TYPICAL) / (self.expected + copies.TYPICAL)
        odds = min(max(odds, copies.LEAST_ODDS), copies.MOST_ODDS)
        return [1 - odds * (1 - self.rates.rate(place)) for place in places(draft, self.most)]

    def survival(self, draft):
        alive, found = 1.0, []
        for chance in self.chances(draft):
            alive *= chance
            if alive < copies.WORTHLESS:
                break
            found.append(alive)
        return found

    def learn(self, draft, tokens, *, shared):
        for expected, right in (self.rates if shared else PlainRates()).learn(draft, tokens):
            self.rejected = copies.FOLLOW * self.rejected + (not right)
            self.expected = copies.FOLLOW * self.expected + 1 - expected


def choose_plainly(offers, rows, costs, *, running, fixed):
    """As choose_copies, without what spares work."""
    least = costs.least_rate(running, speedup=copies.SWITCH, fixed=fixed)
    firsts = [rows[row].chances(draft)[:1] for row, several in offers.items() if row in rows for draft in several]
    if not any(first[0] >= least for first in firsts if first):
        return copies.NONE
    weighed = []
    for row in offers.keys() & rows.keys():
        best = (0.0, NO_TOKENS, [])
        for draft in offers[row]:
            chances = rows[row].survival(draft)
            best = max(best, (sum(chances), draft, chances), key=lambda one: one[0])
        weighed.append((row, *best[1:]))
    falling = sorted((chance for *_, chances in weighed for chance in chances), reverse=True)
    gained = [0.0, *accumulate(falling)]
    plain, found, cut = costs.of(running, running), copies.SWITCH, 1.0
    for least in copies.STEPS:
        count = bisect_right(falling, -least, key=float.__neg__)
        speedup = (running + gained[count]) / running * plain / (costs.of(running, running + count) + fixed)
        if count and speedup > found:
            found, cut = speedup, least
    kept = {row: (draft, [one for one in chances if one >= cut]) for row, draft, chances in weighed if cut < 1.0}
    kept = {row: (draft.first(len(chances)), sum(chances)) for row, (draft, chances) in kept.items() if chances}
    drafts, promised = ({row: pair[at] for row, pair in kept.items()} for at in range(2))
    return copies.CopyChoice(drafts, promised, found) if kept else copies.NONE


def places(draft, most):
    """What tells of the chance of each token of ``draft``."""
    before, found = 1.0, []
    for index in range(min(most, len(draft.tokens))):
        sure = 2
        if draft.probs is not None:
            share, before = draft.probs[index] / before, draft.probs[index]
            sure = 2 if share >= copies.SURE else 1 if share >= copies.LIKELY else 0
        length = min(max(draft.match, 1) + index, copies.LONGEST)
        found.append((draft.origin, bisect_right(copies.ENDS, length - 1), sure))
    return found
