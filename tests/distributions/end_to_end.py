"""Sequences of a tiny transformer under every verifier, drafted by another one or by heads, and their exact joint
distribution.

The target is our decoder with the weights of a random Llama; the draft has the same weights with noise on them.
Distributions come from transformers' own forward over all continuations, and warping from a naive formula
(tests/reference): neither shares code with what is tested. V vocabulary, L tokens of a group's sequences that are
compared, C = V ** L cells."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.tree import Draw
from paceline.decode import Decoder
from paceline.drafters.base import Drafter
from paceline.drafters.tree.shapes import Confident, Shape, Topology
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier
from tests import reference
from tests.distributions.gtest import g_test, tail
from tests.distributions.models import VOCAB, draft_logits, drafter_of, heads, pair, target_logits
from tests.harness import Alternating
from tests.tables import index_of

CAPS = (None, 2, None, 1, None, 3, None, 0)  # draft lengths that rows allow, one of them at random


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows of one prompt and one way to warp: their sequences have one distribution."""

    name: str
    prompt: tuple[int, ...]
    length: int  # L
    share: int  # of the rows
    more: int = 0  # tokens that rows go on for after these, so that drafts reach beyond them
    stop: int | None = None
    min_tokens: int = 0
    warp: dict = field(default_factory=dict, hash=False)

    def request(self, seed: int, cap: int | None) -> Request:
        return Request(
            tokens=self.prompt,
            max_tokens=self.length + self.more,
            stop_tokens=() if self.stop is None else (self.stop,),
            min_tokens=self.min_tokens,
            num_draft_tokens=cap,
            sampling=Sampling(seed=seed, **self.warp),
        )


GROUPS = (
    Group(name="plain", prompt=(3,), length=3, more=2, share=6, warp=dict(temperature=1.0)),
    Group(name="cool", prompt=(1, 4, 0, 2), length=4, share=6, warp=dict(temperature=0.6)),
    Group(name="top-k", prompt=(2, 2, 0, 1, 3, 4, 4, 1, 0), length=4, share=4, warp=dict(temperature=0.9, top_k=2)),
    Group(name="top-p", prompt=(0, 3), length=4, share=5, warp=dict(temperature=1.2, top_p=0.7)),
    Group(name="min-p", prompt=(4, 1, 1), length=3, more=1, share=5, warp=dict(temperature=1.4, min_p=0.3, top_k=4)),
    Group(name="stop", prompt=(0, 2, 4, 1, 3, 2), length=4, stop=2, share=5, warp=dict(temperature=1.0, top_k=3)),
    Group(name="late stop", prompt=(3, 0), length=3, more=1, stop=0, min_tokens=2, share=4, warp=dict(temperature=0.8)),
    Group(name="greedy", prompt=(2, 1, 3, 0, 4), length=4, more=1, share=1),
)


@cache
def exact(group: Group) -> Tensor:
    """The distribution [C] of the group's sequences; one that ends early goes on with its stop token."""
    return joint_distribution(group, target_logits)


@cache
def favoured(group: Group, drafter: str = "model") -> Tensor:
    """The sequences [C] that the draft would give more often than the target does, bool."""
    return joint_distribution(group, draft_logits(drafter)) > exact(group)


def joint_distribution(group: Group, logits_after: Callable[[Tensor], Tensor]) -> Tensor:
    """The distribution [C] of the group's sequences whose tokens come by what ``logits_after`` makes [n, V] of
    sequences [n, T].
    """
    mass = torch.ones(1, dtype=torch.float64)
    for count in range(group.length):
        sequences = torch.tensor(list(product(range(VOCAB), repeat=count)), dtype=torch.int64).reshape(
            VOCAB**count, count
        )
        prompts = torch.tensor(group.prompt).expand(len(sequences), -1)
        with torch.no_grad():
            logits = logits_after(torch.cat((prompts, sequences), dim=1))
        probs = torch.stack(
            [distribution_after(group, row, sequence) for row, sequence in zip(logits, sequences.tolist(), strict=True)]
        )
        mass = (mass[:, None] * probs).flatten()
    return mass


