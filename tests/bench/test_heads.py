import json

import pytest
import torch
from safetensors.torch import load_file

from paceline.bench.peers.heads import WIDTHS, widen_heads, width_for
from tests.api.checkpoints import config_of, pair, without_tokenizer

HIDDEN = 7


def attention(folder, states):
    """The first layer's self-attention as vLLM computes it: rotary positions on a part of each head."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    width, rope = config["head_dim"], config.get("rope_parameters") or config
    turned = round(width * rope.get("partial_rotary_factor", 1.0))
    angles = torch.arange(len(states))[:, None] / rope["rope_theta"] ** (torch.arange(0, turned, 2) / turned)

    def project(name):
        return (states @ weights[f"model.layers.0.self_attn.{name}.weight"].float().T).unflatten(1, (-1, width))

    def turn(heads):
        first, second, rest = heads.split([turned // 2, turned // 2, width - turned], -1)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)

    queries, keys, values = turn(project("q_proj")), turn(project("k_proj")), project("v_proj")
    share = queries.shape[1] // keys.shape[1]
    keys, values = (heads.repeat_interleave(share, 1) for heads in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / width**0.5
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)
    return mixed @ weights["model.layers.0.self_attn.o_proj.weight"].float().T


@pytest.mark.parametrize("width", [32, 48])
def test_wider_heads_compute_the_same(tmp_path, width):
    widen_heads(pair().target, tmp_path / "wide", width=width)
    hidden = json.loads((pair().target / "config.json").read_text())["hidden_size"]
    states = torch.randn(HIDDEN, hidden, generator=torch.Generator().manual_seed(0)) * 3
    found, wanted = attention(tmp_path / "wide", states), attention(pair().target, states)
    assert float((found - wanted).abs().max()) < 1e-5 < float((wanted[0] - wanted[1]).abs().max())
    written = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert written["head_dim"] == width and width_for(tmp_path / "wide") is None


def test_only_heads_without_a_kernel_are_widened(tmp_path):
    assert width_for(pair().target) == 32
    for at, (changes, width) in enumerate(
        [
            ({"head_dim": 33}, 48),
            ({"head_dim": 64}, None),
            ({"head_dim": 1 + max(WIDTHS)}, None),
            ({"model_type": "qwen3"}, None),
            ({"attention_bias": True}, None),
        ]
    ):
        folder = without_tokenizer(tmp_path / str(at))
        config_of(folder, **changes)
        assert width_for(folder) == width
