"""Shapes of draft trees: a fixed topology, or the sizes of a dynamic tree.

The root is the newest known token. It is not counted here; its children have depth 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from paceline.core.tree import Draw


class Shape(Protocol):
    """The shape of a tree before it has grown; a frozen value."""

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        ...

    @property
    def num_drafted(self) -> int:
        """Nodes that it proposes."""
        ...

    @property
    def num_expanded(self) -> int:
        """Nodes that the drafter must score, less the root: those with children, proposed or not."""
        ...

    @property
    def max_width(self) -> int:
        """The most children of a node; the vocabulary must be as large."""
        ...

    @property
    def draws(self) -> frozenset[Draw]:
        """How its tokens can be drawn."""
        ...

    def cut(self, depth: int) -> "Shape":
        """The shape without nodes below ``depth``; a deeper cut proposes and expands at least as many nodes."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """Each token the only child of the one before, as ``Topology.chain``, but of a size that does not grow with it."""

    num_tokens: int

    @property
    def draws(self) -> frozenset[Draw]:
        return frozenset(Draw)

    @property
    def depth(self) -> int:
        return self.num_tokens

    @property
    def num_drafted(self) -> int:
        return self.num_tokens

    @property
    def num_expanded(self) -> int:
        return max(0, self.num_tokens - 1)

    @property
    def max_width(self) -> int:
        return min(1, self.num_tokens)

    @property
    def parents(self) -> tuple[int, ...]:
        """As ``Topology.parents``."""
        return tuple(range(-1, self.num_tokens))

    @property
    def ranks(self) -> tuple[int, ...]:
        """As ``Topology.ranks``."""
        return (0,) * (1 + self.num_tokens)

    def cut(self, depth: int) -> "Chain":
        return Chain(min(depth, self.num_tokens))


@final
@dataclass(frozen=True, slots=True)
class Topology:
    """The same tree at every step. Each node is its path of child ranks: (0,) is the root's first child, (0, 1) that
    one's second.

    What rank r means depends on the draw: with ``FIXED`` it is the (r + 1)-th likeliest token, with ``SHARED`` the
    (r + 1)-th token of Gumbel-top-k with the target's noise, with ``NO_REPLACEMENT`` the (r + 1)-th token drawn, and
    with ``IID`` each is drawn alone, so that two may be equal. Nodes are sorted by depth, then by ranks. Raises
    ValueError for a node whose parent or earlier sibling is missing, and for one given twice.
    """

    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        known = set(self.nodes)
        if len(known) < len(self.nodes):
            raise ValueError(
                f"a tree of {len(self.nodes)} nodes of which only {len(known)} differ: give each node once"
            )
        for node in self.nodes:
            if not node or min(node) < 0:
                raise ValueError(f"tree node {node}: give the ranks of children from the root, each at least 0")
            *parent, rank = node
            if parent and tuple(parent) not in known:
                raise ValueError(f"tree node {node} without its parent {tuple(parent)}: give that one too")
            if rank and (*parent, rank - 1) not in known:
                raise ValueError(f"tree node {node} without its sibling {(*parent, rank - 1)}: give that one too")
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes, key=lambda node: (len(node), node))))

    @staticmethod
    def chain(num_tokens: int) -> "Topology":
        """A chain of ``num_tokens``."""
        return Topology.branching((1,) * num_tokens)

    @staticmethod
    def branching(widths: Sequence[int]) -> "Topology":
        """Every node at depth d has ``widths[d]`` children, d = 0 being the root."""
        if min(widths, default=1) < 1:
            raise ValueError(f"widths {tuple(widths)}: give each depth at least 1 child")
        last: list[tuple[int, ...]] = [()]
        nodes: list[tuple[int, ...]] = []
        for width in widths:
            last = [(*node, rank) for node in last for rank in range(width)]
            nodes.extend(last)
        return Topology(tuple(nodes))

    @staticmethod
    def parallel(count: int, num_tokens: int) -> "Topology":
        """``count`` paths of ``num_tokens`` that share the root alone; independent drafts if draws are ``IID``."""
        if count < 1:
            raise ValueError(f"{count} paths: give at least 1")
        return Topology.branching((count,) + (1,) * (num_tokens - 1) if num_tokens else ())

    @property
    def draws(self) -> frozenset[Draw]:
        return frozenset(Draw)

    @property
    def depth(self) -> int:
        return len(self.nodes[-1]) if self.nodes else 0

    @property
    def num_drafted(self) -> int:
        return len(self.nodes)

    @property
    def num_expanded(self) -> int:
        return len({node[:-1] for node in self.nodes} - {()})

    @property
    def max_width(self) -> int:
        return max((node[-1] + 1 for node in self.nodes), default=0)

    @property
    def parents(self) -> tuple[int, ...]:
        """Each node's parent, the root being node 0 with parent -1."""
        index = {(): 0, **{node: i for i, node in enumerate(self.nodes, start=1)}}
        return (-1, *(index[node[:-1]] for node in self.nodes))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Each node's rank among its siblings; 0 for the root."""
        return (0, *(node[-1] for node in self.nodes))

    def cut(self, depth: int) -> "Topology":
        return Topology(tuple(node for node in self.nodes if len(node) <= depth))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Confident:
    """The dynamic draft tree of EAGLE-2 (2406.16858): the nodes of the highest confidence, per row and step.

    The confidence of a node is the product of draft probabilities along its path. At every depth the ``width`` nodes of
    the highest confidence are expanded with ``width`` children each; of all candidates, the best ``num_drafted`` are
    proposed. The choice of nodes depends on their tokens, so there is no draft distribution to verify against: tokens
    are ``FIXED``. Raises ValueError for counts below 1.
    """

    num_drafted: int
    depth: int
    width: int

    def __post_init__(self) -> None:
        for name, value in (("num_drafted", self.num_drafted), ("width", self.width)):
            if value < 1:
                raise ValueError(f"{name}={value}: give at least 1")
        if self.depth < 0:
            raise ValueError(f"depth={self.depth}: give at least 0")

    @property
    def draws(self) -> frozenset[Draw]:
        return frozenset({Draw.FIXED})

    @property
    def num_expanded(self) -> int:
        return max(0, self.depth - 1) * self.width

    @property
    def max_width(self) -> int:
        return self.width

    @property
    def num_candidates(self) -> int:
        """Nodes from which the proposed ones are chosen."""
        return self.width + (self.depth - 1) * self.width**2 if self.depth else 0

    def cut(self, depth: int) -> Shape:
        if depth < 1 or self.depth < 1:
            return Topology(())
        small = Confident(num_drafted=self.num_drafted, depth=min(depth, self.depth), width=self.width)
        return Confident(num_drafted=min(self.num_drafted, small.num_candidates), depth=small.depth, width=self.width)
