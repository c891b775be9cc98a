"""Fused matrices are split into parts and fused again without loss."""

import pytest
import torch

from paceline.models.native.fused_weights import fuse_parts, fused_groups, split_parts
from tests import tiny


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_fuse_parts_undoes_split_parts(family):
    lm = tiny.native(getattr(tiny, family)())
    state = lm.state_dict()
    parts = split_parts(lm.config, state)
    taken = dict(parts)
    again = fuse_parts(taken)
    assert not taken, "packing keeps no part, so that memory is freed on the way"
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert parts["blocks.0.attention.key.weight"].shape == (lm.config.num_kv_heads * lm.config.head_dim, 32)
    assert ("blocks.0.ffn.gate.weight" in parts) == (family == "llama")
    assert sum(part.numel() for part in parts.values()) == sum(tensor.numel() for tensor in state.values())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_fused_tensors_pass_through(family):
    state = tiny.native(getattr(tiny, family)()).state_dict()
    again = fuse_parts(dict(state))
    assert again.keys() == state.keys() and all(again[name] is state[name] for name in state)


def test_every_part_belongs_to_one_tensor():
    lm = tiny.native(tiny.llama())
    parts = split_parts(lm.config, lm.state_dict())
    found = dict(fused_groups(parts))
    assert found["blocks.2.attention.qkv.weight"] == tuple(
        f"blocks.2.attention.{part}.weight" for part in ("query", "key", "value")
    )
    assert found["blocks.2.ffn.down.weight"] == ("blocks.2.ffn.down.weight",)
    assert sorted(part for names in found.values() for part in names) == sorted(parts)
