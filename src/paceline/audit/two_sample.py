"""Whether two sets of texts come from one source where the laws before their tokens are only nearly known.

Texts that were encoded anew are such a case: the tokens may not be those that were drawn, so even honest texts depart
from the laws. Two honest sets depart alike. Variances are those between texts, whatever happens within them.
"""

import math
from typing import final

import torch
from torch import Tensor

from paceline.audit.goodness_of_fit import HALF_WIDTH, RANKS, Verdict, chi_square, facts_of, kolmogorov, two_sided

FEWEST = 4 * (1 + RANKS)  # texts that are compared


@final
class Texts:
    """Adds up texts, each by how far its tokens depart from their laws."""

    def __init__(self, *, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._departures: list[Tensor] = []  # [1 + RANKS] of each text: of its surprise, and of how often ranks came
        self._sizes: list[int] = []
        self._places: list[Tensor] = []
        self.surprise, self.entropy = 0.0, 0.0

    @property
    def num_tokens(self) -> int:
        """Of all texts."""
        return sum(self._sizes)

    @property
    def num_texts(self) -> int:
        """That were added."""
        return len(self._sizes)

    @property
    def places(self) -> Tensor:
        """Where the tokens lie in their laws, sorted."""
        return torch.cat(self._places).sort().values

    def add(self, laws: Tensor, tokens: Tensor) -> None:
        """A text: ``tokens`` [T] and the law [T, V] before each."""
        facts = facts_of(laws, tokens, self._generator)
        self.surprise += float(facts.surprise.sum())
        self.entropy += float(facts.entropy.sum())
        departure = torch.cat(((facts.surprise - facts.entropy)[:, None], facts.hits - facts.likeliest), dim=1)
        self._departures.append(departure.sum(0))
        self._sizes.append(len(tokens))
        self._places.append(facts.places)

    def mean(self) -> tuple[Tensor, Tensor]:
        """Departure [1 + RANKS] per token, and its covariance, from the differences between texts."""
        departures, sizes = torch.stack(self._departures), torch.tensor(self._sizes, dtype=torch.float64)
        mean = departures.sum(0) / sizes.sum()
        rest = departures - sizes[:, None] * mean
        few = len(sizes) / max(1, len(sizes) - 1)
        return mean, few * (rest.T @ rest) / sizes.sum() ** 2


def compare(texts: Texts, reference: Texts) -> Verdict:
    """What the tests say of ``texts``; what should be is what was seen of ``reference``.

    Raises ValueError where either has fewer than FEWEST texts: their differences would not say how much they vary.
    """
    if min(texts.num_texts, reference.num_texts) < FEWEST:
        raise ValueError(f"{texts.num_texts} texts against {reference.num_texts}: give at least {FEWEST} of each")
    (mean, covariance), (other, uncertainty) = texts.mean(), reference.mean()
    difference, spread = mean - other, covariance + uncertainty
    deviation = math.sqrt(float(spread[0, 0]))
    one, two = texts.places, reference.places
    at = torch.cat((one, two)).sort().values
    shares = (torch.searchsorted(places, at, right=True).double() / len(places) for places in (one, two))
    distance = float(torch.sub(*shares).abs().max())
    surprise = texts.surprise / texts.num_tokens
    return Verdict(
        num_tokens=texts.num_tokens,
        surprise=surprise,
        entropy=surprise - float(difference[0]),
        half_width=HALF_WIDTH * deviation,
        surprise_p=two_sided(abs(float(difference[0])), deviation),
        place_distance=distance,
        place_p=kolmogorov(distance, len(one) * len(two) / (len(one) + len(two))),
        rank_p=chi_square(difference[1:] * texts.num_tokens, spread[1:, 1:] * texts.num_tokens**2),
    )