def distribution_after(group: Group, logits: Tensor, sequence: list[int]) -> Tensor:
    """The distribution [V] of the token after ``sequence``, from its ``logits`` [V]."""
    if group.stop is not None:
        if group.stop in sequence:
            return torch.nn.functional.one_hot(torch.tensor(group.stop), VOCAB).double()
        if len(sequence) < group.min_tokens:
            logits = logits.clone()
            logits[group.stop] = -torch.inf
    options = dict(group.warp)
    temperature = options.pop("temperature", 0.0)
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), VOCAB).double()
    return torch.from_numpy(reference.warp((logits / temperature).numpy(), **options))


TREE = Topology(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
# Name -> the shape (None: a chain) and the draft lengths of the steps in turn.
SHAPES: dict[str, tuple[Shape | None, tuple[int, ...]]] = {
    "chains": (None, (3, 1, 2)),
    "tree": (TREE, (3,)),
    "paths": (Topology.parallel(2, 3), (3,)),
    "confident": (Confident(num_drafted=5, depth=3, width=2), (3,)),
    "chain of 1": (None, (1,)),
    "chain of 2": (None, (2,)),
    "chain of 3": (None, (3,)),
    "trees": (TREE, (2, 3, 1)),
}
# Inner nodes stand behind a leaf, so that they are not read in the order in which they stand.
LEAF_FIRST = {"leaf first": (Topology(((0,), (1,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0))), (3,))}
HEAD_SHAPES = {**{label: SHAPES[label] for label in ("chains", "confident")}, **LEAF_FIRST}
ALL_SHAPES = {**SHAPES, **LEAF_FIRST}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One verifier over drafts of one draw and one shape, made by the draft model or by a head."""

    verifier: str
    draw: Draw
    shape: str
    source: str = "model"

    def __str__(self) -> str:
        name = f"{self.verifier}-{self.draw.name.lower()}-{self.shape}" + f"-{self.source}" * (self.source != "model")
        return name.replace(" ", "_")

    @property
    def lossless(self) -> bool:
        return VERIFIERS.find(self.verifier).lossless

    @property
    def knows_distributions(self) -> bool:
        """Whether the verifier weighs the distribution that a token was drawn from, beyond comparing it with the
        target's pick.
        """
        return not VERIFIERS.find(self.verifier).same_tokens

    def drafter(self) -> Drafter:
        return drafter_of(self.source, draw=self.draw, shape=ALL_SHAPES[self.shape][0])


def cases(*, lossless: bool, source: str = "model") -> list[Case]:
    """All that the registry's verifiers take and a draft model, or the head ``source``, can make."""
    found, shapes = [], SHAPES if source == "model" else HEAD_SHAPES
    for name in VERIFIERS.builtin:
        kind = VERIFIERS.find(name)
        for draw, (label, (shape, _)) in product(kind.wants, shapes.items()):
            possible = shape is None or (kind.branches and draw in shape.draws)
            if kind.lossless is lossless and possible:
                found.append(Case(verifier=name, draw=draw, shape=label, source=source))
    return found


def cases_of_heads() -> list[Case]:
    """Every lossless verifier over every draw, in chains, trees and confident trees of each head."""
    return [case for head in heads() for case in cases(lossless=True, source=head)]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What came of a case: the counts [C] of each group's sequences, and how much was accepted."""

    counts: list[Tensor]
    drafted: list[int]  # by depth
    accepted: list[int]
    steps: int
    emitted: int  # tokens

    @property
    def acceptance(self) -> list[float]:
        """By depth, the share of the steps with a draft so deep that kept a token there."""
        return [kept / tried for kept, tried in zip(self.accepted, self.drafted, strict=True)]

    @property
    def tokens_per_step(self) -> float:
        return self.emitted / self.steps

    @property
    def num_sequences(self) -> int:
        return sum(int(counts.sum()) for counts in self.counts)

    def __add__(self, other: "Sampled") -> "Sampled":
        def add(one, another):
            return [a + b for a, b in zip(one, another, strict=True)]

        return Sampled(
            counts=add(self.counts, other.counts),
            drafted=add(self.drafted, other.drafted),
            accepted=add(self.accepted, other.accepted),
            steps=self.steps + other.steps,
            emitted=self.emitted + other.emitted,
        )


def sample(
    case: Case, *, num_sequences: int, rows: int, seed: int, verifier: Callable[[], Verifier] | None = None
) -> Sampled:
    """Decode ``num_sequences`` sequences of all groups, in any order, in a batch of ``rows`` rows.

    Rows that have ended take the next sequences while the others go on. ``seed`` fixes everything; two of different
    seeds share no noise below 10 ** 6 sequences. ``verifier`` takes the place of the registered one."""
    lengths = ALL_SHAPES[case.shape][1]
    plan = Alternating(*lengths, most=max(lengths))
    decoder = Decoder(
        target=pair().target,
        drafter=case.drafter(),
        verifier=(verifier or VERIFIERS.find(case.verifier))(),
        plan=plan,
        rows=rows,
        max_length=max(len(group.prompt) + group.length + group.more for group in GROUPS),
    )
    shares = [index for index, group in enumerate(GROUPS) for _ in range(group.share)]
    mixed = random.Random(seed)
    waiting = [
        (index, GROUPS[index].request(seed * 10**6 + at, CAPS[mixed.randrange(len(CAPS))]))
        for at, index in enumerate(mixed.choices(shares, k=num_sequences))
    ]
    counts = [torch.zeros(VOCAB**group.length, dtype=torch.float64) for group in GROUPS]
    drafted, accepted = torch.zeros(2, plan.max_draft_tokens, dtype=torch.int64)
    steps = emitted = 0
    group_of = torch.full((rows,), -1)  # -1: free
    while waiting or bool((group_of >= 0).any()):
        free = (group_of < 0).nonzero()[:, 0].tolist()
        if waiting and len(free) >= min(rows // 3, len(waiting)):
            taken, waiting = waiting[: len(free)], waiting[len(free) :]
            free = free[: len(taken)]
            decoder.admit([request for _, request in taken], free)
            group_of[free] = torch.tensor([index for index, _ in taken])
        decoder.step()
        assert bool((decoder.cache.length == decoder.batch.length - 1).all())
        assert bool((decoder.batch.length <= decoder.batch.limit).all())
        ended = (group_of >= 0) & ~decoder.batch.active
        drafted += decoder.stats.drafted[ended].sum(0)
        accepted += decoder.stats.accepted[ended].sum(0)
        steps += int(decoder.stats.steps[ended].sum())
        emitted += int(decoder.stats.emitted[ended].sum())
        for index, group in enumerate(GROUPS):
            sequences = sequences_of(decoder, (ended & (group_of == index)).nonzero()[:, 0], group)
            counts[index] += torch.bincount(index_of(sequences, VOCAB), minlength=len(counts[index]))
        group_of[ended] = -1
    return Sampled(counts=counts, drafted=drafted.tolist(), accepted=accepted.tolist(), steps=steps, emitted=emitted)


def sequences_of(decoder: Decoder, rows: Tensor, group: Group) -> Tensor:
    """The sequences [n, L] that ``rows`` of one group have come to; after a stop token there is nothing but it."""
    start = len(group.prompt)
    tokens = decoder.batch.tokens[rows, start : start + group.length]
    missing = start + torch.arange(group.length) >= decoder.batch.length[rows, None]
    assert group.stop is not None or not bool(missing.any())
    return torch.where(missing, group.stop or 0, tokens)


def chances(sampled: Sampled, drafter: str = "model") -> dict[str, float]:
    """The p-value of each group's joint distribution, of all groups together, and of how many sequences ``drafter``
    favours.

    Groups are independent, so the sum of their statistics has the chi-square distribution of the summed degrees of
    freedom. How many favoured sequences there are varies over groups of different distributions less than over one of
    their mean, so that test errs to the safe side; it sees what the others need more sequences for, since verifiers go
    wrong toward the draft's distribution."""
    found, total, freedom = {}, 0.0, 0
    seen = wanted = number = 0.0
    for group, counts in zip(GROUPS, sampled.counts, strict=True):
        distribution, leaning = exact(group), favoured(group, drafter)
        statistic, own = g_test(counts, distribution)
        found[group.name] = tail(statistic, own)
        total, freedom = total + statistic, freedom + own
        seen, number = seen + float(counts[leaning].sum()), number + float(counts.sum())
        wanted += float(distribution[leaning].sum() * counts.sum())
    found["together"] = tail(total, freedom)
    shares = torch.tensor([wanted, number - wanted], dtype=torch.float64) / number
    found["toward the draft"] = tail(*g_test(torch.tensor([seen, number - seen], dtype=torch.float64), shares))
    return found
