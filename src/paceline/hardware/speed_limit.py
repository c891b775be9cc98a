"""The least time that decoding can take on a machine, plainly and with drafts: docs/performance.md in code.

A forward takes at least as long as its reads and at least as long as its arithmetic (hardware/roofline). Pure
functions of a model's work and a machine's rates (hardware/rates); runs and measures nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Bound, Work, bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a step of ``num_draft_tokens`` drafts and one target forward allows at best."""

    num_draft_tokens: int
    tokens_per_step: float  # of one row
    target: Bound
    draft: Bound | None  # of each draft token; None where drafts cost no forward
    attainable: float  # seconds of the step with products as fast as they were measured, and nothing else
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
        """Of all rows together, if the products run as they were measured and nothing else takes time."""
        return self.rows * self.tokens_per_step / self.attainable

    def speed_up(self, plain: "Limit") -> float:
        """What is attainable over what plain decoding attains. The ratio of two limits would be no limit of a ratio."""
        return self.attainable_tokens_per_second / plain.attainable_tokens_per_second

    def break_even(self, plain: "Limit") -> float:
        """Tokens per step from which drafting pays, by what is attainable."""
        return self.attainable / plain.attainable


def limit(
    target: Work, draft: Work | None, rates: Rates, *, kept: Sequence[float], rows: int = 1, slots: int = 0
) -> Limit:
    """The limit of decoding with ``len(kept)`` draft tokens per step, none of them being plain decoding.

    ``kept`` holds for every position the share of steps that keep the token drafted there. ``draft`` None is a drafter
    that runs no model.

    Raises ValueError for shares beyond 0 to 1, fewer than one row or 0 slots, and a precision that was not measured.
    """
    if any(not 0 <= share <= 1 for share in kept):
        raise ValueError(f"acceptance {list(kept)}: give shares from 0 to 1")
    if rows < 1 or slots < 0:
        raise ValueError(f"{rows} rows of {slots} slots: give at least 1 row and 0 slots")
    for work in (target,) if draft is None else (target, draft):
        if work.products not in rates.products:
            raise ValueError(f"no rates for {work.products}; measured are {', '.join(rates.products)}")
    nodes = 1 + len(kept)
    attainable = _attainable(target, rates, rows, nodes, slots)
    if draft is not None:
        attainable += len(kept) * _attainable(draft, rates, rows, 1, slots)
    return Limit(
        num_draft_tokens=len(kept),
        tokens_per_step=1 + sum(kept),
        target=bound(target, rates, rows=rows, nodes=nodes, slots=slots),
        draft=None if draft is None else bound(draft, rates, rows=rows, nodes=1, slots=slots),
        attainable=attainable,
        rows=rows,
    )


def _attainable(work: Work, rates: Rates, rows: int, nodes: int, slots: int) -> float:
    products = work.weight_bytes * rates.products[work.products].seconds_per_byte(rows * nodes)
    # A cache so fast that products outrun the reading loop does not make them slower than the limit.
    least = bound(work, rates, rows=rows, nodes=nodes, slots=slots).seconds
    return max(least, products + rows * slots * work.slot_bytes / rates.read)
