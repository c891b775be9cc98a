"""Multi-token-prediction modules of every project: read as their layouts say, written again bit by bit, or refused.

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
from paceline.models.loading import load
from tests import tiny
from tests.draft_heads.formats.test_eagle3_formats import (
    ANCHOR,
    DEPTH,
    HD,
    INNER,
    KV,
    LAYER,
    NEW,
    NH,
    PLAIN,
    TOKENS,
    H,
    V,
    norm,
    said,
    turned,
)
from tests.drafters.pairs import randomised
from tests.drafters.test_mtp import new_head

NUM_LAYERS = 3
MODEL = {**LAYER, **NEW, "num_hidden_layers": NUM_LAYERS, "num_nextn_predict_layers": 1}
ENVELOPE = {
    "architectures": ["MTPDraftModel"],
    "speculators_model_type": "mtp",
    "speculators_config": {
        "algorithm": "mtp",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": [], "name_or_path": "the-target"},
    },
    "num_nextn_predict_layers": 1,
}
MIMO = dict(
    names=("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"), module="model.mtp_layers.0."
)
DEEPSEEK = dict(names=("enorm", "hnorm", "eh_proj", "shared_head.norm"), module=f"model.layers.{NUM_LAYERS}.")
QWEN = dict(
    names=("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), module="mtp.", block="mtp.layers.0.", qk=True
)
SERVED = dict(embedding_first=True, normalized=True)
# Format, config.json, and the facts of the layout: its names, what is joined and read, norms and biases.
FILES = {
    "MiMo": ("mtp_mimo", {**MODEL, "model_type": "mimo"}, dict(**MIMO, bias=True, zero=True)),
    "DeepSeek-V3": (
        "mtp_deepseek",
        {**PLAIN, "num_hidden_layers": NUM_LAYERS, "num_nextn_predict_layers": 1},
        dict(**DEEPSEEK, **SERVED, zero=True, copies=True),
    ),
    "GLM-4.5": ("mtp_deepseek", {**MODEL, "model_type": "glm4_moe"}, dict(**DEEPSEEK, **SERVED, zero=True, qk=True)),
    "Qwen 3": ("mtp_qwen", {**MODEL, "model_type": "qwen3"}, dict(**QWEN, **SERVED)),
    "Qwen3-Next": ("mtp_qwen", {**MODEL, "model_type": "qwen3_next"}, dict(**QWEN, **SERVED, offset=True)),
    "speculators": (
        "speculators_mtp",
        {**ENVELOPE, "transformer_layer_config": {**MODEL, "model_type": "qwen3"}},
        dict(names=MIMO["names"], module="mtp_layers.0.", qk=True, embedding_first=True, stray=True),
    ),
}
every_file = pytest.mark.parametrize("case", FILES)


def tensors_of(case, target):
    """Random tensors by the names of the layout, and some of the target's."""
    facts = FILES[case][2]
    generator = torch.Generator().manual_seed(len(case))
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3  # noqa: E731
    weight = lambda *shape: draw(*shape) + (0 if facts.get("offset") else 1)  # noqa: E731
    at, block = facts["module"], facts.get("block", facts["module"])
    first, second, joined, last = (f"{at}{name}.weight" for name in facts["names"])
    tensors = {first: weight(H), second: weight(H), joined: draw(H, 2 * H), last: weight(H)}
    tensors |= {f"{block}{name}.weight": weight(H) for name in ("input_layernorm", "post_attention_layernorm")}
    for name, rows, width in (("q", NH * HD, H), ("k", KV * HD, H), ("v", KV * HD, H), ("o", H, NH * HD)):
        tensors[f"{block}self_attn.{name}_proj.weight"] = draw(rows, width)
        if facts.get("bias") and name != "o":
            tensors[f"{block}self_attn.{name}_proj.bias"] = draw(rows)
    tensors |= {f"{block}mlp.{one}_proj.weight": draw(INNER, H) for one in ("gate", "up")}
    tensors[f"{block}mlp.down_proj.weight"] = draw(H, INNER)
    if facts.get("qk"):
        tensors |= {f"{block}self_attn.{one}_norm.weight": weight(HD) for one in "qk"}
    if facts.get("copies"):
        tensors[f"{at}embed_tokens.weight"] = target.embed.weight.detach()
        tensors[f"{at}shared_head.head.weight"] = target.head.weight.detach()
    if facts.get("stray"):
        tensors["verifier_lm_head.weight"] = draw(V, H)
    return tensors


