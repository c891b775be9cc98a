"""Whether new requests are kept ready for drafts: what that costs each plain step, and when to look again.

A draft head reads the target's hidden states of the prompt and of every step, whether it drafts or not. On small
targets that is some per cent of a plain step. So where drafting does not pay, requests begin as *plain* ones, of which
the head reads nothing and which have no draft to their end; now and then one is kept ready, to notice a change.
"""

from typing import final

LEAST_SHARE = 0.85  # of a plain step that is kept ready: what one that is not costs, until it is measured, and at least
FOLLOW = 0.1  # rate at which that is followed
WORTH = 1.03  # over plain decoding: what drafting must promise
FIRST_WAIT, LONGEST_WAIT = 512, 8192  # steps of plain requests until one is kept ready, doubled with each
PER_REREAD = 4  # steps more for each token that the target must read again for it


@final
class Readiness:
    """What is known of this for one kind of batch."""

    def __init__(self) -> None:
        self._share: float | None = None
        self._waited, self._wait = 0, FIRST_WAIT

    def pays(self, speedup: float) -> bool:
        """Whether drafting promises more than plain requests, ``speedup`` being over plain steps of ready ones."""
        return speedup * (LEAST_SHARE if self._share is None else self._share) >= WORTH

    def keeps(self, speedup: float, *, reread: int) -> bool:
        """Whether the next requests are kept ready: it pays, or it is time to look again. The target reads ``reread``
        tokens again if they are.
        """
        if self.pays(speedup):
            self._waited, self._wait = 0, FIRST_WAIT
            return True
        if self._waited < self._wait + PER_REREAD * reread:
            return False
        self._waited, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
        return True

    def observe(self, steps: int, share: float | None) -> None:
        """Note ``steps`` of plain requests alone, and what one of them cost of a plain step that is kept ready, if that
        was measured.
        """
        self._waited += steps
        if share is not None:
            known = share if self._share is None else self._share + FOLLOW * (share - self._share)
            self._share = min(max(known, LEAST_SHARE), 1.0)
