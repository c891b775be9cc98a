"""The G-test of counts against a distribution, and corrections for many tests. Knows nothing of models."""

import torch
from torch import Tensor

LEAST = 8.0  # expected counts of a cell; below it the statistic's tail is not that of a chi-square distribution


def g_test(counts: Tensor, distribution: Tensor) -> tuple[float, int]:
    """The G statistic of ``counts`` [C] against ``distribution`` [C], and its degrees of freedom.

    The cells of least expectation are one cell, of as many as it takes to expect ``LEAST`` counts in it and in each of
    the others. A count that the distribution forbids makes the statistic infinite.
    """
    if bool((counts[distribution == 0] > 0).any()):
        return float("inf"), 1
    wanted, order = (distribution * counts.sum()).sort()
    observed = counts[order].double()
    pooled = int((wanted < LEAST).sum())
    while 0 < pooled < len(wanted) and wanted[:pooled].sum() < LEAST:
        pooled += 1
    if pooled:
        observed = torch.cat((observed[:pooled].sum()[None], observed[pooled:]))
        wanted = torch.cat((wanted[:pooled].sum()[None], wanted[pooled:]))
    statistic = 2 * torch.xlogy(observed, observed / wanted).sum()
    return float(statistic.clamp(min=0)), len(observed) - 1


def tail(statistic: float, freedom: int) -> float:
    """The probability of at least ``statistic`` under the chi-square distribution; 1 without a degree of freedom."""
    if statistic == float("inf"):
        return 0.0
    if freedom == 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def holm(chances: list[float], level: float) -> list[bool]:
    """Which of the hypotheses fail at the family-wise ``level``, by Holm's steps down."""
    failed = [False] * len(chances)
    for step, at in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[at] * (len(chances) - step) >= level:
            break
        failed[at] = True
    return failed
