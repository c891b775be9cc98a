"""Two-sample tests of sequences, for next-token distributions that are known only approximately.

Re-encoded text is such a case: its tokens may differ from those that were sampled, so even a correct server's tokens
deviate from the distributions. Correct samples deviate equally. Variances are estimated between sequences, so tokens
within a sequence may depend on each other.
"""

from typing import Any, final

import torch
from scipy import stats
from torch import Tensor

from paceline.audit.goodness_of_fit import (
    NUM_RANKS,
    Z_95,
    GoodnessOfFit,
    chi_square_p_value,
    token_statistics,
    two_sided_p_value,
)

MIN_SEQUENCES = 4 * (1 + NUM_RANKS)  # in each sample


@final
class SequenceSample:
    """Accumulates sequences and how far their tokens deviate from the distributions before them."""

    def __init__(self, *, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._deviations: list[Tensor] = []  # [1 + NUM_RANKS] of each sequence: excess nll, excess rank counts
        self._sizes: list[int] = []
        self._pit: list[Tensor] = []
        self._nll = 0.0

    @property
    def num_tokens(self) -> int:
        """Of all sequences."""
        return sum(self._sizes)

    @property
    def num_sequences(self) -> int:
        """That were added."""
        return len(self._sizes)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the tokens."""
        return self._nll / self.num_tokens

    @property
    def pit(self) -> Tensor:
        """Probability integral transform of all tokens."""
        return torch.cat(self._pit)

    def add(self, probs: Tensor, tokens: Tensor) -> None:
        """One sequence: ``tokens`` [T] and the distributions ``probs`` [T, V] before them."""
        found = token_statistics(probs, tokens, self._generator)
        self._nll += float(found.nll.sum())
        excess = torch.cat(((found.nll - found.entropy)[:, None], found.rank_counts - found.rank_probs), dim=1)
        self._deviations.append(excess.sum(0))
        self._sizes.append(len(tokens))
        self._pit.append(found.pit)

    def mean_deviation(self) -> tuple[Tensor, Tensor]:
        """Mean deviation per token [1 + NUM_RANKS], and its covariance estimated between sequences."""
        deviations, sizes = torch.stack(self._deviations), torch.tensor(self._sizes, dtype=torch.float64)
        mean = deviations.sum(0) / sizes.sum()
        residuals = deviations - sizes[:, None] * mean
        correction = len(sizes) / max(1, len(sizes) - 1)
        return mean, correction * (residuals.T @ residuals) / sizes.sum() ** 2


def two_sample_test(sample: SequenceSample, reference: SequenceSample) -> GoodnessOfFit:
    """Tests of ``sample``, with ``reference`` in place of the expected values.

    Raises ValueError where either has fewer than MIN_SEQUENCES sequences, too few to estimate a covariance.
    """
    if min(sample.num_sequences, reference.num_sequences) < MIN_SEQUENCES:
        raise ValueError(
            f"{sample.num_sequences} sequences against {reference.num_sequences}: give at least {MIN_SEQUENCES} of each"
        )
    (own_mean, own_covariance), (other_mean, other_covariance) = sample.mean_deviation(), reference.mean_deviation()
    difference, covariance = own_mean - other_mean, own_covariance + other_covariance
    deviation = float(covariance[0, 0].sqrt())
    ks: Any = stats.ks_2samp(sample.pit.numpy(), reference.pit.numpy(), method="asymp")
    return GoodnessOfFit(
        num_tokens=sample.num_tokens,
        nll=sample.nll,
        entropy=sample.nll - float(difference[0]),
        half_width=Z_95 * deviation,
        nll_p_value=two_sided_p_value(float(difference[0]), deviation),
        ks_statistic=float(ks.statistic),
        ks_p_value=float(ks.pvalue),
        rank_p_value=chi_square_p_value(difference[1:] * sample.num_tokens, covariance[1:, 1:] * sample.num_tokens**2),
    )
