"""Chains whose constant parts are made once."""

from dataclasses import fields

import pytest
import torch

from paceline.core.chains import ChainTrees
from paceline.core.tree import NoDraft, Tree


@pytest.mark.parametrize("depth", range(5))
def test_trees_are_those_of_make_chain(depth):
    chains = ChainTrees(3, 4, torch.device("cpu"))
    tokens = torch.arange(3 * (depth + 1)).view(3, -1)
    made, other = (
        chains.tree(tokens, tokens > 1, NoDraft.NO_MATCH),
        Tree.make_chain(tokens, tokens > 1, no_draft_reason=NoDraft.NO_MATCH),
    )
    for field in fields(Tree):
        one, two = getattr(made, field.name), getattr(other, field.name)
        assert torch.equal(one, two) and one.dtype == two.dtype if isinstance(one, torch.Tensor) else one == two, field
