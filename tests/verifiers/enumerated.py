"""Exact distributions of verifiers, by trying every draft and every pattern of coins at once, each in a row of its own.

The target is a table: the distribution of a token depends on the two before it. So is the draft, another one.
"""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from paceline.core.noise import Key, Stream
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Tree
from tests.tables import random_table

VOCAB = 3
BEFORE, ROOT = 2, 1  # the sequence before the draft


@dataclass(frozen=True)
class Shape:
    """Nodes without the root: parents, draws, and the tokens of fixed ones. ``own`` gives each node's draft table."""

    parents: tuple
    draws: tuple
    fixed: tuple = ()
    own: tuple = ()

    @property
    def num_nodes(self):
        return len(self.parents) + 1


def chain(length, draw=Draw.IID, fixed=()):
    return Shape(tuple(range(length)), (draw,) * length, fixed)


IID, WITHOUT, FIXED = Draw.IID, Draw.NO_REPLACEMENT, Draw.FIXED
SHAPES = {
    "chain of 1": chain(1),
    "chain of 3": chain(3),
    "chain of fixed choices": chain(3, FIXED, (2, 0, 1)),
    "chain of both": Shape((0, 1, 2, 3), (IID, FIXED, IID, FIXED), (0, 2, 0, 1)),
    "two siblings": Shape((0, 0), (IID, IID)),
    "three siblings": Shape((0, 0, 0), (IID,) * 3),
    "three siblings of different distributions": Shape((0, 0, 0), (IID,) * 3, own=(0, 1, 2)),
    "two without replacement": Shape((0, 0), (WITHOUT,) * 2),
    "three without replacement": Shape((0, 0, 0), (WITHOUT,) * 3),
    "siblings of fixed choices": Shape((0, 0, 1, 1), (FIXED,) * 4, (2, 0, 1, 2)),
    "siblings of equal fixed choices": Shape((0, 0, 1), (FIXED,) * 3, (2, 2, 0)),
    "a drawn, a fixed and a drawn sibling": Shape((0, 0, 0, 2), (IID, FIXED, IID, IID), (0, 1, 0, 0)),
    "a fixed sibling and two without replacement": Shape((0, 0, 0), (FIXED, WITHOUT, WITHOUT), (1, 0, 0)),
    "two by two": Shape((0, 0, 1, 1, 2, 2), (IID,) * 6),
    "two by two without replacement": Shape((0, 0, 1, 1, 2, 2), (WITHOUT,) * 6),
    "two chains": Shape((0, 0, 1, 2), (IID,) * 4),
    "three chains": Shape((0, 0, 0, 1, 2, 3), (IID,) * 6),
    "two chains, one after the other": Shape((0, 1, 0, 3), (IID,) * 4),
    "a chain that forks": Shape((0, 1, 1, 2), (IID, WITHOUT, WITHOUT, IID)),
    "deep first": Shape((0, 0, 1, 3), (IID,) * 4),
}


class Scripted:
    """Noise with given results of all coins; keeps their probability and the distribution of the last choice."""

    def __init__(self, coins):
        self.coins = coins  # [B, N] bool
        self.weight = torch.ones(len(coins), dtype=torch.float64)
        self.thrown = torch.zeros_like(coins)
        self.probs = None

    def coin(self, numerator, denominator, key):
        assert key.stream is Stream.ACCEPT
        node = torch.as_tensor(key.node).expand(numerator.shape)
        thrown = node < self.coins.shape[1]
        assert not bool((numerator[~thrown] > 0).any()), "a coin that can be accepted has a node's lane"
        u = (numerator / denominator).clamp(max=1)
        chance = torch.where(numerator > 0, u, 0.0)  # also 0 where both are 0
        lands = self.coins.gather(1, node.clamp(max=self.coins.shape[1] - 1)) & thrown
        self.weight *= torch.where(thrown, torch.where(lands, chance, 1 - chance), 1.0).prod(-1)
        at = torch.where(thrown, node, 0)
        assert not bool((self.thrown.gather(1, at) & thrown).any()), "one coin for each node"
        self.thrown = self.thrown.scatter(1, at, torch.ones_like(thrown))
        return lands

    def draw(self, weights, key):
        assert key.stream is Stream.RESIDUAL
        self.probs = (weights / weights.sum(-1, keepdim=True))[:, 0]
        return weights.argmax(-1)


