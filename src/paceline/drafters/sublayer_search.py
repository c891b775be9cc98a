"""The choice of sub-layers to skip while decoding (SWIFT, 2410.06916): sets are tried on what was generated last.

A set's *matchness* is how often the target without it, in one forward over the last generated tokens, predicts the
next. L layers, w tokens of a window, V vocabulary.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from paceline.core.batch import Batch
from paceline.core.host import integers
from paceline.core.tree import Tree
from paceline.drafters.base import DrafterContext
from paceline.models.sublayers import LayerSkipping, SkippedSublayers

RANDOM_FIRST, RANDOM_EVERY = 10, 4  # trials before the estimator takes part, and random ones among its own
GOOD = 0.25  # share of the trials that the estimator takes as good
SAMPLES = 24  # sets that it chooses from


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTheFly:
    """Options of the search: ``ratio`` of all sub-layers is skipped, but none of the first and last layer.

    After ``every`` drafted steps, or as soon as the plan lets it, one set is tried, on the last ``window`` tokens of
    the row that has generated most. The search ends when a set's matchness is above ``enough``, or after ``budget``
    trials. Raises ValueError for what is no share or below 1.
    """

    ratio: float = 0.45
    window: int = 32
    every: int = 4
    budget: int = 64
    enough: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, share in (("ratio", self.ratio), ("enough", self.enough)):
            if not 0 < share < 1:
                raise ValueError(f"{name}={share}: give a share between 0 and 1")
        for name, count in (("window", self.window), ("every", self.every), ("budget", self.budget)):
            if count < 1:
                raise ValueError(f"{name}={count}: give at least 1")


@final
class SublayerSearch:
    """Tries sets between steps. ``best`` is the set to draft with; ``first`` (if not empty) is tried first.

    It keeps a cache of one row: the prefix of a window is copied there, so that nothing of the target's is written.
    Deterministic by the seed and by what is generated.
    """

    def __init__(self, options: OnTheFly, context: DrafterContext, *, first: SkippedSublayers) -> None:
        assert isinstance(context.target, LayerSkipping)
        num_layers = context.target.num_layers
        # Sub-layers by number: the attention of layer i is 2i, its MLP 2i + 1.
        inner = range(2, 2 * num_layers - 2)
        count = min(len(inner), round(options.ratio * 2 * num_layers))
        self.options, self.target, self.source = options, context.target, context.cache
        self.proposals = Proposals(inner, count, seed=options.seed)
        self.best = first if len(first) else as_skipped(_spread(inner, count))
        self.matchness: float | None = None  # of the best, when it was tried last
        self.cache = context.target.new_cache(1, context.cache.capacity).view()
        self.num_tried = self.num_steps = 0
        self._due = False
        self.seen: tuple[int, int] | None = None  # row and length of the last window

    @property
    def done(self) -> bool:
        """Whether the set stays from now on."""
        found = self.matchness is not None and self.matchness > self.options.enough
        return found or self.num_tried >= self.options.budget or not self.proposals.count

    def step(self, batch: Batch, *, may_try: bool) -> bool:
        """Try one set where it is time for that, and if it may; whether ``best`` is another one now.

        A trial waits for the device.
        """
        self.num_steps += 1
        self._due = self._due or self.num_steps % self.options.every == 0
        if self.done or not (self._due and may_try):
            return False
        self._due = False
        lengths, active = integers(batch.length), integers(batch.active.long())
        generated = {
            row: lengths[row] - len(request.tokens)
            for row, request in enumerate(batch.requests)
            if request is not None and active[row]
        }
        row = max(generated, key=lambda one: generated[one], default=None)
        if row is None or generated[row] < self.options.window or self.seen == (row, lengths[row]):
            return False
        self.seen = (row, lengths[row])
        self._copy_prefix(row, lengths[row] - 1 - self.options.window)
        text = batch.tokens[row, lengths[row] - 1 - self.options.window : lengths[row]]
        if self.matchness is None:
            self.matchness = self._try(self.best, text)
            return False
        proposed = as_skipped(self.proposals.next())
        matchness = self._try(proposed, text)
        if matchness <= self.matchness or matchness <= self._try(self.best, text):  # the best anew, on the same window
            return False
        self.best, self.matchness = proposed, matchness
        return True

    def _copy_prefix(self, row: int, length: int) -> None:
        own, source = self.cache.storage, self.source.storage
        own.keys[:, 0, :length] = source.keys[:, row, :length]
        own.values[:, 0, :length] = source.values[:, row, :length]
        self.cache.truncate(length)

    def _try(self, skipped: SkippedSublayers, text: torch.Tensor) -> float:
        """The matchness of ``skipped`` over ``text`` [w + 1], whose first token follows the copied prefix."""
        assert isinstance(self.target, LayerSkipping)
        inputs, wanted = text[None, :-1], text[1:]
        logits = self.target.without(skipped)(
            Tree.make_chain(inputs, torch.ones_like(inputs, dtype=torch.bool)), self.cache
        ).logits
        assert logits is not None
        matchness = float((logits[0].argmax(-1) == wanted).double().mean())
        self.num_tried += 1
        self.proposals.tell(as_numbers(skipped), matchness)
        return matchness


@final
class Proposals:
    """Sets of ``count`` of ``choices``: at random first, then as a tree-structured Parzen estimator suggests.

    The estimator takes the choices as independent, and compares how often the best sets have each with how often the
    others do (Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011).
    """

    def __init__(self, choices: Sequence[int], count: int, *, seed: int) -> None:
        self.choices, self.count, self.random = choices, count, random.Random(seed)
        self.trials: list[tuple[frozenset[int], float]] = []

    def tell(self, chosen: frozenset[int], score: float) -> None:
        """A set was tried."""
        self.trials.append((chosen, score))

    def next(self) -> frozenset[int]:
        """The set to try."""
        known = len(self.trials)
        if known < RANDOM_FIRST or known % RANDOM_EVERY == 0:
            return frozenset(self.random.sample(self.choices, self.count))
        ranked = sorted(self.trials, key=lambda trial: -trial[1])
        split = max(2, math.ceil(GOOD * known))
        good, bad = ({c: _share(c, part) for c in self.choices} for part in (ranked[:split], ranked[split:]))
        drawn = [self._draw(good) for _ in range(SAMPLES)]
        tried = {chosen for chosen, _ in self.trials}
        fresh = [one for one in drawn if one not in tried] or drawn
        return max(fresh, key=lambda chosen: sum(_logit(good[c]) - _logit(bad[c]) for c in sorted(chosen)))

    def _draw(self, share: dict[int, float]) -> frozenset[int]:
        """A set whose members are drawn by the odds of their shares (the largest of perturbed logits)."""
        keys = {c: _logit(share[c]) - math.log(-math.log(1 - self.random.random())) for c in self.choices}
        return frozenset(sorted(keys, key=lambda c: -keys[c])[: self.count])


def as_skipped(numbers: frozenset[int]) -> SkippedSublayers:
    """The sub-layers of these numbers."""
    return SkippedSublayers(
        attention=frozenset(n // 2 for n in numbers if n % 2 == 0), mlp=frozenset(n // 2 for n in numbers if n % 2)
    )


def as_numbers(skipped: SkippedSublayers) -> frozenset[int]:
    """The numbers of the sub-layers."""
    return frozenset({2 * layer for layer in skipped.attention} | {2 * layer + 1 for layer in skipped.mlp})


def _spread(choices: Sequence[int], count: int) -> frozenset[int]:
    """``count`` of ``choices``, evenly."""
    return frozenset(choices[(2 * i + 1) * len(choices) // (2 * count)] for i in range(count))


def _share(choice: int, trials: Sequence[tuple[frozenset[int], float]]) -> float:
    """How many of the sets have ``choice``, drawn towards a half."""
    return (sum(choice in chosen for chosen, _ in trials) + 0.5) / (len(trials) + 1)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
