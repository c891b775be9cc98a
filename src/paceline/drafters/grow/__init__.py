"""Growing trees, for any drafter that can score a node from its path."""

from paceline.core.tree import Draw
from paceline.drafters.base import Setting
from paceline.drafters.grow.base import Grower
from paceline.drafters.grow.chain import ChainGrower, Run
from paceline.drafters.grow.confident import ConfidentGrower
from paceline.drafters.grow.shapes import Confident, Shape, Topology
from paceline.drafters.grow.topology import TopologyGrower

PICKED = frozenset({Draw.FIXED, Draw.SHARED})  # a chain's tokens that need no noise but the target's


def make_grower(shape: Shape, setting: Setting, run: Run | None = None) -> Grower:
    """What grows ``shape`` as ``setting`` says; chains of a model's own picks by ``run``, if there is one.

    Raises ValueError for nodes of more children than there are tokens.
    """
    if shape.max_width > setting.vocab_size:
        raise ValueError(
            f"a tree of {shape.max_width} children per node and a vocabulary of {setting.vocab_size}: lower the width"
        )
    if isinstance(shape, Confident):
        return ConfidentGrower(shape)
    assert isinstance(shape, Topology)
    plain = TopologyGrower(shape, setting.draw, setting.device)
    if run is None or shape.max_width > 1 or shape.depth == 0 or setting.draw not in PICKED:
        return plain
    return ChainGrower(plain, run, greedy=setting.draw is Draw.FIXED)


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
