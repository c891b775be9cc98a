"""Checks the trees of drafters that are not Paceline's own, so that one that breaks the rules costs its drafts alone.

R rows, N nodes, M distributions, V vocabulary.
"""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import CandidateDrafters

PROBS_TOLERANCE = 1e-2  # of a sum of probabilities: those of half precision round

# What is checked on the device, where a mistake is seen when the step is over.
RULES = (
    "a token id is outside the target's vocabulary",
    "column 0 of tokens is not batch.root, or column 0 of valid not batch.active",
    "parents, depth, ancestors and valid are not those of one tree: make it by Tree.make_chain, Tree.make or "
    "batch.chain",
    "draw, source or origin are beyond what the drafter announces",
    "probs of a node are no distribution: they hold NaN, a negative number, or do not sum to 1",
)


class DraftError(ValueError):
    """A drafter proposed a tree that breaks the rules of core/tree.Tree."""


@final
class DraftGuard:
    """Lets the trees of ``drafter`` through for ``batch``; Paceline's own drafters are not looked at.

    A mistake of shape or type raises at once. Rows whose values are wrong lose their drafts on the device, without
    waiting for it; ``error`` tells afterwards.
    """

    def __init__(self, drafter: Drafter, batch: Batch, vocab_size: int) -> None:
        self._drafter, self._vocab_size = drafter, vocab_size
        self.needed = not _is_own(drafter)
        self._found = torch.zeros(len(RULES), dtype=torch.bool, device=batch.device)  # so far
        self._arrived = self._found
        if batch.device.type != "cpu":
            self._arrived = torch.zeros(len(RULES), dtype=torch.bool, pin_memory=batch.device.type == "cuda")

    def check(self, tree: Tree, batch: Batch, plan: StepPlan) -> Tree:
        """``tree`` without the drafts of rows that break a rule, and no deeper than each row may be drafted for.

        Raises DraftError for what shapes and types tell.
        """
        if not self.needed:
            return tree
        self._check_shapes(tree, batch, plan)
        found = torch.stack(
            (
                (tree.tokens < 0).any(1) | (tree.tokens >= self._vocab_size).any(1),
                ((tree.tokens[:, 0] != batch.root) & batch.active) | (tree.valid[:, 0] != batch.active),
                _wrong_topology(tree),
                self._wrong_numbers(tree),
                _wrong_probs(tree),
            )
        )
        self._found.logical_or_(found.any(1))
        room = batch.room if plan.num_copied else batch.draft_room
        deep = tree.depth > room[:, None]
        return _without(replace(tree, valid=tree.valid & ~deep), found.any(0), batch)

    def send(self) -> None:
        """Queue a copy of what was found behind the step; ``error`` sees it once the step's result has arrived."""
        if self._arrived is not self._found:
            self._arrived.copy_(self._found, non_blocking=True)

    def error(self) -> DraftError | None:
        """What was found in the steps whose results have arrived; None if nothing was."""
        if not self.needed or not self._arrived.any():
            return None
        return DraftError("; ".join(rule for rule, found in zip(RULES, self._arrived, strict=True) if found))

    def _check_shapes(self, tree: Tree, batch: Batch, plan: StepPlan) -> None:
        given: object = tree
        if not isinstance(given, Tree):
            raise DraftError(f"propose gave a {type(given).__name__}: give a Tree, by Tree.make_chain or Tree.make")
        rows, most = batch.rows, self._drafter.max_nodes(plan.max_depth)
        if tree.tokens.dim() != 2 or len(tree.tokens) != rows or not 1 <= tree.num_nodes <= most:
            raise DraftError(
                f"tokens {list(tree.tokens.shape)}: give [{rows}, N], N from 1 to {most} (max_nodes), the root included"
            )
        nodes = tree.num_nodes
        for name in ("tokens", "parents", "depth", "draw", "source", "origin", "valid", "ancestors"):
            tensor: Tensor = getattr(tree, name)
            shape = (rows, nodes, nodes) if name == "ancestors" else (rows, nodes)
            dtype = torch.bool if name in ("valid", "ancestors") else torch.int64
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != batch.device:
                raise DraftError(
                    f"{name} is {list(tensor.shape)} of {tensor.dtype} on {tensor.device}: give {list(shape)} of "
                    f"{dtype} on {batch.device}"
                )
        if not 0 <= tree.max_depth <= plan.max_depth:
            raise DraftError(f"max_depth={tree.max_depth}: the plan allows 0 to {plan.max_depth}")
        if not tree.chain and not self._drafter.branches:
            raise DraftError("the tree is no chain (Tree.chain): say branches = True in the drafter, or make a chain")
        if tree.unverified is not None:
            raise DraftError("tree.unverified is set, which only drafters of Paceline itself may do: leave it None")
        probs = tree.probs
        if probs is not None and (probs.dim() != 3 or probs.shape[::2] != (rows, self._vocab_size)):
            raise DraftError(f"probs {list(probs.shape)}: give [{rows}, M, {self._vocab_size}]")

    def _wrong_numbers(self, tree: Tree) -> Tensor:
        """Rows [R] whose draws, distributions or origins are not among those that there are."""
        most = -1 if tree.probs is None else tree.probs.shape[1] - 1
        drawn = torch.zeros_like(tree.valid)
        for draw in self._drafter.draws:
            drawn |= tree.draw == int(draw)
        if tree.probs is None:  # nothing was recorded that a verifier could look up
            drawn &= (tree.draw != int(Draw.IID)) & (tree.draw != int(Draw.NO_REPLACEMENT))
        drawn[:, 0] = True  # the root was not drawn
        drawn |= ~tree.valid
        known = (tree.source >= -1) & (tree.source <= most)
        known &= (tree.origin >= 0) & (tree.origin < len(self._drafter.origins))
        return ~(drawn & known).all(1)


