"""Whether new requests are kept ready for drafts: what that costs each plain step, and when to look again.

A draft head reads the target's hidden states of the prompt and of every step, whether it drafts or not. On small
targets that is some per cent of a plain step. So where drafting does not pay, requests begin as *plain* ones, of which
the head reads nothing and which have no draft to their end.

Texts differ, and a ready request is drafted for where its own text makes that pay. So what counts is what ready
requests together turned out to take: they are kept ready until they have lost more than they may, which grows with
every plain step, and where there is no hope, now and then one is, to notice a change.
"""

from math import inf, sqrt
from typing import final

LEAST_SHARE = 0.85  # of a plain step that is kept ready: what one that is not costs, until it is measured, and at least
FOLLOW = 0.1  # rate at which that is followed
WORTH = 1.03  # over plain decoding: what drafting must promise to pay
TRIAL = 0.92  # the same for a batch to be tried: what is expected of it is as far off as that
FIRST_WAIT, LONGEST_WAIT = 512, 8192  # steps of plain requests until one is kept ready, doubled with each
READING = 0.04  # plain steps that the target takes to read a token again
# Plain steps that ready requests may lose where drafting promises to pay, where a batch is tried, and where one
# hopes; that is over the root of the number of rows: many texts together differ less, a batch tells more of the next.
ALLOWED, ALLOWED_TRIAL, ALLOWED_HOPE = 64.0, 32.0, 16.0
LOOKING = 0.015  # share of plain steps that such looks may take the time of
FORGIVEN = 0.005  # share of the plain steps since then by which a loss is forgiven
WINDOW = 1024.0  # plain steps that ready requests took the place of, and that are remembered


@final
class Readiness:
    """What is known of this for one kind of batch, of about ``num_rows``."""

    def __init__(self, num_rows: int = 1) -> None:
        self._allowed_hope = ALLOWED_HOPE / sqrt(num_rows)
        self._allowed_trial = ALLOWED_TRIAL if num_rows > 1 else -inf
        self._share: float | None = None
        self._waited, self._wait = 0, FIRST_WAIT
        self._replaced = self._taken = 0.0  # plain steps, by ready requests
        self._looked = 0.0  # steps of plain requests that those took longer since the last time to look again

    @property
    def _known_share(self) -> float:
        return LEAST_SHARE if self._share is None else self._share

    @property
    def lost(self) -> float:
        """Steps of plain requests that ready ones took longer; negative where they were faster."""
        return self._taken / self._known_share - self._replaced

    @property
    def tries(self) -> bool:
        """Whether a batch for which drafting promises to pay nearly may be drafted for, to find out."""
        return self.lost < self._allowed_trial

    def pays(self, speedup: float) -> bool:
        """Whether drafting promises more than plain requests, ``speedup`` being over plain steps of ready ones."""
        return speedup * self._known_share >= WORTH

    def keeps(self, speedup: float, *, hopeful: bool, reading: float) -> bool:
        """Whether the next requests are kept ready: it pays, or nearly in a batch, or may be ``hopeful`` to, and not
        too much was lost by it; or it is time to look again. For that, prompts are read for ``reading`` plain steps,
        which ``speedup`` includes.
        """
        tries = speedup * self._known_share >= TRIAL
        hope = max(self._allowed_hope, self._allowed_trial if tries else -inf) - reading
        allowed = ALLOWED if self.pays(speedup) else hope if hopeful else -inf
        if self.lost < allowed:
            self._waited, self._wait = 0, FIRST_WAIT
        elif self._waited < max(self._wait, self._looked / LOOKING):
            return False
        else:
            self._waited, self._wait, self._looked = 0, min(2 * self._wait, LONGEST_WAIT), 0.0
        return True

    def observe_plain(self, steps: int, share: float | None) -> None:
        """Note ``steps`` of plain requests, of which one took ``share`` (None: not measured) of one that is ready."""
        self._waited += steps
        if share is not None:
            known = share if self._share is None else self._share + FOLLOW * (share - self._share)
            self._share = min(max(known, LEAST_SHARE), 1.0)
        self._replaced += min(FORGIVEN * steps, max(0.0, self.lost))

    def observe_ready(self, replaced: float, taken: float) -> None:
        """Note steps of ready requests, which took the place of ``replaced`` steps without drafts and the time of
        ``taken`` of these.
        """
        self._looked = max(0.0, self._looked + taken / self._known_share - replaced)
        keep = 1.0 / (1.0 + replaced / WINDOW)
        self._replaced, self._taken = keep * self._replaced + replaced, keep * self._taken + taken
        self._replaced += min(0.0, ALLOWED_HOPE + self.lost)  # what was won long ago does not pay for what is lost now
