"""Draft tree shapes, and the growers that fill them with tokens from the logits of any drafter."""

from paceline.core.tree import Draw
from paceline.drafters.base import DrafterContext
from paceline.drafters.tree.base import TreeGrower
from paceline.drafters.tree.confident import ConfidentGrower
from paceline.drafters.tree.fused_chain import FusedChain, fused_chain
from paceline.drafters.tree.shapes import Chain, Confident, Shape, Topology
from paceline.drafters.tree.topology import TopologyGrower

__all__ = ["FusedChain", "fused_chain", "make_grower", "possible_draws"]


def make_grower(shape: Shape, context: DrafterContext) -> TreeGrower:
    """The grower of ``shape``, with the draw of ``context``.

    Raises ValueError for nodes with more children than there are tokens.
    """
    if shape.max_width > context.vocab_size:
        raise ValueError(
            f"a tree of {shape.max_width} children per node and a vocabulary of {context.vocab_size}: lower the width"
        )
    if isinstance(shape, Confident):
        return ConfidentGrower(shape)
    assert isinstance(shape, Topology | Chain)
    return TopologyGrower(shape, context.draw, context.device)


def possible_draws(shape: Shape | None, draws: frozenset[Draw] | None) -> frozenset[Draw]:
    """The draws that ``shape`` (None: a chain) allows, limited to ``draws`` (None: all).

    Raises ValueError if none is left.
    """
    possible = frozenset(Draw) if shape is None else shape.draws
    found = possible if draws is None else possible & draws
    if not found:
        given, allowed = (", ".join(d.name.lower() for d in sorted(some)) for some in (draws or (), possible))
        raise ValueError(f"a {type(shape).__name__} tree has tokens that are {allowed}, not {given}: change one")
    return found
