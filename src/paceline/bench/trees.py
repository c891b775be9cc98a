"""Draft trees as drafters of a sweep: their names, and the shapes that these name. Loads no model.

A tree is named by its nodes in the target's forward, the root included: as many rows as the forward has.
"""

import re

from paceline.drafters.tree.shapes import Confident

MODEL = "model"  # the name of the draft model's drafter, which drafts chains
WIDTH = 3  # children of a node at most; two to four were equally good for the embedded pair

_NAME = re.compile(rf"{MODEL} tree (\d+)")


def tree_name(num_nodes: int) -> str:
    """The drafter that drafts trees of so many nodes, the root included."""
    return f"{MODEL} tree {num_nodes}"


def nodes_of(drafter: str) -> int | None:
    """Nodes of the trees of ``drafter``, the root included; None for what drafts chains or nothing."""
    found = _NAME.fullmatch(drafter)
    return None if found is None else int(found[1])


def runs_draft(drafter: str) -> bool:
    """Whether our own drafter of this name runs the draft model."""
    return drafter == MODEL or nodes_of(drafter) is not None


def shape_of(num_nodes: int, depth: int) -> Confident:
    """The nodes that the draft is surest of, chosen anew in every step: ``num_nodes`` with the root, none deeper."""
    return Confident(num_drafted=num_nodes - 1, depth=depth, width=min(WIDTH, num_nodes - 1))


def read_trees(text: str) -> list[tuple[str, int]]:
    """Names and depths of trees such as "8,16" or "16x6": nodes, and how deep. Without a depth it is half the nodes.

    Raises ValueError for anything else, fewer than 2 nodes, and more levels than there are nodes below the root.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:x\s*(\d+)\s*)?", part)
        nodes = 0 if match is None else int(match[1])
        depth = 0 if match is None else int(match[2] or max(1, nodes // 2))
        if nodes < 2 or not 1 <= depth < nodes:
            raise ValueError(
                f"--tree {text}: give nodes of at least 2, the root included, and if wanted the depth: 8,16 or 16x6"
            )
        if tree_name(nodes) in found:
            raise ValueError(f"--tree {text}: {nodes} nodes twice; give each number of nodes once")
        found[tree_name(nodes)] = depth
    return list(found.items())