class Rows:
    """The part of a batch that verifiers use."""

    sampling = SimpleNamespace(any_sampled=True)

    def __init__(self, noise, rows):
        self.noise, self.rows = noise, rows
        self.length = torch.full((rows,), 2)

    def warp(self, logits):
        return logits

    def key(self, position, stream, node=0, stage=0):
        return Key(seed=torch.zeros_like(position), position=position, stream=stream, node=node, stage=stage)


@dataclass(frozen=True)
class Tables:
    """Logits [V, V, V] of the target and of draft models."""

    target: torch.Tensor
    drafts: tuple


def tables(seed):
    return Tables(random_table(seed), tuple(random_table(100 * seed + i) for i in range(1, 4)))


def same(p, q):
    """Tables of the target's ``p`` and the draft's ``q`` [V] after every sequence."""
    return Tables(p.log().expand(VOCAB, VOCAB, VOCAB), (q.log().expand(VOCAB, VOCAB, VOCAB),))


def logits_of(tree, tables):
    """The target's logits [B, N, V] after every node."""
    before = torch.where(tree.parents < 0, BEFORE, tree.tokens.gather(1, tree.parents.clamp(min=0)))
    return tables.target[before, tree.tokens]


def walk(shape, tokens):
    """The tokens before every node and the node's own: ``before`` and ``current`` [B, N], the root first."""
    before, current = [torch.full_like(tokens[:, 0], BEFORE)], [torch.full_like(tokens[:, 0], ROOT)]
    for node, parent in enumerate(shape.parents, 1):
        before.append(current[parent])
        current.append(tokens[:, node - 1])
    return torch.stack(before, dim=1), torch.stack(current, dim=1)


def drafts(shape, tables, *, repeat=1, one_distribution=False, valid=None):
    """Every draft: the tree, and the probability of drawing it [B]; each row ``repeat`` times.

    Siblings share a recorded distribution if ``one_distribution``, else each node has one of its own. Nodes that are
    not ``valid`` (all are, if left out) leave their token to later siblings."""
    options = [[shape.fixed[i]] if draw is FIXED else range(VOCAB) for i, draw in enumerate(shape.draws)]
    tokens = torch.tensor(list(itertools.product(*options))).repeat_interleave(repeat, 0)
    rows, nodes = len(tokens), shape.num_nodes
    before, current = walk(shape, tokens)
    own = shape.own or (0,) * (nodes - 1)
    probs, index, weight = [], [], torch.ones(rows, dtype=torch.float64)
    for i, (parent, draw) in enumerate(zip(shape.parents, shape.draws, strict=True)):
        distribution = tables.drafts[own[i]].softmax(-1)[before[:, parent], current[:, parent]]
        twin = next((j for j in range(i) if (shape.parents[j], own[j]) == (parent, own[i]) and index[j] >= 0), None)
        if draw is FIXED:
            index.append(-1)
            continue
        if one_distribution and twin is not None:
            index.append(index[twin])
        else:
            index.append(len(probs))
            probs.append(distribution)
        left = distribution.clone()
        if draw is WITHOUT:
            for j in range(i):
                if shape.parents[j] == parent and (valid is None or valid[j]):
                    left.scatter_(1, tokens[:, j, None], 0.0)
            left = left / left.sum(-1, keepdim=True)
        weight *= left.gather(1, tokens[:, i, None])[:, 0]
    parents = torch.tensor([-1, *shape.parents]).expand(rows, -1)
    straight = shape.parents == tuple(range(nodes - 1))
    depth = [0]
    for parent in shape.parents:
        depth.append(depth[parent] + 1)
    made = Tree.make(
        current,
        parents,
        torch.ones(rows, nodes, dtype=torch.bool),
        max_depth=max(depth),
        source=torch.tensor([-1, *index]).expand(rows, -1),
        probs=torch.stack(probs, dim=1) if probs else None,
    )
    draw = torch.tensor([0, *(int(d) for d in shape.draws)]).expand(rows, -1)
    return replace_tree(made, draw=draw, chain=straight), weight


