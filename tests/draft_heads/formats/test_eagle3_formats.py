"""EAGLE-3 files of every project: read as their layouts say, written again bit by bit, or refused by name.

The reference forward is written from the layouts alone, in plain torch: pair by pair, without a cache.
"""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from paceline.draft_heads.files import load_head
from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.detection import detect, find_format, read_foreign
from paceline.draft_heads.formats.writing import convert, write_files
from tests import tiny
from tests.models.layouts import texts

H, INNER, NH, KV, HD, V, DV = 32, 40, 4, 2, 16, tiny.VOCAB, 20
ANCHOR, DEPTH, THETA, EPS = 6, 4, 500.0, 1e-5
TOKENS = texts(1, ANCHOR + 2 + DEPTH)[0]  # the root is the token after ANCHOR

LAYER = {
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": NH,
    "num_key_value_heads": KV,
    "head_dim": HD,
    "num_hidden_layers": 1,
    "vocab_size": V,
    "hidden_act": "silu",
    "rms_norm_eps": EPS,
    "max_position_embeddings": 128,
}
NEW = {"rope_parameters": {"rope_theta": THETA, "rope_type": "default"}}
PLAIN = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **LAYER, "rope_theta": THETA}
AUX = "eagle_aux_hidden_state_layer_ids"
ENVELOPE = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": [], "name_or_path": "the-target"},
    },
    AUX: [1, 3, 2],
    "draft_vocab_size": DV,
}
QWEN = {"model_type": "qwen3", **LAYER, **NEW}
# Format, config.json, and the facts of the layout: inputs of layers that are fused, draft vocabulary, norms.
FILES = {
    "SafeAILab": ("eagle3", {**PLAIN, "draft_vocab_size": DV}, dict(taps=(2, 1, 0), vocab=DV)),
    "SafeAILab, whole vocabulary": ("eagle3", PLAIN, dict(taps=(2, 1, 0))),
    "SpecForge": (
        "eagle3",
        {**PLAIN, **NEW, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {AUX: [3, 0, 1]}},
        dict(taps=(3, 0, 1), vocab=DV),
    ),
    "SpecForge 3.1": (
        "eagle3",
        {**PLAIN, "architectures": ["LlamaForCausalLMEagle3"], "fc_norm": True, "norm_output": True},
        dict(taps=(2, 1, 0), vocab=DV, each=True),
    ),
    "vLLM's norm before residual": (
        "eagle3",
        {**PLAIN, "norm_before_residual": True},
        dict(taps=(2, 1, 0), before=True),
    ),
    "DeepSpec": (
        "eagle3_deepspec",
        {**QWEN, "architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [0, 1, 2, -1], "ttt_length": 7},
        dict(taps=(1, 2, 3, 0), qk=True, embed=True, first="layers.0."),
    ),
    "speculators": (
        "speculators_eagle3",
        {**ENVELOPE, "norm_before_residual": False, "transformer_layer_config": {**QWEN, "model_type": "llama"}},
        dict(taps=(1, 3, 2), vocab=DV, embed=True, first="layers.0."),
    ),
    "speculators, its defaults": (
        "speculators_eagle3",
        {**ENVELOPE, "transformer_layer_config": {**QWEN, "model_type": "llama"}},
        dict(taps=(1, 3, 2), vocab=DV, embed=True, before=True, first="layers.0."),
    ),
    "speculators, all norms": (
        "speculators_eagle3",
        {
            **ENVELOPE,
            **{"norm_before_residual": True, "norm_output": True, "norm_before_fc": True},
            "transformer_layer_config": {**QWEN, "attention_bias": True},
        },
        dict(taps=(1, 3, 2), vocab=DV, embed=True, before=True, joint=True, output=True, qk=True, bias=True)
        | {"first": "layers.0."},
    ),
}
FILES["P-EAGLE"] = (
    "speculators_peagle",
    {
        **{**ENVELOPE, "architectures": ["PEagleDraftModel"], "speculators_model_type": "peagle"},
        **{"mask_token_id": 9, "transformer_layer_config": QWEN},
    },
    dict(taps=(1, 3, 2), vocab=DV, embed=True, qk=True, mask=9, first="layers.0."),
)
every_file = pytest.mark.parametrize("case", FILES)


def tensors_of(case, target):
    """Random tensors by the names of the layout."""
    facts = FILES[case][2]
    generator = torch.Generator().manual_seed(len(case))
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3  # noqa: E731
    first, count, vocab = facts.get("first", "midlayer."), len(facts["taps"]), facts.get("vocab", V)
    tensors = {"fc.weight": draw(H, count * H), "norm.weight": 1 + draw(H), "lm_head.weight": draw(vocab, H)}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"{first}{name}.weight"] = 1 + draw(H)
    for name, rows, width in (("q", NH * HD, 2 * H), ("k", KV * HD, 2 * H), ("v", KV * HD, 2 * H), ("o", H, NH * HD)):
        tensors[f"{first}self_attn.{name}_proj.weight"] = draw(rows, width)
        if facts.get("bias"):
            tensors[f"{first}self_attn.{name}_proj.bias"] = draw(rows)
    tensors |= {f"{first}mlp.{one}_proj.weight": draw(INNER, H) for one in ("gate", "up")}
    tensors[f"{first}mlp.down_proj.weight"] = draw(H, INNER)
    if facts.get("qk"):
        tensors |= {f"{first}self_attn.{one}_norm.weight": 1 + draw(HD) for one in "qk"}
    if facts.get("each"):
        tensors |= {f"fc_norm.{index}.weight": 1 + draw(H) for index in range(count)}
    if facts.get("joint"):
        tensors["input_norm.weight"] = 1 + draw(count * H)
    if facts.get("embed"):
        tensors["embed_tokens.weight"] = target.embed.weight.detach()
    if "mask" in facts:
        tensors["mask_hidden"] = draw(1, 1, count * H)
    if vocab != V:
        ids = torch.randperm(V, generator=generator)[:vocab].sort().values
        tensors |= {"d2t": ids - torch.arange(vocab), "t2d": torch.isin(torch.arange(V), ids)}
    return tensors


