"""Growing trees, for any drafter that can score a node from its path."""

from paceline.drafters.base import Setting
from paceline.drafters.grow.base import Grower
from paceline.drafters.grow.confident import ConfidentGrower
from paceline.drafters.grow.shapes import Confident, Shape, Topology
from paceline.drafters.grow.topology import TopologyGrower


def make_grower(shape: Shape, setting: Setting) -> Grower:
    """What grows ``shape`` as ``setting`` says. Raises ValueError for nodes of more children than there are tokens."""
    if shape.max_width > setting.vocab_size:
        raise ValueError(
            f"a tree of {shape.max_width} children per node and a vocabulary of {setting.vocab_size}: lower the width"
        )
    if isinstance(shape, Confident):
        return ConfidentGrower(shape)
    assert isinstance(shape, Topology)
    return TopologyGrower(shape, setting.draw, setting.device)
