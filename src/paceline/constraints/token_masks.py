"""Grammars at the nodes of a draft: which nodes they forbid, and what they allow after the others.

Knows one row's draft as lists, and no tensors but the masks. N nodes, n nodes that are asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.constraint import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One row's draft on the host, the root first; parents stand before their children."""

    tokens: Sequence[int]
    parents: Sequence[int]
    valid: Sequence[bool]

    def depth(self, node: int) -> int:
        """Of ``node``; that of the root is 0."""
        depth = 0
        while node:
            node, depth = self.parents[node], depth + 1
        return depth

    def begun(self, tokens: Sequence[int], *, most: int) -> "tuple[Draft, int]":
        """A chain that begins with at most so many of ``tokens``, and with how many; the same object if it did so."""
        tokens = tokens[: max(0, min(most, len(self.tokens) - 1))]
        length = len(tokens) + 1
        if list(self.tokens[1:length]) == list(tokens) and all(self.valid[1:length]):
            return self, len(tokens)
        rest = len(self.tokens) - length
        changed = [self.tokens[0], *tokens, *[0] * rest]
        return replace(self, tokens=changed, valid=[True] * length + [False] * rest), len(tokens)


class Refused(ValueError):
    """A token was chosen that a grammar does not allow."""


def commit(grammars: Sequence[Grammar], tokens: Sequence[int]) -> None:
    """Go on by ``tokens`` for good. Raises Refused."""
    for token in tokens:
        if not _advance(grammars, token):
            raise Refused(f"token {token} was chosen where the grammar does not allow it: change the other options")


def prune(grammars: Sequence[Grammar], draft: Draft) -> list[bool]:
    """The valid nodes [N] that may follow their parents."""
    kept = [False] * len(draft.tokens)
    for node in _walk(grammars, draft):
        kept[node] = True
    return kept


def masks(grammars: Sequence[Grammar], draft: Draft, vocab_size: int) -> tuple[list[int], Tensor]:
    """The valid nodes [n] and what may follow each, bool [n, V]; none of them is forbidden."""
    nodes: list[int] = []
    allowed = torch.zeros(sum(draft.valid), vocab_size, dtype=torch.bool)
    for node in _walk(grammars, draft):
        for place, grammar in enumerate(grammars):
            mask = grammar.allowed()[:vocab_size]
            into = allowed[len(nodes), : len(mask)]
            if place:
                into &= mask
                allowed[len(nodes), len(mask) :] = False
            else:
                into.copy_(mask)
        nodes.append(node)
    return nodes, allowed[: len(nodes)]


def _walk(grammars: Sequence[Grammar], draft: Draft) -> Iterator[int]:
    """The valid nodes that may be reached, depth first; the grammars stand after each, and in the end at the text."""
    children: list[list[int]] = [[] for _ in draft.tokens]
    for node in range(len(draft.tokens) - 1, 0, -1):
        if draft.valid[node]:
            children[draft.parents[node]].append(node)  # the first is the last, and is taken first
    if not draft.valid[0]:
        return
    yield 0
    path: list[int] = [0]
    waiting = children[0]
    while waiting:
        node = waiting.pop()
        back = len(path) - 1 - path.index(draft.parents[node])
        if back:
            _retreat(grammars, back)
            del path[-back:]
        if _advance(grammars, draft.tokens[node]):
            path.append(node)
            yield node
            waiting = waiting + children[node]
    if len(path) > 1:
        _retreat(grammars, len(path) - 1)


def _advance(grammars: Sequence[Grammar], token: int) -> bool:
    for place, grammar in enumerate(grammars):
        if not grammar.advance(token):
            for before in grammars[:place]:
                before.rollback(1)
            return False
    return True


def _retreat(grammars: Sequence[Grammar], count: int) -> None:
    for grammar in grammars:
        grammar.rollback(count)
