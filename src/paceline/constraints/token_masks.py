"""Follows grammars along a draft: which nodes they forbid, and which tokens they allow after the others.

One row at a time, its draft as lists. N nodes, n valid nodes, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.constraint import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One row's draft on the host, root first, parents before their children."""

    tokens: Sequence[int]
    parents: Sequence[int]
    valid: Sequence[bool]

    def depth(self, node: int) -> int:
        """Depth of ``node``; 0 for the root."""
        depth = 0
        while node:
            node, depth = self.parents[node], depth + 1
        return depth

    def begun(self, tokens: Sequence[int], *, most: int) -> "tuple[Draft, int]":
        """The chain with at most ``most`` of ``tokens`` in front, and their number; itself if it begins with them."""
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
    """Advance by ``tokens``, without rollback. Raises Refused."""
    for token in tokens:
        if not _advance(grammars, token):
            raise Refused(f"token {token} was chosen where the grammar does not allow it: change the other options")


def prune(grammars: Sequence[Grammar], draft: Draft) -> list[bool]:
    """Which nodes [N] are valid and allowed after their parents."""
    kept = [False] * len(draft.tokens)
    for node in _walk(grammars, draft):
        kept[node] = True
    return kept


def masks(grammars: Sequence[Grammar], draft: Draft, vocab_size: int) -> tuple[list[int], Tensor]:
    """The valid nodes [n] and the tokens allowed after each, bool [n, V]; every node must be allowed."""
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
    """The allowed nodes, depth first. Grammars are at the yielded node; in the end they are rolled back to the root."""
    children: list[list[int]] = [[] for _ in draft.tokens]
    for node in range(len(draft.tokens) - 1, 0, -1):
        if draft.valid[node]:
            children[draft.parents[node]].append(node)  # in reverse order, as the last is popped first
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
