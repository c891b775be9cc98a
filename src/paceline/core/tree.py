"""The draft: one static-shape tree of tokens per row.

B rows, N nodes, M distinct distributions, V vocabulary, H hidden size.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor


class Draw(IntEnum):
    """How a node's token was drawn, which is what verifiers may assume about it."""

    FIXED = 0  # chosen by a rule (argmax, copy, retrieval): its distribution is one-hot
    SHARED = 1  # drawn with the target's own noise at that position
    IID = 2  # drawn from a recorded distribution with noise of its own
    NO_REPLACEMENT = 3  # as IID, but among the tokens its earlier siblings left

    @property
    def words(self) -> str:
        """What tokens drawn so are, in words for users."""
        return (
            "chosen rather than sampled",
            "sampled with the target's own random numbers",
            "sampled from the draft's probabilities",
            "sampled from the draft's probabilities without repetition",
        )[self]


class NoDraft(IntEnum):
    """Why a row had no draft in a step."""

    DRAFTED = 0  # it did propose something
    OFF = 1  # the plan asked for none, or there is no drafter
    CAPPED = 2  # the row's own num_draft_tokens is 0
    LIMIT = 3  # one token is left to max_tokens, which the target chooses
    NO_MATCH = 4  # no earlier occurrence in the sequence to copy from
    CONTEXT = 5  # the sequence exceeds the draft model's context
    DECLINED = 6  # the drafter's own reason
    FAILED = 7  # the drafter raised an error and is no longer asked
    MEASURED = 8  # the step was taken without a draft to measure what drafting gains
    SLOWER = 9  # the controller expects a draft to cost more than it gains


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Hidden states from which a forward resumes, for nodes that have passed the first layers already.

    For a ``ready`` node, the cache holds those layers' keys and values in the node's slot.
    """

    layer: int  # static: how many layers of the call's view; 0 gives embeddings
    hidden: Tensor  # [B, n, H] the residual stream after them, where ready
    ready: Tensor  # [B, n] bool
    first: int  # static: nodes before this one are ready, wherever they are valid


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A draft for every row. Column 0 is the root: the newest known token, not yet in the target's cache.

    N is static; the topology is data. Parents come before their children, and siblings are in draw order; a node is
    valid only if its parent is. ``depth`` and ``ancestors`` (which include the node itself) follow from ``parents``.
    """

    tokens: Tensor  # [B, N] int64
    parents: Tensor  # [B, N] int64, -1 at the root
    depth: Tensor  # [B, N] int64
    ancestors: Tensor  # [B, N, N] bool; [b, n, m]: m lies on the path from the root to n, n included
    valid: Tensor  # [B, N] bool
    draw: Tensor  # [B, N] int64, values of Draw
    source: Tensor  # [B, N] int64 index into distributions; -1 = a fixed choice
    probs: Tensor | None  # [B, M, V] probabilities, only when the verifier wants them
    origin: Tensor  # [B, N] int64, which drafter
    max_depth: int  # static bound on depth
    chain: bool  # static: node n is the child of node n - 1
    no_draft_reason: NoDraft = NoDraft.DECLINED  # static: why a row has the root alone, if its limits do not say so
    resume: Resume | None = None  # for the target, of all nodes
    # Nodes that the target's forward reads too and that nobody verifies: a tree with the same root. No resume with it.
    unverified: "Tree | None" = None

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    @property
    def scored(self) -> "Tree":
        """What the target's forward reads: this tree, then the nodes of ``unverified`` without its root."""
        beside, nodes, pad = self.unverified, self.num_nodes, torch.nn.functional.pad
        if beside is None:
            return self
        assert self.resume is None, "hidden states are of verified nodes alone"
        below = beside.ancestors[:, 1:]  # [B, u, 1 + u]; of this tree they see the root alone
        ancestors = torch.cat((pad(below[..., :1], (0, nodes - 1)), below[..., 1:]), dim=2)
        parents = torch.where(beside.parents > 0, beside.parents + (nodes - 1), beside.parents)

        def joined(own: Tensor, other: Tensor) -> Tensor:
            return torch.cat((own, other[:, 1:]), dim=1)

        return Tree(
            tokens=joined(self.tokens, beside.tokens),
            parents=joined(self.parents, parents),
            depth=joined(self.depth, beside.depth),
            ancestors=torch.cat((pad(self.ancestors, (0, beside.num_nodes - 1)), ancestors), dim=1),
            valid=joined(self.valid, beside.valid),
            draw=joined(self.draw, beside.draw),
            source=joined(self.source, beside.source),
            origin=joined(self.origin, beside.origin),
            probs=None,
            max_depth=max(self.max_depth, beside.max_depth),
            chain=False,
        )

    @staticmethod
    def make_chain(
        tokens: Tensor,
        valid: Tensor,
        *,
        draw: Draw = Draw.FIXED,
        probs: Tensor | None = None,
        origin: int = 0,
        no_draft_reason: NoDraft = NoDraft.DECLINED,
    ) -> "Tree":
        """A chain: ``tokens`` and ``valid`` [B, N], root first; ``distributions`` [B, N - 1, V] of the drafted
        nodes, if any.
        """
        rows, nodes = tokens.shape
        index = torch.arange(nodes, device=tokens.device)
        order = index.expand(rows, nodes)
        return Tree(
            tokens=tokens,
            parents=order - 1,
            depth=order,
            ancestors=(index[None, :] <= index[:, None]).expand(rows, nodes, nodes),
            valid=valid,
            draw=torch.full_like(tokens, int(draw)),
            source=order - 1 if probs is not None else torch.full_like(tokens, -1),
            probs=probs,
            origin=torch.full_like(tokens, origin),
            max_depth=nodes - 1,
            chain=True,
            no_draft_reason=no_draft_reason,
        )

    @staticmethod
    def make(
        tokens: Tensor,
        parents: Tensor,
        valid: Tensor,
        *,
        max_depth: int,
        draw: Draw = Draw.FIXED,
        source: Tensor | None = None,
        probs: Tensor | None = None,
        origin: int = 0,
        no_draft_reason: NoDraft = NoDraft.DECLINED,
    ) -> "Tree":
        """Any topology: ``tokens``, ``parents`` and ``valid`` [B, N]; ``max_depth`` bounds the depth of every node."""
        nodes = tokens.shape[1]
        index = torch.arange(nodes, device=tokens.device)
        reach = (parents[..., None] == index) | (index[:, None] == index)
        for _ in range(max(1, max_depth).bit_length()):  # reachability doubles in length each round
            reach = (reach.float() @ reach.float()) > 0
        return Tree(
            tokens=tokens,
            parents=parents,
            depth=reach.sum(-1) - 1,
            ancestors=reach,
            valid=valid,
            draw=torch.full_like(tokens, int(draw)),
            source=torch.full_like(tokens, -1) if source is None else source,
            probs=probs,
            origin=torch.full_like(tokens, origin),
            max_depth=max_depth,
            chain=False,
            no_draft_reason=no_draft_reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A verifier's decision, D = tree.max_depth.

    ``num_committed`` is the number of tokens that a row gains, which equals the number of cache slots that become
    committed: the cache gains the root and the accepted nodes, the sequence the accepted tokens and ``next``.
    """

    path: Tensor  # [B, D] int64 accepted nodes without the root, -1 after the last
    num_committed: Tensor  # [B] int64
    next: Tensor  # [B] int64 the correction or bonus, root of the next tree
    picks: Tensor | None = None  # [B, N] int64 the target's own choice after each node, where the rule makes one

    @property
    def nodes(self) -> Tensor:
        """The nodes [B, D + 1] that tokens were chosen after, the root first; the root again after the last."""
        return torch.nn.functional.pad(self.path, (1, 0)).clamp(min=0)

    def took(self, nodes: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Which of ``rows`` gained a token that was chosen after one of ``nodes`` [b, N] bool: [b] bool."""
        at, num = self.nodes[rows], self.num_committed[rows]
        gained = torch.arange(at.shape[1], device=at.device) < num[:, None]
        return (nodes.gather(1, at) & gained).any(-1)


def along_path(states: Tensor, path: Tensor) -> Tensor:
    """Of ``states`` [B, N, H] of nodes those of the root and of ``path`` [B, D]: [B, 1 + D, H]."""
    nodes = torch.nn.functional.pad(path, (1, 0)).clamp(min=0)  # the root is node 0
    return states.gather(1, nodes[..., None].expand(-1, -1, states.shape[-1]))


def join_rows(rows: Tensor, chain: Tree, tree: Tree) -> Tree:
    """``chain`` in the ``rows`` [B] bool, ``tree`` in all others, of one drafter each.

    Nodes keep their numbers; the narrower of the two has invalid ones at its end. The chain is of fixed choices, and
    neither has hidden states to resume from or nodes that are not verified.
    """
    assert chain.chain and tree.resume is None and tree.unverified is None
    wide, chosen, pad = chain if chain.num_nodes > tree.num_nodes else tree, rows[:, None], torch.nn.functional.pad

    def pick(own: Tensor, other: Tensor, fill: int = 0) -> Tensor:
        missing = own.shape[1] - other.shape[1]
        own, other = pad(own, (0, max(0, -missing)), value=fill), pad(other, (0, max(0, missing)), value=fill)
        return torch.where(chosen, own, other)

    tokens, valid = pick(chain.tokens, tree.tokens), pick(chain.valid, tree.valid)
    max_depth = max(chain.max_depth, tree.max_depth)
    if tree.chain:
        joined = replace(wide, tokens=tokens, valid=valid)
    else:
        joined = Tree.make(tokens, pick(chain.parents, tree.parents), valid, max_depth=max_depth)
    return replace(
        joined,
        draw=pick(chain.draw, tree.draw),
        source=pick(chain.source, tree.source, -1),
        probs=tree.probs,
        origin=pick(chain.origin, tree.origin),
        max_depth=max_depth,
        no_draft_reason=tree.no_draft_reason,
    )


def follow(tree: Tree, accepted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Deepest node reached through accepted nodes only.

    ``accepted`` [B, N] bool (the root's entry is ignored). Returns ``leaf`` [B], ``path`` [B, D] and its length [B].
    """
    nodes = tree.num_nodes
    if tree.chain:
        length = (accepted & tree.valid)[:, 1:].cumprod(-1).sum(-1)
        index = torch.arange(1, nodes, device=accepted.device)
        return length, torch.where(index <= length[:, None], index, -1), length
    root = torch.arange(nodes, device=accepted.device) == 0
    passed = (accepted & tree.valid) | root
    reached = (passed[:, None, :] | ~tree.ancestors).all(-1)  # [B, N]
    leaf = torch.where(reached, tree.depth, -1).argmax(-1)  # the first of equally deep nodes
    rows = leaf[:, None, None].expand(-1, 1, nodes)
    on_path = tree.ancestors.gather(1, rows)[:, 0]  # [B, N]
    steps = torch.arange(1, tree.max_depth + 1, device=accepted.device)
    at_depth = on_path[:, None, :] & (tree.depth[:, None, :] == steps[None, :, None])  # [B, D, N]
    path = torch.where(at_depth.any(-1), at_depth.int().argmax(-1), -1)
    length = tree.depth.gather(1, leaf[:, None])[:, 0]
    return leaf, path, length


def path_tokens(tree: Tree) -> Tensor:
    """The tokens on the way from the root to each node, its own included [B, N, D]; -1 after the last."""
    steps = torch.arange(1, tree.max_depth + 1, device=tree.tokens.device)
    if tree.chain:
        return torch.where(
            steps <= torch.arange(tree.num_nodes, device=steps.device)[:, None], tree.tokens[:, None, 1:], -1
        )
    on_path = tree.ancestors & (tree.depth > 0)[:, None]  # [B, N, N]
    at = torch.where(on_path, tree.depth[:, None] - 1, tree.max_depth)
    found = torch.full((*on_path.shape[:2], tree.max_depth + 1), -1, device=at.device)
    return found.scatter(2, at, tree.tokens[:, None].expand_as(at))[..., :-1]
