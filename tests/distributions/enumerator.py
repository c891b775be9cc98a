"""A source of noise that takes every outcome of every choice, each in a row of its own.

R rows, n choices of a call, A outcomes of a choice, V vocabulary. A row is one script: the outcomes of all choices so
far, call by call, with its probability. The source knows keys: a key met again gives what it gave before, and one that
serves two different choices is an error, because no pair of numbers drawn from it could be independent.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


class Frontier(Exception):
    """The scripts end before the call whose distributions these are."""

    def __init__(self, probs: Tensor, again: Tensor) -> None:
        super().__init__()
        self.probs = probs  # [R, n, A]
        self.again = again  # [R, n] the outcome that the key has given before; -1 where it is new


class SharedNoise(AssertionError):
    """One key was used for two choices with different distributions."""


@dataclass(frozen=True)
class _Call:
    keys: Tensor  # [R, n]
    probs: Tensor  # [R, n, A]
    outcomes: Tensor  # [R, n]


class Enumerator:
    """Noise (core/noise) that follows ``scripts``, the outcomes [R, n] of each call in turn."""

    def __init__(self, scripts: list[Tensor]) -> None:
        self.scripts = scripts
        self.calls: list[_Call] = []

    def choose(self, scores: Tensor, key) -> Tensor:
        """One of the vocabulary, by the exponentials of ``scores`` [R, ..., V]."""
        return self._take(scores.double().softmax(-1), key)

    def choose_at(self, scores: Tensor, key, at: Tensor) -> Tensor:
        """One key for several distributions: what couples them is a race, which has no outcomes to walk."""
        raise SharedNoise("choices that share their noise are proved pathwise, not by enumeration")

    def draw(self, weights: Tensor, key) -> Tensor:
        """One of the vocabulary, by ``weights`` [R, ..., V]."""
        weights = weights.double()
        return self._take(weights / weights.sum(-1, keepdim=True).clamp(min=1e-300), key)

    def order(self, scores: Tensor, key, count: int) -> Tensor:
        """``count`` different ones in the order in which they are drawn; those without weight come last, in order."""
        weights = (scores - scores.amax(-1, keepdim=True)).double().exp()
        orders = torch.tensor(list(itertools.permutations(range(weights.shape[-1]), count)))  # [A, count]
        probs = torch.ones(*weights.shape[:-1], len(orders), dtype=torch.float64)
        left = weights.sum(-1, keepdim=True).expand_as(probs)
        for place in range(count):
            taken = weights[..., orders[:, place]]
            # Where nothing with weight is left, the rest follows in order of the ids and is no choice.
            rest = torch.stack([(orders[:, place] == self._least(orders[:, :place], weights.shape[-1])).double()])
            probs = probs * torch.where(left > 1e-300, taken / left.clamp(min=1e-300), rest)
            left = (left - taken).clamp(min=0)
            left = torch.where(left < 1e-12 * weights.sum(-1, keepdim=True), 0.0, left)
        return orders[self._take(probs, key)]

    @staticmethod
    def _least(used: Tensor, size: int) -> Tensor:
        free = torch.ones(len(used), size, dtype=torch.bool).scatter_(1, used, False)
        return free.int().argmax(-1)

    def coin(self, numerator: Tensor, denominator: Tensor, key) -> Tensor:
        """True with probability min(1, numerator / denominator)."""
        sure = torch.where(denominator > 0, numerator / denominator.clamp(min=1e-300), (numerator > 0).double())
        heads = sure.double().clamp(0, 1)
        return self._take(torch.stack((1 - heads, heads), dim=-1), key).bool()

    def _take(self, probs: Tensor, key) -> Tensor:
        shape = probs.shape[:-1]
        probs = probs.flatten(1, -2) if probs.dim() > 2 else probs[:, None]
        keys = _hash(key, shape).reshape(probs.shape[0], -1)
        again = torch.full_like(keys, -1)
        for call in self.calls:
            for at in range(call.keys.shape[1]):
                same = keys == call.keys[:, at : at + 1]
                if bool(same.any()):
                    self._check_distributions(probs, call.probs[:, at : at + 1], same)
                    again = torch.where(same, call.outcomes[:, at : at + 1], again)
        for one, two in itertools.combinations(range(keys.shape[1]), 2):
            if bool((keys[:, one] == keys[:, two]).any()):
                raise SharedNoise("two choices of one call have the same key")
        number = len(self.calls)
        if number >= len(self.scripts):
            raise Frontier(probs, again)
        outcomes = self.scripts[number]
        self.calls.append(_Call(keys, probs, outcomes))
        return outcomes.reshape(shape)

    @staticmethod
    def _check_distributions(probs: Tensor, before: Tensor, same: Tensor) -> None:
        if probs.shape[-1] != before.shape[-1] or float(((probs - before).abs().amax(-1) * same).max()) > 1e-12:
            raise SharedNoise("one key serves two choices of different distributions")


def _hash(key, shape) -> Tensor:
    """A number for each key [R, ...] but for its seed: rows are scripts of one and the same sequence."""
    total = torch.zeros(shape, dtype=torch.int64)
    for field, size in ((int(key.stream), 8), (key.stage, 256), (key.node, 1 << 12), (key.step, 1 << 12)):
        total = total * size + field
    return total * (1 << 12) + key.position


def expand(weights: Tensor, frontier: Frontier) -> tuple[Tensor, Tensor, Tensor]:
    """Every row for every outcome of the next call: the row it comes from [S], its weight [S], the outcomes [S, n]."""
    rows = torch.arange(len(weights))
    outcomes = torch.empty(len(weights), 0, dtype=torch.int64)
    for at in range(frontier.probs.shape[1]):
        distribution = frontier.probs[rows, at]  # [S, A]
        again = frontier.again[rows, at]
        distribution = torch.where(
            again[:, None] >= 0, torch.nn.functional.one_hot(again.clamp(min=0), distribution.shape[-1]), distribution
        )
        grown = weights[:, None] * distribution
        parent, outcome = (grown > 0).nonzero(as_tuple=True)
        rows, weights = rows[parent], grown[parent, outcome]
        outcomes = torch.cat((outcomes[parent], outcome[:, None]), dim=1)
    return rows, weights, outcomes