def foreign(case, folder, target, *, change=None, **fields):
    """Write the files, among layers of the target where the layout is inside of it; the module's tensors."""
    tensors = tensors_of(case, target)
    if change is not None:
        change(tensors)
    folder.mkdir(exist_ok=True)
    others = {} if "speculators" in case else {"model.layers.0.mlp.up_proj.weight": torch.ones(2, 2).double()}
    every = {name: one.clone().contiguous() for name, one in {**others, **tensors}.items()}
    save_file(every, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**FILES[case][1], **fields}))
    return tensors


@torch.no_grad()
def reference(case, tensors, target, tokens):
    """By the layout: draft logits [DEPTH, V] of a draft whose root is the token after ANCHOR, the others known."""
    facts = FILES[case][2]
    at, block = facts["module"], facts.get("block", facts["module"])
    weight = lambda name: tensors[f"{block}{name}.weight"]  # noqa: E731
    of_embedding, of_state, joined, last = (tensors[f"{at}{name}.weight"] for name in facts["names"])

    def normed(x, by):
        return norm(x, by + 1 if facts.get("offset") else by)

    def projected(x, name, heads):
        made = x @ weight(f"self_attn.{name}_proj").T
        if facts.get("bias"):
            made = made + tensors[f"{block}self_attn.{name}_proj.bias"]
        made = made.view(heads, HD)
        return normed(made, weight(f"self_attn.{name}_norm")) if facts.get("qk") and name in "qk" else made

    states = target.causal(tokens[None], taps=(NUM_LAYERS,)).hidden[NUM_LAYERS][0]
    states = target.norm(states) if facts.get("normalized") else states
    keys, values, logits, out = [], [], [], None
    for position in range(ANCHOR + DEPTH):
        state = states[position] if position <= ANCHOR else out
        embedded = target.embed.weight[tokens[position + 1]]
        if facts.get("zero") and position == 0:
            embedded = torch.zeros_like(embedded)
        both = (normed(embedded, of_embedding), normed(state, of_state))
        x = joined @ torch.cat(both if facts.get("embedding_first") else both[::-1])
        inside = normed(x, weight("input_layernorm"))
        query = turned(projected(inside, "q", NH), position)
        keys.append(turned(projected(inside, "k", KV), position))
        values.append(projected(inside, "v", KV))
        known = [torch.stack(one).repeat_interleave(NH // KV, 1) for one in (keys, values)]
        shares = torch.einsum("hd,thd->ht", query, known[0]).div(math.sqrt(HD)).softmax(-1)
        x = x + torch.einsum("ht,thd->hd", shares, known[1]).flatten() @ weight("self_attn.o_proj").T
        inside = normed(x, weight("post_attention_layernorm"))
        gated = F.silu(inside @ weight("mlp.gate_proj").T) * (inside @ weight("mlp.up_proj").T)
        out = normed(x + gated @ weight("mlp.down_proj").T, last)
        if position >= ANCHOR:
            logits.append(out @ target.head.weight.T)
    return torch.stack(logits)


def loaded(folder, target):
    head = load_head(folder, target)
    head.config = head.sizes = head.config.model_copy(update={"depth": DEPTH})
    return head


@every_file
def test_a_foreign_module_is_read_as_its_layout_says(case, tmp_path):
    _, target = tiny.target()
    tensors = foreign(case, tmp_path, target)
    assert detect(HeadFiles(tmp_path)).name == FILES[case][0]
    found = said(loaded(tmp_path, target), target, TOKENS)
    torch.testing.assert_close(found, reference(case, tensors, target, TOKENS), rtol=1e-7, atol=1e-7)
    imported = read_foreign(tmp_path, target).imported
    assert len(imported.tied) == (2 if "copies" in FILES[case][2] else 0)
    assert imported.ignored == (("verifier_lm_head.weight",) if case == "speculators" else ())


def test_a_module_apart_from_its_target_is_written_as_it_was_read(tmp_path):
    _, target = tiny.target()
    tensors = foreign("speculators", tmp_path / "theirs", target)
    head = load_head(tmp_path / "theirs", target)
    made = convert(head, find_format("speculators_mtp"), target=target, target_name="the-target", num_draft_tokens=3)
    write_files(made, tmp_path / "ours")
    again = load_file(tmp_path / "ours/model.safetensors")
    assert again.keys() == tensors.keys() - {"verifier_lm_head.weight"}
    assert all(torch.equal(again[name], tensors[name]) for name in again)
    assert load_head(tmp_path / "ours", target).config == head.config
    assert made.config["transformer_layer_config"]["num_hidden_layers"] == NUM_LAYERS


def experts(block):
    return lambda tensors: tensors.update({f"{block}mlp.experts.0.up_proj.weight": torch.zeros(2, 2)})


def wide_queries(tensors):
    tensors["mtp.layers.0.self_attn.q_proj.weight"] = torch.zeros(2 * NH * HD, H)


def latent(tensors):
    tensors[f"model.layers.{NUM_LAYERS}.self_attn.kv_a_proj_with_mqa.weight"] = torch.zeros(2, H)


def own_head(tensors):
    tensors[f"model.layers.{NUM_LAYERS}.shared_head.head.weight"] = torch.ones(V, H).double()


def second(name):
    return lambda tensors: tensors.update({name: torch.zeros(H, 2 * H)})


REFUSED = {
    "experts": ("Qwen 3", experts("mtp.layers.0."), {}, "has a mixture of experts: it needs blocks with a router and"),
    "latent attention": ("DeepSeek-V3", latent, {}, r"latent attention \(MLA\): it needs a cache of compressed keys"),
    "gated attention": ("Qwen3-Next", wide_queries, {}, "attention with an output gate: it needs a gate of what"),
    "a head of its own": ("DeepSeek-V3", own_head, {}, "shared_head.head.weight is not the target's, and a module"),
    "two of MiMo": ("MiMo", second("model.mtp_layers.1.input_proj.weight"), {}, "several MTP modules, one for each"),
    "two of Qwen": ("Qwen 3", second("mtp.layers.1.mlp.up_proj.weight"), {}, "several MTP modules, one for each depth"),
    "two of DeepSeek": ("GLM-4.5", second("model.layers.4.eh_proj.weight"), {}, "several MTP modules, one for each"),
    "of another depth": ("GLM-4.5", None, {"num_hidden_layers": 2}, "an MTP module as layer 3 behind 2 layers; fetch"),
    "an unknown tensor": ("Qwen 3", second("mtp.gate.weight"), {}, "they hold mtp.gate.weight, which nothing is known"),
    "another activation": ("Qwen 3", None, {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    "another vocabulary": ("MiMo", None, {"vocab_size": 99}, "a vocabulary of 99, and this one has 61"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_by_name(what, tmp_path):
    case, change, fields, reason = REFUSED[what]
    _, target = tiny.target()
    foreign(case, tmp_path, target, change=change, **fields)
    with pytest.raises(FormatError, match=reason):
        load_head(tmp_path, target)


# Written into the target's directory


def head_of(target, **options):
    return randomised(new_head(target, **options))


def stitched(name, head, target, source, folder):
    made = convert(head, find_format(name), target=target, target_name=str(source), num_draft_tokens=3)
    write_files(made, folder, target_path=source)
    return made


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_module_for_vllm_is_in_a_model_of_mimos_architecture(kind, tmp_path):
    from transformers import AutoModelForCausalLM

    model = tiny.causal(kind)
    model.save_pretrained(tmp_path / "target")
    target = load(tmp_path / "target")
    head = head_of(target)
    made = stitched("mtp_mimo", head, target, tmp_path / "target", tmp_path / "both")
    assert made.config["architectures"] == ["MiMoForCausalLM"] and made.config["model_type"] == "qwen2"
    files = HeadFiles(tmp_path / "both")
    layers = range(target.num_layers)
    assert all(files.has(f"model.layers.{one}.self_attn.k_proj.bias") for one in layers)
    assert files.has("model.mtp_layers.0.self_attn.v_proj.bias", "model.mtp_layers.0.input_proj.weight")
    both = load(tmp_path / "both")  # the target itself again
    tokens = TOKENS[None] % tiny.VOCAB
    wanted = target.causal(tokens).logits
    torch.testing.assert_close(both.causal(tokens).logits, wanted)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "both", dtype=torch.float64)
    torch.testing.assert_close(theirs(tokens).logits, wanted, rtol=0, atol=1e-5)  # norms of float32
    for one in (target, both):
        hidden = one.causal(tokens, taps=head.taps).hidden
        again = load_head(tmp_path / "both", one)
        torch.testing.assert_close(again.unroll(tokens, hidden).logits, head.unroll(tokens, hidden).logits)


def test_what_is_joined_may_be_in_the_other_order(tmp_path):
    model, target = tiny.target()
    model.save_pretrained(tmp_path / "target")
    head = head_of(target, embedding_first=True)
    stitched("mtp_mimo", head, target, tmp_path / "target", tmp_path / "both")
    again = load_head(tmp_path / "both", target)
    assert head.options.embedding_first and not again.options.embedding_first
    hidden = target.causal(TOKENS[None], taps=head.taps).hidden
    torch.testing.assert_close(again.unroll(TOKENS[None], hidden).logits, head.unroll(TOKENS[None], hidden).logits)


UNFIT = {
    "normalized=True: modules of this format have normalized=False; train it so": dict(normalized=True),
    "norm_output=False: modules of this format have norm_output=True": dict(norm_output=False),
    "zero_first=False: modules of this format have zero_first=True": dict(zero_first=False),
    "num_layers=2, tap=3: the format has one, after the last layer": dict(num_layers=2),
    "ffn_size=40: the module would have the target's config.json, which has 48; train it so": dict(ffn_size=40),
    "attention=.*norm_span=<NormSpan.HEAD: 0>": dict(qk_norm=True),
    "norm_eps=0.1: the module would have the target's": dict(norm_eps=0.1),
    "rope_theta or rope_scaling is not the target's": dict(rope_theta=500.0),
}


@pytest.mark.parametrize("said", UNFIT)
def test_a_module_that_the_targets_config_does_not_describe_is_not_written(said, tmp_path):
    model, target = tiny.target()
    model.save_pretrained(tmp_path / "target")
    with pytest.raises(FormatError, match=said):
        stitched("mtp_mimo", head_of(target, **UNFIT[said]), target, tmp_path / "target", tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("kind", ["qwen3", "gemma", "granite"])
def test_vllms_architecture_is_of_few_targets(kind, tmp_path):
    model = tiny.causal(kind, head_dim=8, logits_scaling=2.0)
    model.save_pretrained(tmp_path / "target")
    target = load(tmp_path / "target")
    head = head_of(target, qk_norm=kind == "qwen3", embedding_first=True, normalized=True, zero_first=False)
    with pytest.raises(FormatError, match=f"a target of the model_type '{kind}': vLLM serves MTP modules of this"):
        stitched("mtp_mimo", head, target, tmp_path / "target", tmp_path / "both")
    if kind == "qwen3":
        stitched("mtp_qwen", head, target, tmp_path / "target", tmp_path / "both")
        assert load_head(tmp_path / "both", target).options.qk_norm
    else:
        with pytest.raises(FormatError, match="with other norms, feed-forwards or factors than Llama's"):
            stitched("mtp_qwen", head, target, tmp_path / "target", tmp_path / "both")
    with pytest.raises(FormatError, match="give the target as a directory"):
        stitched("mtp_qwen", head, target, tmp_path / "organisation" / "name", tmp_path / "hub")


def test_a_base_that_is_not_given_is_that_of_the_target(tmp_path):
    target = tiny.native(tiny.llama(rope_parameters={"rope_type": "default", "rope_theta": 1234567.0}, head_dim=16))
    options = dict(qk_norm=True, embedding_first=True, zero_first=False)
    written = dict(target=target, target_name="it", num_draft_tokens=3)
    made = convert(head_of(target, **options), find_format("speculators_mtp"), **written)
    assert made.config["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 1234567.0
    scaled = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    target = tiny.native(tiny.llama(rope_parameters=scaled))
    with pytest.raises(FormatError, match="rotary embedding is scaled: give the head rope_theta and rope_scaling"):
        convert(head_of(target, **options), find_format("speculators_mtp"), **{**written, "target": target})
    with pytest.raises(FormatError, match="qk_norm=False, norm_offset=False: the package's dense module is a Qwen3"):
        convert(head_of(target), find_format("speculators_mtp"), **written)
