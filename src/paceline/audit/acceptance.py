"""Compares the acceptance rate of drafted tokens with its closed form for the distributions at hand.

T tokens, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.audit.goodness_of_fit import Z_95, two_sided_p_value


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRate:
    """An observed acceptance rate over ``count`` independent drafts, and the expected one."""

    count: int
    observed: float
    expected: float
    half_width: float  # of the 95 % interval of their difference
    p_value: float


def compare_acceptance(accepted: Tensor, probs: Tensor) -> AcceptanceRate:
    """``accepted`` [T] of 0 and 1 against acceptance probabilities ``probs`` [T]. Raises ValueError if T is 0."""
    count = len(accepted)
    if count == 0:
        raise ValueError("no drafted tokens to test: give some")
    accepted, probs = accepted.double(), probs.double().clamp(0, 1)
    deviation = math.sqrt(float((probs * (1 - probs)).sum()))
    return AcceptanceRate(
        count=count,
        observed=float(accepted.mean()),
        expected=float(probs.mean()),
        half_width=Z_95 * deviation / count,
        p_value=two_sided_p_value(float(accepted.sum() - probs.sum()), deviation),
    )


def rejection_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Probability [T] that speculative sampling accepts a draft sampled from ``q`` [T, V] for ``p`` (2211.17192)."""
    return torch.minimum(p, q).sum(-1)


def coupled_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Probability [T] that exponential races over p and q [T, V] with shared noise have one winner (2408.07978).

    The sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)), in one pass over the tokens sorted by p / q.
    """
    both = (p > 0) & (q > 0)
    ratio = torch.where(p > 0, torch.where(q > 0, p / torch.where(q > 0, q, 1.0), torch.inf), 0.0)
    order = ratio.argsort(dim=-1)
    p, q, ratio = p.gather(-1, order), q.gather(-1, order), ratio.gather(-1, order)
    # At x, tokens with a larger ratio contribute p, the others q; for equal ratios both are the same.
    above = p.flip(-1).cumsum(-1).flip(-1)
    below = q.cumsum(-1) - q
    weight = above / torch.where(p > 0, p, 1.0) + below / torch.where(q > 0, q, 1.0)
    valid = both.gather(-1, order) & ratio.isfinite()
    return torch.where(valid, 1 / torch.where(valid, weight, 1.0), 0.0).sum(-1)