def foreign(case, folder, target, *, change=None, **fields):
    """Write the files; the tensors."""
    tensors = tensors_of(case, target)
    if change is not None:
        change(tensors)
    folder.mkdir(exist_ok=True)
    save_file({name: one.clone().contiguous() for name, one in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**FILES[case][1], **fields}))
    return tensors


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def turned(x, position):
    """Rotary embedding of x [heads, HD] at a position, by angles in float32 as everywhere."""
    angle = position * (THETA ** (-torch.arange(0, HD, 2).double() / HD)).float()
    cos, sin = (torch.cat((one, one)).double() for one in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), -1) * sin


@torch.no_grad()
def reference(case, tensors, target, tokens):
    """By the layout: draft logits [DEPTH, D] of a draft whose root is the token after ANCHOR, the others known."""
    facts = FILES[case][2]
    first = facts.get("first", "midlayer.")
    weight = lambda name: tensors[f"{first}{name}.weight"]  # noqa: E731
    hidden = target.causal(tokens[None], taps=sorted(facts["taps"])).hidden
    states = [hidden[tap][0] for tap in facts["taps"]]  # tap i is the input of layer i
    if facts.get("each"):
        states = [norm(one, tensors[f"fc_norm.{index}.weight"]) for index, one in enumerate(states)]
    joint = torch.cat(states, -1)
    joint = norm(joint, tensors["input_norm.weight"]) if facts.get("joint") else joint
    features = joint @ tensors["fc.weight"].T
    keys, values, logits = [], [], []

    def projected(both, name, heads):
        made = both @ weight(f"self_attn.{name}_proj").T
        if facts.get("bias"):
            made = made + tensors[f"{first}self_attn.{name}_proj.bias"]
        made = made.view(heads, HD)
        return norm(made, weight(f"self_attn.{name}_norm")) if facts.get("qk") and name in "qk" else made

    def layer(feature, token, position):
        normed = norm(feature, weight("hidden_norm"))
        x = normed if facts.get("before") else feature
        both = torch.cat((norm(target.embed.weight[token], weight("input_layernorm")), normed))
        query = turned(projected(both, "q", NH), position)
        keys.append(turned(projected(both, "k", KV), position))
        values.append(projected(both, "v", KV))
        known = [torch.stack(one).repeat_interleave(NH // KV, 1) for one in (keys, values)]
        shares = torch.einsum("hd,thd->ht", query, known[0]).div(math.sqrt(HD)).softmax(-1)
        out = torch.einsum("ht,thd->hd", shares, known[1]).flatten() @ weight("self_attn.o_proj").T
        if facts.get("bias"):
            out = out + tensors[f"{first}self_attn.o_proj.bias"]
        x = x + out
        inside = norm(x, weight("post_attention_layernorm"))
        return (
            x
            + (F.silu(inside @ weight("mlp.gate_proj").T) * (inside @ weight("mlp.up_proj").T))
            @ weight("mlp.down_proj").T
        )

    for position in range(ANCHOR + DEPTH):
        feature = features[position]
        if position > ANCHOR:
            feature = norm(out, tensors["norm.weight"]) if facts.get("output") else out  # noqa: F821
        token = int(tokens[position + 1])
        if position > ANCHOR and "mask" in facts:  # every slot behind the root's
            feature, token = tensors["fc.weight"] @ tensors["mask_hidden"][0, 0], facts["mask"]
        out = layer(feature, token, position)
        if position >= ANCHOR:
            logits.append(norm(out, tensors["norm.weight"]) @ tensors["lm_head.weight"].T)
    return torch.stack(logits)


@torch.no_grad()
def said(head, target, tokens):
    """The same of a loaded head."""
    found = head.unroll(tokens[None], target.causal(tokens[None], taps=head.taps).hidden)
    return found.logits[0, ANCHOR, :DEPTH]


@every_file
def test_a_foreign_head_is_read_as_its_layout_says(case, tmp_path):
    _, target = tiny.target()
    tensors = foreign(case, tmp_path, target)
    assert detect(HeadFiles(tmp_path)).name == FILES[case][0]
    head = load_head(tmp_path, target)
    torch.testing.assert_close(
        said(head, target, TOKENS), reference(case, tensors, target, TOKENS), rtol=1e-7, atol=1e-7
    )
    if "d2t" in tensors:
        assert torch.equal(head.draft_ids, tensors["d2t"] + torch.arange(DV))


@every_file
def test_written_files_are_those_that_were_read(case, tmp_path):
    _, target = tiny.target()
    tensors = foreign(case, tmp_path / "theirs", target)
    head = load_head(tmp_path / "theirs", target)
    own = find_format(FILES[case][0])
    for turn in ("ours", "again"):
        made = convert(head, own, target=target, target_name="the-target", num_draft_tokens=3)
        write_files(made, tmp_path / turn)
        again = load_file(tmp_path / turn / "model.safetensors")
        assert again.keys() == tensors.keys() and all(torch.equal(again[name], one) for name, one in tensors.items())
        head = load_head(tmp_path / turn, target)
    theirs, ours, other = (read_foreign(tmp_path / name, target).imported for name in ("theirs", "ours", "again"))
    assert theirs.config == ours.config == other.config
    assert (tmp_path / "ours/config.json").read_text() == (tmp_path / "again/config.json").read_text()


MISTAKES = {
    "layers shifted by one": dict(eagle_config={AUX: [2, 1, 0]}),
    "layers in another order": dict(eagle_config={AUX: [0, 3, 1]}),
    "norm before residual": dict(norm_before_residual=True),
    "another base": dict(rope_parameters={"rope_theta": 10000.0}),
    "another epsilon": dict(rms_norm_eps=0.1),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_the_config_says_changes_the_drafts(mistake, tmp_path):
    _, target = tiny.target()
    tensors = foreign("SpecForge", tmp_path, target, **MISTAKES[mistake])
    found = said(load_head(tmp_path, target), target, TOKENS)
    assert (found - reference("SpecForge", tensors, target, TOKENS)).abs().max() > 1e-3


def test_what_speculators_feeds_back_changes_the_drafts_but_the_first(tmp_path):
    _, target = tiny.target()
    tensors = foreign("speculators, all norms", tmp_path, target, norm_output=False)
    found = said(load_head(tmp_path, target), target, TOKENS)
    moved = (found - reference("speculators, all norms", tensors, target, TOKENS)).abs().amax(-1) > 1e-6
    assert moved.tolist() == [False, True, True, True]


def test_an_embedding_of_its_own_is_read_and_one_of_the_targets_is_not(tmp_path):
    _, target = tiny.target()
    foreign(
        "SafeAILab", tmp_path, target, change=lambda t: t.update({"embed_tokens.weight": torch.ones(V, H).double()})
    )
    head = load_head(tmp_path, target)
    assert head.options.own_embedding and bool((head.decoder.embed.weight == 1).all())
    foreign("DeepSpec", tmp_path / "other", target)
    assert read_foreign(tmp_path / "other", target).imported.tied == ("embed_tokens.weight",)


REFUSED = {
    "unknown tensor": (lambda t: t.update({"midlayer.gate.weight": torch.zeros(2)}), {}, "midlayer.gate.weight"),
    "no LM head": (lambda t: t.pop("lm_head.weight"), {}, "no known format"),
    "no map": (lambda t: t.pop("d2t"), {}, "lm_head.weight has 20 tokens of the target's 61, and no d2t"),
    "ids for offsets": (
        lambda t: t.update({"d2t": t["d2t"] + torch.arange(DV)}),
        {},
        "d2t holds offsets of other tokens",
    ),
    "five states": (lambda t: None, {AUX: [0, 1, 2, 3, 3]}, "fc.weight has shape"),
    "another vocabulary": (lambda t: None, {"vocab_size": 99}, "a vocabulary of 99, and this one has 61"),
    "no norm before the LM head": (lambda t: None, {"norm_output": False}, "norm_output=false, an LM head without"),
    "layers beyond the target": (lambda t: None, {AUX: [2, 1, 7]}, r"taps=\[2, 1, 7\]: the target has 3 layers"),
    "scaled angles": (lambda t: None, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_by_name(what, tmp_path):
    change, fields, reason = REFUSED[what]
    foreign("SafeAILab", tmp_path, tiny.target()[1], change=change, **fields)
    with pytest.raises(ValueError, match=reason):
        load_head(tmp_path, tiny.target()[1])


def test_options_that_a_format_has_no_field_for_are_refused(tmp_path):
    _, target = tiny.target()
    foreign("speculators, all norms", tmp_path, target)
    head = load_head(tmp_path, target)
    for name, reason in (("eagle3", "norm_output, a joint norm"), ("eagle3_deepspec", "norms beside those of the")):
        with pytest.raises(FormatError, match=reason):
            convert(head, find_format(name), target=target, target_name="it", num_draft_tokens=3)
