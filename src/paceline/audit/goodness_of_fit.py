"""Whether tokens were drawn from the laws that they are said to come from. Knows nothing of models.

T tokens, V vocabulary. Three tests, whose null laws do not depend on what the laws are: the tokens' surprise against
the laws' entropy; where the tokens lie in the laws, likeliest first, which is uniform for honest draws; and how often
the likeliest, the second and so on were drawn.
"""

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

LEVEL = 0.01  # of false alarms, all tests together
RANKS = 8  # that are counted one by one
HALF_WIDTH = 1.96  # of an interval of 95 %, in standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the tests say of ``num_tokens`` tokens; natural logarithms."""

    num_tokens: int
    surprise: float  # mean of -log p(token)
    entropy: float  # mean of what it should be
    half_width: float  # of the 95 % interval of their difference, for honest draws
    surprise_p: float  # how likely so large a difference is, for honest draws
    place_distance: float  # largest distance of the places' distribution from the uniform one
    place_p: float
    rank_p: float  # of the counts of the RANKS likeliest tokens

    @property
    def honest(self) -> bool:
        """Whether no test speaks against it, at LEVEL together."""
        return 3 * min(self.surprise_p, self.place_p, self.rank_p) >= LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the tests look at, for each of T tokens; natural logarithms."""

    surprise: Tensor  # [T], -log p(token)
    entropy: Tensor  # [T], what it should be on average
    variance: Tensor  # [T], of the surprise
    places: Tensor  # [T] in 0 .. 1: the mass of likelier tokens, and a random part of the token's own
    hits: Tensor  # [T, RANKS], 1 where the token is the likeliest, the second ...
    likeliest: Tensor  # [T, RANKS], what that should be on average


def facts_of(laws: Tensor, tokens: Tensor, generator: torch.Generator) -> Facts:
    """Of ``tokens`` [T] under ``laws`` [T, V]; ``generator`` decides where in its own interval a token lies."""
    laws = laws.double()
    logs = torch.where(laws > 0, laws, 1.0).log()
    entropy = -(laws * logs).sum(-1)
    own = laws.gather(-1, tokens[:, None])
    before = (laws > own) | ((laws == own) & (torch.arange(laws.shape[-1]) < tokens[:, None]))
    within = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    largest = laws.topk(min(RANKS, laws.shape[-1])).values
    return Facts(
        surprise=-own[:, 0].log(),
        entropy=entropy,
        variance=((laws * logs**2).sum(-1) - entropy**2).clamp(min=0),
        places=(laws * before).sum(-1) + within * own[:, 0],
        hits=(before.sum(-1)[:, None] == torch.arange(RANKS)).double(),
        likeliest=torch.nn.functional.pad(largest, (0, RANKS - largest.shape[-1])),
    )


@final
class Tokens:
    """Adds up tokens and the laws before them."""

    def __init__(self, *, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._surprise, self._entropy, self._variance = 0.0, 0.0, 0.0
        self._places: list[Tensor] = []
        self._excess = torch.zeros(RANKS, dtype=torch.float64)  # tokens of each rank beyond what is expected
        self._covariance = torch.zeros(RANKS, RANKS, dtype=torch.float64)

    def add(self, laws: Tensor, tokens: Tensor) -> None:
        """``tokens`` [T], each with the law [T, V] it should have been drawn from."""
        facts = facts_of(laws, tokens, self._generator)
        self._surprise += float(facts.surprise.sum())
        self._entropy += float(facts.entropy.sum())
        self._variance += float(facts.variance.sum())
        self._places.append(facts.places)
        self._excess += (facts.hits - facts.likeliest).sum(0)
        self._covariance += facts.likeliest.sum(0).diag() - facts.likeliest.T @ facts.likeliest

    def verdict(self) -> Verdict:
        """Of everything so far. Raises ValueError where nothing was added."""
        places = torch.cat(self._places).sort().values if self._places else torch.empty(0)
        count = len(places)
        if count == 0:
            raise ValueError("no tokens to judge: add some")
        deviation = math.sqrt(self._variance)
        difference = abs(self._surprise - self._entropy)
        steps = torch.arange(count + 1, dtype=torch.float64) / count
        distance = float(torch.maximum(steps[1:] - places, places - steps[:-1]).max())
        return Verdict(
            num_tokens=count,
            surprise=self._surprise / count,
            entropy=self._entropy / count,
            half_width=HALF_WIDTH * deviation / count,
            surprise_p=two_sided(difference, deviation),
            place_distance=distance,
            place_p=kolmogorov(distance, count),
            rank_p=chi_square(self._excess, self._covariance),
        )


def chi_square(excess: Tensor, covariance: Tensor) -> float:
    """Probability of at least the weighted size of ``excess`` [R], by the law of as many directions as vary."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > 1e-9 * max(1.0, float(values.max()))
    along = (vectors.T @ excess)[kept]
    freedom, statistic = int(kept.sum()), float((along**2 / values[kept]).sum())
    if freedom == 0:
        return 1.0 if float(excess.abs().max()) < 1e-6 else 0.0
    halves = (torch.tensor(number / 2, dtype=torch.float64) for number in (freedom, statistic))
    return float(torch.special.gammaincc(*halves))


