"""Whether new requests are kept ready for drafts: what that costs each plain step, and when to look again.

A draft head reads the target's hidden states of the prompt and of every step, whether it drafts or not. On small
targets that is some per cent of a plain step. So where drafting does not pay, requests begin as *plain* ones, of which
the head reads nothing and which have no draft to their end.

Texts differ, and a ready request is drafted for where its own text makes that pay. So what counts is what ready
requests together turned out to take: they are kept ready until they have lost more than they may, which grows with
every plain step, and where there is no hope, now and then one is, to notice a change.
"""

from math import inf
from typing import final

from paceline.engine.calibration import DISTURBED

LEAST_SHARE = 0.85  # of a plain step that is kept ready: what one that is not costs, until it is measured, and at least
FOLLOW, SLOWLY = 0.1, 0.02  # rates at which that is followed, and what plain steps of ready requests take
WORTH = 1.03  # over plain decoding: what drafting must promise
FIRST_WAIT, LONGEST_WAIT = 512, 8192  # steps of plain requests until one is kept ready, doubled with each
PER_REREAD = 4  # steps more for each token that the target must read again for it
READING = 0.04  # plain steps that it takes to read one
# Plain steps that ready requests may lose where drafting promises to pay, and where there is but hope that it does.
ALLOWED, ALLOWED_HOPE = 64.0, 16.0
FORGIVEN = 0.005  # share of the plain steps since then by which a loss is forgiven
WINDOW = 1024.0  # plain steps that ready requests took the place of, and that are remembered


@final
class Readiness:
    """What is known of this for one kind of batch."""

    def __init__(self) -> None:
        self._share: float | None = None
        self._waited, self._wait = 0, FIRST_WAIT
        self._replaced = self._taken = 0.0  # plain steps, by ready requests
        self._plain, self._times_plain = 1.0, 0  # what those without drafts took, over what was expected

    @property
    def _known_share(self) -> float:
        return LEAST_SHARE if self._share is None else self._share

    @property
    def lost(self) -> float:
        """Steps of plain requests that ready ones took longer; negative where they were faster."""
        return self._taken / self._known_share - self._replaced

    def pays(self, speedup: float) -> bool:
        """Whether drafting promises more than plain requests, ``speedup`` being over plain steps of ready ones."""
        return speedup * self._known_share >= WORTH

    def keeps(self, speedup: float, *, hopeful: bool, reread: int) -> bool:
        """Whether the next requests are kept ready: it pays, or may be ``hopeful`` to, and not too much was lost by it;
        or it is time to look again. The target reads ``reread`` tokens again if they are.
        """
        allowed = ALLOWED if self.pays(speedup) else ALLOWED_HOPE if hopeful else -inf
        if self.lost + READING * reread < allowed:
            self._waited, self._wait = 0, FIRST_WAIT
        elif self._waited < self._wait + PER_REREAD * reread:
            return False
        else:
            self._waited, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
        self._add(0.0, READING * reread)
        return True

    def observe_drafted(self, replaced: float, taken: float) -> None:
        """Note a step with drafts, which took the place of ``replaced`` plain ones of ready requests, and ``taken``
        times what one of these is expected to take.
        """
        self._add(replaced, taken / self._plain)

    def observe_plain(self, steps: int, cost: float | None, *, ready: bool) -> None:
        """Note ``steps`` without drafts: of ``ready`` requests among others, or of plain ones alone. ``cost`` (None:
        not measured) is what one of them took over what is expected of it; of a plain request, over one that is ready.
        """
        if ready:
            if cost is not None:
                self._times_plain += 1
                rate = max(SLOWLY, 1 / (1 + self._times_plain))
                self._plain += rate * (min(cost, DISTURBED) - self._plain)
            self._add(steps, steps)
            return
        self._waited += steps
        if cost is not None:
            known = cost if self._share is None else self._share + FOLLOW * (cost - self._share)
            self._share = min(max(known, LEAST_SHARE), 1.0)
        self._replaced += min(FORGIVEN * steps, max(0.0, self.lost))

    def _add(self, replaced: float, taken: float) -> None:
        keep = 1.0 / (1.0 + replaced / WINDOW)
        self._replaced, self._taken = keep * self._replaced + replaced, keep * self._taken + taken
        self._replaced += min(0.0, ALLOWED_HOPE + self.lost)  # what was won long ago does not pay for what is lost now
