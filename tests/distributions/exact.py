"""The exact distribution of what one or two steps emit, through ``Decoder.step``.

V vocabulary, L tokens of the block that distributions are compared over.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.models.base import LM
from tests.distributions.enumerator import Enumerator, Frontier, expand
from tests.distributions.processed import processed_distributions
from tests.harness import PerRow, request
from tests.tables import TableLM, index_of

PROMPT = (2, 1)


@dataclass(frozen=True)
class Found:
    """What was enumerated: the distribution of the next L tokens [V ** L], and what the steps gave."""

    distribution: Tensor
    num_rows: int  # scripts
    accepted: float  # expected tokens accepted in the first step
    weight: float  # of all scripts together


def output_distribution(*, target: Tensor, drafter, verifier, k: int, steps: int = 1, plan=Fixed, **options) -> Found:
    """The distribution of the L = steps * (k + 1) tokens after PROMPT.

    ``target`` [V, V, V] are logits (tests/tables), ``drafter`` makes a fresh drafter, ``plan`` a fresh plan of at
    most ``k`` tokens, ``options`` are a request's.
    Where steps emit fewer than L tokens, the rest is drawn from the target's own distribution: an error in what was
    emitted stays, and nothing is added to it."""
    length = steps * (k + 1)
    asked = request(list(PROMPT), max_tokens=length + k + 2, **options)
    decoder, weights, accepted = enumerate_steps(
        target=target, drafter=drafter, verifier=verifier, k=k, steps=steps, asked=asked, plan=plan
    )
    distribution = _complete(decoder, weights, target, length, options)
    return Found(distribution=distribution, num_rows=len(weights), accepted=accepted, weight=float(weights.sum()))


def enumerate_steps(*, target: LM | Tensor, drafter, verifier, k: int, steps: int, asked: Request, plan=Fixed):
    """Take ``steps`` steps of the request ``asked``, with a row for every outcome of the random choices. ``target`` are
    logits [V, V, V], or an LM.

    Returns the decoder, the probability of each row, and the expected number of accepted tokens in the first step.
    """
    scripts: list[Tensor] = []
    weights = torch.ones(1, dtype=torch.float64)
    accepted, done = 0.0, 0
    while True:
        decoder = Decoder(
            target=TableLM(target) if isinstance(target, Tensor) else target,
            drafter=drafter(),
            verifier=verifier(),
            plan=plan(k),
            rows=len(weights),
            max_length=len(asked.tokens) + asked.max_tokens,
            noise=Enumerator(scripts),
            guidance=asked.guidance is not None,
        )
        if isinstance(decoder.plan, PerRow):
            decoder.plan.batch = decoder.batch
        decoder.admit([asked] * len(weights), range(len(weights)))
        try:
            for step in range(steps):
                decoder.step()
                assert not decoder.constraints.failures
                if step == 0:
                    accepted = float((weights * torch.tensor(decoder.results().num_accepted)).sum())
                if step == done and step + 1 < steps:
                    rows, weights = merge(decoder, weights)
                    scripts = [outcomes[rows] for outcomes in scripts]
                    done += 1
                    break
            else:
                return decoder, weights, accepted
        except Frontier as frontier:
            rows, weights, outcomes = expand(weights, frontier)
            scripts = [*(before[rows] for before in scripts), outcomes]


def merge(decoder: Decoder, weights: Tensor) -> tuple[Tensor, Tensor]:
    """One row for each state that the next step can meet: its index, and the weight of all rows in that state."""
    batch = decoder.batch
    known = torch.arange(batch.max_length) < batch.length[:, None]
    state = [batch.tokens[:, :-1] * known, batch.length[:, None]]
    state += [length[:, None] for length in _lengths(decoder.drafter)]
    _, cell = torch.unique(torch.cat(state, dim=1), dim=0, return_inverse=True)
    total = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add_(0, cell, weights)
    first = torch.full_like(total, len(cell), dtype=torch.int64)
    first.scatter_reduce_(0, cell, torch.arange(len(cell)), "amin")
    return first, total


def _lengths(drafter):
    """What a drafter and those that it is made of have read of each row [R]."""
    for name in ("cache", "stage"):
        kept = getattr(drafter, name, None)
        if kept is not None:
            yield kept.batch.length if name == "stage" else kept.length
    for part in drafter.parts:
        yield from _lengths(part)


def _complete(decoder: Decoder, weights: Tensor, target: Tensor, length: int, options) -> Tensor:
    """Distribution [V ** L]: what was emitted, and the target's own distribution for what is missing."""
    vocab, batch = target.shape[-1], decoder.batch
    num = batch.length - len(PROMPT)
    mass = torch.zeros(1, dtype=torch.float64)  # of the rows that have ended, over sequences of the tokens so far
    for count in range(1, length + 1):
        rows = (num == count).nonzero()[:, 0]
        cells = index_of(batch.tokens[rows, len(PROMPT) : len(PROMPT) + count], vocab)
        mass = extend(mass, distributions_after(target, count - 1, options)).index_add_(0, cells, weights[rows])
    return mass


def extend(mass: Tensor, probs: Tensor) -> Tensor:
    """Mass over sequences of some tokens [C] to one token more, each by the distribution after it [C, V]."""
    return (mass[:, None] * probs).flatten()


def distributions_after(target: Tensor, count: int, options) -> Tensor:
    """The target's distribution after every sequence of ``count`` tokens [V ** count, V]."""
    vocab = target.shape[-1]
    if not options.keys().isdisjoint(("processing", "stop_tokens")):
        return processed_distributions(target, PROMPT, count, options)
    cell = torch.arange(vocab**count)
    current = cell % vocab if count >= 1 else torch.full_like(cell, PROMPT[1])
    before = cell // vocab % vocab if count >= 2 else torch.full_like(cell, PROMPT[1] if count == 1 else PROMPT[0])
    return warped(target, options)[before, current]


def target_distribution(target: Tensor, length: int, options) -> Tensor:
    """The distribution of the next ``length`` tokens by the target alone; a sequence that ends goes on with its stop
    token.
    """
    mass = torch.ones(1, dtype=torch.float64)
    for count in range(length):
        mass = extend(mass, distributions_after(target, count, options))
    return mass


def warped(target: Tensor, sampling) -> Tensor:
    """The target's distribution after every context, by plain formulas that share nothing with the decoder."""
    top_k, top_p = sampling.get("top_k", 0), sampling.get("top_p", 1.0)
    scores = target / sampling.get("temperature", 1.0)
    if top_k:
        least = scores.sort(-1, descending=True).values[..., top_k - 1 : top_k]
        scores = scores.masked_fill(scores < least, -torch.inf)
    distribution = scores.softmax(-1)
    if top_p < 1:
        order = distribution.sort(-1, descending=True)
        before = order.values.cumsum(-1) - order.values
        least = order.values.masked_fill(before >= top_p, torch.inf).amin(-1, keepdim=True)
        distribution = distribution.masked_fill(distribution < least, 0.0)
    return distribution / distribution.sum(-1, keepdim=True)


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation."""
    return float((one - other).abs().sum() / 2)