def _is_own(drafter: Drafter) -> bool:
    if isinstance(drafter, CandidateDrafters):
        return all(map(_is_own, drafter.drafters))
    return type(drafter).__module__.startswith("paceline.")


def _wrong_topology(tree: Tree) -> Tensor:
    """Rows [R] whose parents, depths and ancestors are out of bounds, or do not describe one tree of valid nodes."""
    nodes = tree.num_nodes
    index = torch.arange(nodes, device=tree.tokens.device)
    root = index == 0
    bounded = (tree.parents >= -1) & (tree.parents < index) & (tree.depth >= 0) & (tree.depth <= tree.max_depth)
    if tree.chain:
        bounded &= (tree.parents == index - 1) & (tree.depth == index)
    above = tree.parents.clamp(min=0, max=nodes - 1)
    follows = (tree.parents >= 0) & (tree.depth == tree.depth.gather(1, above) + 1) & tree.valid.gather(1, above)
    follows = torch.where(root, (tree.parents == -1) & (tree.depth == 0), follows)
    inherited = tree.ancestors.gather(1, above[..., None].expand(-1, -1, nodes)) & ~root[:, None]
    path = (tree.ancestors == (inherited | (index[:, None] == index))).all(-1)
    return ~(bounded & (follows & path | ~tree.valid)).all(1)


def _wrong_probs(tree: Tree) -> Tensor:
    """Rows [R] of which a drafted node's distribution is none."""
    if tree.probs is None:
        return torch.zeros_like(tree.valid[:, 0])
    wide = tree.probs.float()
    odd = ~((wide >= 0).all(-1) & ((wide.sum(-1) - 1).abs() <= PROBS_TOLERANCE))  # NaN is neither
    at = tree.source.clamp(min=0, max=odd.shape[1] - 1)
    return (odd.gather(1, at) & (tree.source >= 0) & tree.valid).any(1)


def _without(tree: Tree, bad: Tensor, batch: Batch) -> Tree:
    """``tree`` with the root alone in the rows that are ``bad`` [R], whatever it said of them."""
    rows, nodes = tree.tokens.shape
    index = torch.arange(nodes, device=batch.device)
    root, row = index == 0, bad[:, None]
    parents = index - 1 if tree.chain else torch.where(root, -1, 0)
    depth = index if tree.chain else torch.where(root, 0, 1)
    above = index[None, :] <= index[:, None] if tree.chain else (index[:, None] == index) | root
    return replace(
        tree,
        tokens=torch.where(row, torch.where(root, batch.root[:, None], 0), tree.tokens),
        valid=torch.where(row, root & batch.active[:, None], tree.valid),
        parents=torch.where(row, parents, tree.parents),
        depth=torch.where(row, depth, tree.depth),
        ancestors=torch.where(bad[:, None, None], above.expand(rows, nodes, nodes), tree.ancestors),
        draw=torch.where(row, int(Draw.FIXED), tree.draw),
        source=torch.where(row, -1, tree.source),
        origin=torch.where(row, 0, tree.origin),
        probs=None if tree.probs is None else torch.where(bad[:, None, None], 0.0, tree.probs),
    )
