"""Packed matrices: parts out, parts in, nothing lost."""

import pytest
import torch

from paceline.models.packing import pack, unpack
from tests import tiny


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_pack_undoes_unpack(family):
    lm = tiny.native(getattr(tiny, family)())
    state = lm.state_dict()
    parts = unpack(lm.config, state)
    again = pack(dict(parts))
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert parts["blocks.0.attention.key.weight"].shape == (lm.config.num_kv_heads * lm.config.head_dim, 32)
    assert ("blocks.0.ffn.gate.weight" in parts) == (family == "llama")
    assert sum(part.numel() for part in parts.values()) == sum(tensor.numel() for tensor in state.values())