def two_sided(difference: float, deviation: float) -> float:
    """Probability of at least this difference, either way, by the normal law."""
    if deviation == 0:  # certain laws leave no room
        return 1.0 if difference < 1e-9 else 0.0
    return math.erfc(difference / deviation / math.sqrt(2))


def kolmogorov(distance: float, count: float) -> float:
    """Probability of at least this distance for uniform places, by the asymptotic series with Stephens' correction."""
    root = math.sqrt(count)
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.3:  # the series does not converge there, and the probability is 1 to five digits
        return 1.0
    return min(1.0, max(0.0, 2 * sum((-1) ** (j - 1) * math.exp(-2 * (j * scaled) ** 2) for j in range(1, 101))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share that was seen beside the one that should have been, of ``count`` independent chances."""

    count: int
    seen: float
    expected: float
    half_width: float  # of the 95 % interval of their difference
    p: float = field(default=1.0)


def judge_rate(hits: Tensor, chances: Tensor) -> Rate:
    """``hits`` [T] of 0 and 1 against the probabilities ``chances`` [T]. Raises ValueError where there are none."""
    count = len(hits)
    if count == 0:
        raise ValueError("no chances to judge: give some")
    chances = chances.double().clamp(0, 1)
    deviation = math.sqrt(float((chances * (1 - chances)).sum()))
    difference = abs(float(hits.double().sum() - chances.sum()))
    return Rate(
        count=count,
        seen=float(hits.double().mean()),
        expected=float(chances.mean()),
        half_width=HALF_WIDTH * deviation / count,
        p=two_sided(difference, deviation),
    )


def chance_of_rejection(p: Tensor, q: Tensor) -> Tensor:
    """Probability [T] that speculative sampling accepts a draw from ``q`` [T, V] for ``p`` (2211.17192)."""
    return torch.minimum(p, q).sum(-1)


def chance_of_coupling(p: Tensor, q: Tensor) -> Tensor:
    """Probability [T] that two races with one noise have one winner (2408.07978): p, q [T, V].

    The sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x)), in one pass over the tokens by p / q.
    """
    both = (p > 0) & (q > 0)
    ratio = torch.where(p > 0, torch.where(q > 0, p / torch.where(q > 0, q, 1.0), torch.inf), 0.0)
    order = ratio.argsort(dim=-1)
    own, theirs, rising = p.gather(-1, order), q.gather(-1, order), ratio.gather(-1, order)
    # At x, those with a larger ratio count by p, the others by q; equal ratios count alike either way.
    above = own.flip(-1).cumsum(-1).flip(-1)
    below = theirs.cumsum(-1) - theirs
    weight = above / torch.where(own > 0, own, 1.0) + below / torch.where(theirs > 0, theirs, 1.0)
    valid = both.gather(-1, order) & rising.isfinite()
    return torch.where(valid, 1 / torch.where(valid, weight, 1.0), 0.0).sum(-1)
