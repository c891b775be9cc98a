"""Goodness-of-fit tests: whether tokens were sampled from given next-token distributions.

T tokens, V vocabulary. The tests compare the tokens' negative log-likelihood with the distributions' entropy, their
probability integral transform with the uniform distribution, and the counts of the most probable tokens with those
expected. The null distributions of all three are the same for every model.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from scipy import stats
from torch import Tensor

SIGNIFICANCE = 0.01  # probability of a false alarm, all tests together
NUM_RANKS = 8  # most probable tokens whose counts are tested
Z_95 = 1.96  # half of a 95 % interval, in standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodnessOfFit:
    """Results of the tests on ``num_tokens`` tokens; natural logarithms."""

    num_tokens: int
    nll: float  # mean negative log-likelihood of the tokens
    entropy: float  # its expected value
    half_width: float  # of the 95 % interval of their difference, if the tokens fit
    nll_p_value: float
    ks_statistic: float  # Kolmogorov-Smirnov distance of the probability integral transform
    ks_p_value: float
    rank_p_value: float  # of the counts of the NUM_RANKS most probable tokens

    @property
    def passed(self) -> bool:
        """Whether no test rejects the fit, at SIGNIFICANCE for all three together."""
        return 3 * min(self.nll_p_value, self.ks_p_value, self.rank_p_value) >= SIGNIFICANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """The statistics of T tokens that the tests use."""

    nll: Tensor  # [T]
    entropy: Tensor  # [T], the expected nll
    variance: Tensor  # [T], of the nll
    pit: Tensor  # [T] in 0 .. 1: probability of the more probable tokens, plus a random share of the token's own
    rank_counts: Tensor  # [T, NUM_RANKS], 1 where the token is the most probable, the second ...
    rank_probs: Tensor  # [T, NUM_RANKS], the expected rank_counts


def token_statistics(probs: Tensor, tokens: Tensor, generator: torch.Generator) -> TokenStatistics:
    """Statistics of ``tokens`` [T] under ``probs`` [T, V]; ``generator`` randomises the integral transform."""
    probs = probs.double()
    logs = torch.where(probs > 0, probs, 1.0).log()
    entropy = -(probs * logs).sum(-1)
    own = probs.gather(-1, tokens[:, None])
    before = (probs > own) | ((probs == own) & (torch.arange(probs.shape[-1]) < tokens[:, None]))
    share = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    largest = probs.topk(min(NUM_RANKS, probs.shape[-1])).values
    return TokenStatistics(
        nll=-own[:, 0].log(),
        entropy=entropy,
        variance=((probs * logs**2).sum(-1) - entropy**2).clamp(min=0),
        pit=(probs * before).sum(-1) + share * own[:, 0],
        rank_counts=(before.sum(-1)[:, None] == torch.arange(NUM_RANKS)).double(),
        rank_probs=torch.nn.functional.pad(largest, (0, NUM_RANKS - largest.shape[-1])),
    )


@final
class GoodnessOfFitTest:
    """Accumulates tokens and the distributions they should have been sampled from."""

    def __init__(self, *, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._nll, self._entropy, self._variance = 0.0, 0.0, 0.0
        self._pit: list[Tensor] = []
        self._excess = torch.zeros(NUM_RANKS, dtype=torch.float64)  # counts minus expected counts
        self._covariance = torch.zeros(NUM_RANKS, NUM_RANKS, dtype=torch.float64)

    def add(self, probs: Tensor, tokens: Tensor) -> None:
        """``tokens`` [T], each with its distribution in ``probs`` [T, V]."""
        found = token_statistics(probs, tokens, self._generator)
        self._nll += float(found.nll.sum())
        self._entropy += float(found.entropy.sum())
        self._variance += float(found.variance.sum())
        self._pit.append(found.pit)
        self._excess += (found.rank_counts - found.rank_probs).sum(0)
        self._covariance += found.rank_probs.sum(0).diag() - found.rank_probs.T @ found.rank_probs

    def result(self) -> GoodnessOfFit:
        """The tests of all tokens so far. Raises ValueError where there are none."""
        if not self._pit:
            raise ValueError("no tokens to test: add some")
        pit, deviation = torch.cat(self._pit), math.sqrt(self._variance)
        uniform = stats.kstest(pit.numpy(), "uniform")
        return GoodnessOfFit(
            num_tokens=len(pit),
            nll=self._nll / len(pit),
            entropy=self._entropy / len(pit),
            half_width=Z_95 * deviation / len(pit),
            nll_p_value=two_sided_p_value(self._nll - self._entropy, deviation),
            ks_statistic=float(uniform.statistic),
            ks_p_value=float(uniform.pvalue),
            rank_p_value=chi_square_p_value(self._excess, self._covariance),
        )


def two_sided_p_value(difference: float, deviation: float) -> float:
    """P-value of a normal ``difference`` with mean 0."""
    if deviation == 0:  # one-hot distributions
        return 1.0 if abs(difference) < 1e-9 else 0.0
    return float(2 * stats.norm.sf(abs(difference) / deviation))


def chi_square_p_value(excess: Tensor, covariance: Tensor) -> float:
    """P-value of a normal ``excess`` [R] with mean 0, over the directions in which ``covariance`` is not zero."""
    values, vectors = torch.linalg.eigh(covariance)
    varying = values > 1e-9 * max(1.0, float(values.max()))
    if not varying.any():
        return 1.0 if float(excess.abs().max()) < 1e-6 else 0.0
    statistic = ((vectors.T @ excess)[varying] ** 2 / values[varying]).sum()
    return float(stats.chi2.sf(float(statistic), int(varying.sum())))
