"""EAGLE-1 files: read as their layout says, by a forward in plain torch, and written again bit by bit."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from paceline.draft_heads.files import load_head
from paceline.draft_heads.formats.base import FormatError, HeadFiles, output_matrix
from paceline.draft_heads.formats.detection import detect, find_format, read_foreign
from paceline.draft_heads.formats.writing import convert, write_files
from tests import tiny
from tests.draft_heads.formats.test_eagle3_formats import (
    ANCHOR,
    DEPTH,
    HD,
    INNER,
    KV,
    NH,
    PLAIN,
    TOKENS,
    H,
    norm,
    said,
    turned,
)

every_bias = pytest.mark.parametrize("bias", [True, False])


def foreign(folder, target, *, bias):
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3  # noqa: E731
    at = "layers.0."
    tensors = {"fc.weight": draw(H, 2 * H), f"{at}post_attention_layernorm.weight": 1 + draw(H)}
    for name, rows, width in (("q", NH * HD, H), ("k", KV * HD, H), ("v", KV * HD, H), ("o", H, NH * HD)):
        tensors[f"{at}self_attn.{name}_proj.weight"] = draw(rows, width)
    tensors |= {f"{at}mlp.{one}_proj.weight": draw(INNER, H) for one in ("gate", "up")}
    tensors |= {f"{at}mlp.down_proj.weight": draw(H, INNER), "embed_tokens.weight": target.embed.weight.detach()}
    tensors |= {"fc.bias": draw(H)} if bias else {}
    folder.mkdir(exist_ok=True)
    save_file({name: one.clone() for name, one in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**PLAIN, "bias": bias}))
    return tensors


@torch.no_grad()
def reference(tensors, target, tokens):
    """By the layout: draft logits [DEPTH, V] of a draft whose root is the token after ANCHOR, the others known."""
    weight = lambda name: tensors[f"layers.0.{name}.weight"]  # noqa: E731
    features = target.norm(target.causal(tokens[None], taps=(3,)).hidden[3][0])
    keys, values, logits, out = [], [], [], None
    for position in range(ANCHOR + DEPTH):
        feature = features[position] if position <= ANCHOR else out
        joined = torch.cat((target.embed.weight[tokens[position + 1]], feature))
        x = joined @ tensors["fc.weight"].T + tensors.get("fc.bias", torch.zeros(H))
        query = turned((x @ weight("self_attn.q_proj").T).view(NH, HD), position)
        keys.append(turned((x @ weight("self_attn.k_proj").T).view(KV, HD), position))
        values.append((x @ weight("self_attn.v_proj").T).view(KV, HD))
        known = [torch.stack(one).repeat_interleave(NH // KV, 1) for one in (keys, values)]
        shares = torch.einsum("hd,thd->ht", query, known[0]).div(math.sqrt(HD)).softmax(-1)
        x = x + torch.einsum("ht,thd->hd", shares, known[1]).flatten() @ weight("self_attn.o_proj").T
        inside = norm(x, weight("post_attention_layernorm"))
        gated = F.silu(inside @ weight("mlp.gate_proj").T) * (inside @ weight("mlp.up_proj").T)
        out = x + gated @ weight("mlp.down_proj").T
        if position >= ANCHOR:
            logits.append(out @ output_matrix(target).T)
    return torch.stack(logits)


@every_bias
def test_a_foreign_head_is_read_as_its_layout_says(bias, tmp_path):
    _, target = tiny.target()
    tensors = foreign(tmp_path, target, bias=bias)
    assert detect(HeadFiles(tmp_path)).name == "eagle"
    head = load_head(tmp_path, target)
    head.config = head.sizes = head.config.model_copy(update={"depth": DEPTH})
    torch.testing.assert_close(said(head, target, TOKENS), reference(tensors, target, TOKENS), rtol=1e-7, atol=1e-7)
    assert read_foreign(tmp_path, target).imported.tied == ("embed_tokens.weight",)


@every_bias
def test_written_files_are_those_that_were_read(bias, tmp_path):
    _, target = tiny.target()
    tensors = foreign(tmp_path / "theirs", target, bias=bias)
    head = load_head(tmp_path / "theirs", target)
    made = convert(head, find_format("eagle"), target=target, target_name="the-target", num_draft_tokens=3)
    write_files(made, tmp_path / "ours")
    again = load_file(tmp_path / "ours/model.safetensors")
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], one) for name, one in tensors.items())
    assert load_head(tmp_path / "ours", target).config == head.config


def test_an_embedding_of_its_own_is_refused(tmp_path):
    _, target = tiny.target()
    tensors = foreign(tmp_path, target, bias=False)
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"] + 0.01
    save_file({name: one.clone() for name, one in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"embed_tokens.weight is not the target's, and an EAGLE head here shares it"):
        load_head(tmp_path, target)
    del tensors["embed_tokens.weight"]
    save_file({name: one.clone() for name, one in tensors.items()}, tmp_path / "model.safetensors")
    assert load_head(tmp_path, target).decoder.embed is target.embed


def test_an_embedding_in_another_precision_is_the_targets(tmp_path):
    """Files of float32, and a target that was rounded from the same numbers."""
    _, target = tiny.target()
    foreign(tmp_path, target, bias=False)
    assert load_head(tmp_path, copy.deepcopy(target).to(torch.bfloat16)).decoder.dtype is torch.bfloat16


def test_embeddings_of_gemma_are_read_without_their_factor(tmp_path):
    target = tiny.native(tiny.causal("gemma", hidden_size=H, head_dim=8))
    assert target.embedding_factor != 1.0
    tensors = foreign(tmp_path, target, bias=True)
    head = load_head(tmp_path, target)
    head.config = head.sizes = head.config.model_copy(update={"depth": DEPTH})
    wanted = reference(tensors, target, TOKENS)
    torch.testing.assert_close(said(head, target, TOKENS), wanted, rtol=1e-7, atol=1e-7)