def partial(shape):
    """Which nodes are valid: of depth 1, in a narrower tree, without first branches, one, all but the last, none.

    A node is valid only if its parent is.
    """
    firsts = [parent not in shape.parents[:i] for i, parent in enumerate(shape.parents)]
    count = len(shape.parents)
    depth_one, others = [parent == 0 for parent in shape.parents], [not first for first in firsts]
    but_last = [node < count - 1 for node in range(count)]
    for wanted in (depth_one, firsts, others, [node == 0 for node in range(count)], but_last, [False] * count):
        valid = []
        for ok, parent in zip(wanted, shape.parents, strict=True):
            valid.append(ok and (parent == 0 or valid[parent - 1]))
        yield valid


def replace_tree(tree, **changes):
    """``dataclasses.replace`` for a slotted class with a field of each name."""
    names = Tree.__dataclass_fields__
    return Tree(**{name: changes.get(name, getattr(tree, name)) for name in names})


@dataclass
class Found:
    """Every way that one step can go: rows [R] with their probabilities."""

    tree: Tree
    outcome: object
    weight: torch.Tensor  # [R]
    distribution: torch.Tensor  # [R, V] of the token after the path
    tables: Tables

    @property
    def accepted(self):
        """Expected number of accepted tokens."""
        return float((self.weight * (self.outcome.num_committed - 1)).sum())

    def joint(self):
        """The distribution of the first D + 1 tokens [V ** (D + 1)], the target going on after the step."""
        length = self.tree.max_depth + 1
        num = self.outcome.num_committed - 1
        padded = torch.nn.functional.pad(self.outcome.path, (0, 1)).clamp(min=0)
        drafted = self.tree.tokens.gather(1, padded)  # [R, D + 1]
        probs, total = self.tables.target.softmax(-1), torch.zeros(VOCAB**length, dtype=torch.float64)
        for cell, sequence in enumerate(itertools.product(range(VOCAB), repeat=length)):
            chance, context = self.weight.clone(), [BEFORE, ROOT]
            for at, token in enumerate(sequence):
                there = torch.where(
                    at < num, (drafted[:, at] == token).double(), probs[context[-2], context[-1], token]
                )
                chance *= torch.where(at == num, self.distribution[:, token], there)
                context.append(token)
            total[cell] = chance.sum()
        return total


def enumerate_step(verifier, shape, tables, *, valid=None, one_distribution=False, dtype=torch.float64):
    """Run ``verifier`` on every draft of ``shape`` under every pattern of coins."""
    patterns = torch.tensor(list(itertools.product((False, True), repeat=shape.num_nodes - 1)))
    patterns = torch.cat((torch.zeros(len(patterns), 1, dtype=torch.bool), patterns), dim=1)
    tree, weight = drafts(shape, tables, repeat=len(patterns), one_distribution=one_distribution, valid=valid)
    if valid is not None:
        tree = replace_tree(tree, valid=torch.tensor([True, *valid]).expand(len(weight), -1))
    noise = Scripted(patterns.repeat(len(weight) // len(patterns), 1))
    outcome = verifier(tree, Scores.of(logits_of(tree, tables).to(dtype)), Rows(noise, len(weight)))
    idle = (noise.coins & ~noise.thrown)[:, 1:].any(-1)  # coins that were not thrown have one result
    weight = torch.where(idle, 0.0, weight * noise.weight)
    distribution = torch.where(weight[:, None] > 0, noise.probs.double(), 0.0)
    return Found(tree, outcome, weight, distribution, tables)


def target_joint(tables, length):
    probs, total = tables.target.softmax(-1), []
    for sequence in itertools.product(range(VOCAB), repeat=length):
        chance, context = 1.0, [BEFORE, ROOT]
        for token in sequence:
            chance *= float(probs[context[-2], context[-1], token])
            context.append(token)
        total.append(chance)
    return torch.tensor(total, dtype=torch.float64)


def distance(found):
    """Total variation between the emitted distribution and the target's."""
    distribution = found.joint()
    assert abs(float(distribution.sum()) - 1) < 1e-5  # single precision is tested too
    return float((distribution - target_joint(found.tables, found.tree.max_depth + 1)).abs().sum() / 2)
