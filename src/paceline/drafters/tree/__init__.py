"""Growing trees, for any drafter that can score a node from its path."""

from paceline.core.tree import Draw
from paceline.drafters.base import DrafterContext
from paceline.drafters.tree.base import Grower
from paceline.drafters.tree.chain import ChainGrower, fused_chain
from paceline.drafters.tree.confident import ConfidentGrower
from paceline.drafters.tree.shapes import Confident, Shape, Topology
from paceline.drafters.tree.topology import TopologyGrower

__all__ = ["ChainGrower", "fused_chain", "make_grower", "possible_draws"]


def make_grower(shape: Shape, context: DrafterContext) -> Grower:
    """What grows ``shape`` as ``context`` says.

    Raises ValueError for nodes of more children than there are tokens.
    """
    if shape.max_width > context.vocab_size:
        raise ValueError(
            f"a tree of {shape.max_width} children per node and a vocabulary of {context.vocab_size}: lower the width"
        )
    if isinstance(shape, Confident):
        return ConfidentGrower(shape)
    assert isinstance(shape, Topology)
    return TopologyGrower(shape, context.draw, context.device)


def possible_draws(shape: Shape | None, draws: frozenset[Draw] | None) -> frozenset[Draw]:
    """How the tokens of ``shape`` (None: a chain) can be drawn, of ``draws`` (None: all ways).

    Raises ValueError where nothing is left.
    """
    possible = frozenset(Draw) if shape is None else shape.draws
    found = possible if draws is None else possible & draws
    if not found:
        given, allowed = (", ".join(d.name.lower() for d in sorted(some)) for some in (draws or (), possible))
        raise ValueError(f"a {type(shape).__name__} tree has tokens that are {allowed}, not {given}: change one")
    return found
