"""The roofline of decoding: the fewest seconds of a step, with and without drafts.

docs/performance.md derives the formulas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Bound, Work, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limits of a step with ``num_draft_tokens`` draft tokens and one target forward."""

    num_draft_tokens: int
    tokens_per_step: float  # of one row
    target: Bound
    draft: Bound | None  # of each draft token; None where drafts cost no forward
    attainable: float  # seconds of the step with products as fast as measured, and no other cost
    rows: int

    @property
    def seconds(self) -> float:
        """Of the step, at least."""
        return self.target.seconds + (0.0 if self.draft is None else self.num_draft_tokens * self.draft.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together, at most."""
        return self.rows * self.tokens_per_step / self.seconds

    @property
    def attainable_tokens_per_second(self) -> float:
        """Of all rows together, with products as fast as measured and no other cost."""
        return self.rows * self.tokens_per_step / self.attainable

    def speed_up(self, plain: "Limit") -> float:
        """Attainable speed relative to plain decoding. A ratio of two lower bounds on time would bound nothing."""
        return self.attainable_tokens_per_second / plain.attainable_tokens_per_second

    def break_even(self, plain: "Limit") -> float:
        """Tokens per step above which drafting is faster than plain decoding, by attainable speed."""
        return self.attainable / plain.attainable


def limit(
    target: Work, draft: Work | None, rates: Rates, *, acceptance: Sequence[float], rows: int = 1, slots: int = 0
) -> Limit:
    """The limit of decoding with ``len(acceptance)`` draft tokens per step; none is plain decoding.

    ``acceptance`` is the per-position acceptance: the share of steps that accept the token drafted there. ``draft`` is
    None for a drafter that runs no model.

    Raises ValueError for shares beyond 0 to 1, fewer than one row or 0 slots, and a precision that was not measured.
    """
    if any(not 0 <= share <= 1 for share in acceptance):
        raise ValueError(f"acceptance {list(acceptance)}: give shares from 0 to 1")
    if rows < 1 or slots < 0:
        raise ValueError(f"{rows} rows of {slots} slots: give at least 1 row and 0 slots")
    for work in (target,) if draft is None else (target, draft):
        if work.products not in rates.products:
            raise ValueError(f"no rates for {work.products}; measured are {', '.join(rates.products)}")
    nodes = 1 + len(acceptance)
    attainable = _attainable(target, rates, rows, nodes, slots)
    if draft is not None:
        attainable += len(acceptance) * _attainable(draft, rates, rows, 1, slots)
    return Limit(
        num_draft_tokens=len(acceptance),
        tokens_per_step=1 + sum(acceptance),
        target=bound(target, rates, rows=rows, nodes=nodes, slots=slots),
        draft=None if draft is None else bound(draft, rates, rows=rows, nodes=1, slots=slots),
        attainable=attainable,
        rows=rows,
    )


def _attainable(work: Work, rates: Rates, rows: int, nodes: int, slots: int) -> float:
    products = work.weight_bytes * rates.products[work.products].seconds_per_byte(rows * nodes)
    # Where products read a fast cache faster than the bandwidth measurement, the roofline still holds.
    least = bound(work, rates, rows=rows, nodes=nodes, slots=slots).seconds
    return max(least, products + rows * slots * work.slot_bytes / rates.read)
