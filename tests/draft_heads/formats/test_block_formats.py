"""DFlash and DSpark files of every project: read as their layouts say, written again bit by bit, or refused by name.

The reference forward is written from the layouts alone, in plain torch.
"""

import copy
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
from tests.draft_heads.test_prophet import make
from tests.models.layouts import texts

H, INNER, NH, KV, HD, V, DV, L, RANK, MASK = 32, 40, 4, 2, 16, tiny.VOCAB, 20, 2, 5, 60
GROUP = 8
BLOCK, ANCHOR, LENGTH, THETA, EPS = 4, 6, 9, 500.0, 1e-5

LAYERS = {
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": NH,
    "num_key_value_heads": KV,
    "head_dim": HD,
    "num_hidden_layers": L,
    "vocab_size": V,
    "hidden_act": "silu",
    "rms_norm_eps": EPS,
    "attention_bias": False,
    "max_position_embeddings": 256,
    "layer_types": ["full_attention"] * L,
}
OLD, NEW = {"rope_theta": THETA}, {"rope_parameters": {"rope_theta": THETA, "rope_type": "default"}}
HEADS = {
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
NONE = {**HEADS, "markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False}


def envelope(kind):
    verifier = {"architectures": [], "name_or_path": "the-target"}
    method = {"proposal_type": "greedy", "speculative_tokens": 3}
    return {
        "speculators_model_type": kind,
        "transformer_layer_config": {"model_type": "qwen3", **LAYERS, **NEW},
        "speculators_config": {"algorithm": kind, "proposal_methods": [method], "verifier": verifier},
        "aux_hidden_state_layer_ids": [1, 3],
        "block_size": BLOCK,
        "mask_token_id": MASK,
    }


def inner(**more):
    return {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2], **more}, "block_size": BLOCK}


NATIVE = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    **LAYERS,
    **OLD,
    **{
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_layer_ids": [0, 2],
        "num_anchors": 64,
        "num_target_layers": 3,
    },
}
# Format, whether the first slot drafts, draft vocabulary, and config.json.
FILES = {
    "z-lab": ("dflash", False, None, {"architectures": ["DFlashDraftModel"], "num_target_layers": 3, **inner()}),
    "z-lab, rope_parameters": ("dflash", False, None, {"architectures": ["DFlashDraftModel"], **inner(), **NEW}),
    "DeepSpec": ("dspark", True, None, {**NATIVE, **HEADS}),
    "DeepSpec without Markov head": ("dspark", True, None, {**NATIVE, **NONE}),
    "SpecForge DSpark": (
        "dspark_specforge",
        False,
        None,
        {"architectures": ["DSparkDraftModel"], **inner(projector_type="dspark", attention_mode="gqa", **HEADS)},
    ),
    "DeepSpec, gated": ("dspark", True, None, {**NATIVE, **HEADS, "markov_head_type": "gated"}),
    "speculators dspark, recurrent": (
        "speculators_dspark",
        False,
        DV,
        {
            "architectures": ["DSparkDraftModel"],
            **envelope("dspark"),
            **HEADS,
            "markov_head_type": "rnn",
            "sample_from_anchor": False,
        },
    ),
    "speculators dflash": (
        "speculators_dflash",
        False,
        None,
        {"architectures": ["DFlashDraftModel"], **envelope("dflash"), "sample_from_anchor": False},
    ),
    "speculators dflash, draft vocabulary": (
        "speculators_dflash",
        True,
        DV,
        {"architectures": ["DFlashDraftModel"], **envelope("dflash"), "sample_from_anchor": True},
    ),
    "speculators dspark": (
        "speculators_dspark",
        True,
        DV,
        {"architectures": ["DSparkDraftModel"], **envelope("dspark"), **HEADS, "confidence_head_with_markov": False},
    ),
}
FILES |= {
    "speculators xpress": (
        "speculators_xpress",
        False,
        DV,
        {
            "architectures": ["XPressDraftModel"],
            **envelope("xpress"),
            "sample_from_anchor": False,
            **{"xpress_rank": RANK, "xpress_mlp_ratio": 3, "num_jacobi_passes": 6},
        },
    ),
    "speculators dflash2": (
        "speculators_dflash2",
        False,
        None,
        {
            "architectures": ["DFlash2DraftModel"],
            **envelope("dflash2"),
            "sample_from_anchor": False,
            **{"conv_kernel_size": 2, "conv_group_size": GROUP, "selector_rank": RANK, "selector_top_k": 7},
        },
    ),
}
every_file = pytest.mark.parametrize("case", FILES)


SELECTOR = ((V, RANK), (V, RANK), (RANK, H))
REFINER = {
    "token_embed.weight": (V, RANK),
    "down_h.weight": (RANK, H),
    "down_g.weight": (RANK, H),
    "in_proj.weight": (RANK, 3 * RANK),
    "mix_l": (RANK, BLOCK, BLOCK),
    "mlp_gate.weight": (3 * RANK, RANK),
    "mlp_up.weight": (3 * RANK, RANK),
    "mlp_down.weight": (RANK, 3 * RANK),
    "readout.weight": (DV, RANK),
}


def tensors_of(case, target):
    """Random tensors by the names of the layout."""
    name, _, vocab, config = FILES[case]
    generator = torch.Generator().manual_seed(len(case))
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3  # noqa: E731
    tensors = {"fc.weight": draw(H, 2 * H), "hidden_norm.weight": 1 + draw(H), "norm.weight": 1 + draw(H)}
    for layer in range(L):
        at = f"layers.{layer}."
        tensors |= {at + f"{one}.weight": 1 + draw(H) for one in ("input_layernorm", "post_attention_layernorm")}
        tensors |= {at + f"self_attn.{one}.weight": 1 + draw(HD) for one in ("q_norm", "k_norm")}
        tensors |= {at + f"self_attn.{one}_proj.weight": draw(KV * HD, H) for one in "kv"}
        tensors |= {at + "self_attn.q_proj.weight": draw(NH * HD, H), at + "self_attn.o_proj.weight": draw(H, NH * HD)}
        tensors |= {at + f"mlp.{one}_proj.weight": draw(INNER, H) for one in ("gate", "up")}
        tensors[at + "mlp.down_proj.weight"] = draw(H, INNER)
        for part in ("attention_conv", "mlp_conv") if "conv_kernel_size" in config else ():
            tensors[at + f"{part}.base_kernel"] = draw(2, 2, H)
            tensors[at + f"{part}.kernel_projection.weight"] = draw(4 * H // GROUP, H)
    if "selector_rank" in config:
        names = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
        tensors |= {f"candidate_selector.{one}": draw(*size) for one, size in zip(names, SELECTOR, strict=True)}
    if "xpress_rank" in config:
        tensors |= {f"refiner_head.{one}": draw(*size) for one, size in REFINER.items()}
    fields = {**config, **config.get("dflash_config", {})}
    if fields.get("markov_rank"):
        size = H + (RANK if fields["confidence_head_with_markov"] else 0)
        tensors |= {
            "markov_head.markov_w1.weight": draw(V, RANK),
            "markov_head.markov_w2.weight": draw(vocab or V, RANK),
        }
        tensors |= {"confidence_head.proj.weight": draw(1, size), "confidence_head.proj.bias": draw(1)}
        kinds = {"gated": ("gate_proj", RANK, H + RANK), "rnn": ("joint_proj", 3 * RANK, H + 2 * RANK)}
        if fields["markov_head_type"] in kinds:
            part, outer, width = kinds[fields["markov_head_type"]]
            tensors |= {f"markov_head.{part}.weight": draw(outer, width), f"markov_head.{part}.bias": draw(outer)}
    if vocab:
        ids = torch.randperm(V, generator=generator)[:vocab].sort().values
        known = torch.zeros(V, dtype=torch.bool)
        known[ids] = True
        tensors |= {"lm_head.weight": draw(vocab, H), "d2t": ids - torch.arange(vocab), "t2d": known}
    if name == "dspark":
        tensors |= {"embed_tokens.weight": target.embed.weight, "lm_head.weight": target.head.weight}
    return tensors


def foreign(case, folder, target, *, change=None, **fields):
    """Write the files; the tensors."""
    _, _, _, config = FILES[case]
    config = {"model_type": "qwen3", **({} if "speculators_model_type" in config else {**LAYERS, **OLD}), **config}
    tensors = tensors_of(case, target)
    if change is not None:
        change(tensors)
    folder.mkdir(exist_ok=True)
    save_file({name: one.clone().contiguous() for name, one in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return tensors


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def turned(x, positions):
    """Rotary embedding of x [n, heads, HD], by angles in float32 as everywhere."""
    angle = positions[:, None].float() * (THETA ** (-torch.arange(0, HD, 2).double() / HD)).float()
    cos, sin = (torch.cat((one, one), -1)[:, None].double() for one in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), -1) * sin


def reference(case, tensors, target, tokens):
    """By the layout: draft logits [K, D] and confidence [K] of the block at ANCHOR, given the tokens that follow."""
    first = FILES[case][1]
    with torch.no_grad():
        hidden = target.causal(tokens[None], taps=(1, 3)).hidden  # outputs of layers 0 and 2
    context = norm(
        torch.cat([hidden[1][0], hidden[3][0]], -1)[:ANCHOR] @ tensors["fc.weight"].T, tensors["hidden_norm.weight"]
    )
    ids = torch.tensor([int(tokens[ANCHOR]), *[MASK] * (BLOCK - 1)])
    x = target.embed.weight[ids]
    positions = torch.arange(ANCHOR + BLOCK)
    for layer in range(L):
        part = lambda name, at=f"layers.{layer}.": tensors[at + name + ".weight"]  # noqa: E731
        inside = norm(x, part("input_layernorm"))
        inside, leave = convolutions(inside, f"layers.{layer}.attention_conv", tensors)
        both = torch.cat((context, inside))
        query = norm((inside @ part("self_attn.q_proj").T).view(BLOCK, NH, HD), part("self_attn.q_norm"))
        key = norm((both @ part("self_attn.k_proj").T).view(-1, KV, HD), part("self_attn.k_norm"))
        value = (both @ part("self_attn.v_proj").T).view(-1, KV, HD).repeat_interleave(NH // KV, 1)
        query, key = turned(query, positions[ANCHOR:]), turned(key, positions).repeat_interleave(NH // KV, 1)
        weights = torch.einsum("qhd,khd->hqk", query, key).div(math.sqrt(HD)).softmax(-1)
        x = x + leave(torch.einsum("hqk,khd->qhd", weights, value).reshape(BLOCK, -1) @ part("self_attn.o_proj").T)
        inside, leave = convolutions(norm(x, part("post_attention_layernorm")), f"layers.{layer}.mlp_conv", tensors)
        gated = F.silu(inside @ part("mlp.gate_proj").T) * (inside @ part("mlp.up_proj").T)
        x = x + leave(gated @ part("mlp.down_proj").T)
    x = norm(x, tensors["norm.weight"])
    depth = BLOCK if first else BLOCK - 1
    whole, skipped = x, x[:-depth]
    x = x[-depth:]
    logits = x @ tensors.get("lm_head.weight", target.head.weight).T
    confidence = None
    if "markov_head.markov_w1.weight" in tensors:
        before = tensors["markov_head.markov_w1.weight"][tokens[ANCHOR : ANCHOR + depth]]
        logits = logits + made_of(before, x, tensors, skipped) @ tensors["markov_head.markov_w2.weight"].T
        weight, bias = (tensors[f"confidence_head.proj.{one}"] for one in ("weight", "bias"))
        read = torch.cat((x, before), -1) if weight.shape[1] > H else x
        confidence = (read @ weight.T + bias)[:, 0]
    if "candidate_selector.predecessor_codebook" in tensors:
        before, after, project = (tensors[name] for name in tensors if name.startswith("candidate_selector."))
        logits = logits + (before[tokens[ANCHOR : ANCHOR + depth]] * (x @ project.T)) @ after.T
    if "refiner_head.mix_l" in tensors:  # the slots' tokens are those before their own
        logits = logits + refined(whole, tokens[ANCHOR - 1 : ANCHOR + depth], tensors)[-depth:]
    return logits, confidence


def convolutions(x, name, tensors):
    """What a sub-layer reads for x [b, H], and what is done to what it gives."""
    if f"{name}.base_kernel" not in tensors:
        return x, lambda given: given
    made = (x @ tensors[f"{name}.kernel_projection.weight"].T).view(BLOCK, 2, 2, H // GROUP)
    kernel = tensors[f"{name}.base_kernel"] + made.repeat_interleave(GROUP, -1)

    def apply(given, at):
        before = torch.cat((torch.zeros_like(given[:1]), given[:-1]))
        return given * kernel[:, at, 0] + before * kernel[:, at, 1]

    return apply(x, 0), lambda given: apply(given, 1)


def refined(x, before, tensors):
    """What the refiner adds to the slots x [b, H] after the tokens ``before`` [b], all at once."""
    part = lambda name: tensors[f"refiner_head.{name}.weight"]  # noqa: E731
    both = torch.cat((x @ part("down_h").T, x.mean(0, keepdim=True).expand_as(x) @ part("down_g").T), -1)
    joined = torch.cat((both, part("token_embed")[before]), -1) @ part("in_proj").T
    joined = joined + torch.einsum("rkj,jr->kr", tensors["refiner_head.mix_l"].tril(), joined)
    joined = joined + (F.silu(joined @ part("mlp_gate").T) * (joined @ part("mlp_up").T)) @ part("mlp_down").T
    return joined @ part("readout").T


def made_of(before, x, tensors, skipped):
    """What the Markov head multiplies, of the embeddings [K, r] of the tokens before and the states x [K, H].

    ``skipped`` are the states of a first slot that predicts nothing; it reads the anchor, as the slot after it.
    """
    product = lambda name, *parts: (  # noqa: E731
        torch.cat(parts, -1) @ tensors[f"markov_head.{name}.weight"].T + tensors[f"markov_head.{name}.bias"]
    )
    if "markov_head.gate_proj.weight" in tensors:
        return product("gate_proj", x, before).sigmoid() * before
    if "markov_head.joint_proj.weight" not in tensors:
        return before
    state, found = torch.zeros(RANK, dtype=x.dtype), []
    for read, slot in [*((before[0], one) for one in skipped), *zip(before, x, strict=True)]:
        gate, candidate, out = product("joint_proj", state, read, slot).split(RANK)
        state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
        found.append(out.tanh())
    return torch.stack(found[len(skipped) :])


def said(head, target, tokens):
    """The same of a loaded head."""
    with torch.no_grad():
        found = head.unroll(tokens[None], target.causal(tokens[None], taps=head.taps).hidden)
    confidence = None if found.confidence is None else found.confidence[0, ANCHOR]
    return found.logits[0, ANCHOR], confidence


TOKENS = texts(1, LENGTH + BLOCK)[0]


@every_file
def test_a_foreign_head_is_read_as_its_layout_says(case, tmp_path):
    _, target = tiny.target()
    tensors = foreign(case, tmp_path, target)
    assert detect(HeadFiles(tmp_path)).name == FILES[case][0]
    head = load_head(tmp_path, target)
    logits, confidence = reference(case, tensors, target, TOKENS)
    found, sure = said(head, target, TOKENS)
    torch.testing.assert_close(found, logits, rtol=1e-9, atol=1e-9)
    assert (sure is None) == (confidence is None)
    if sure is not None:
        torch.testing.assert_close(sure, confidence, rtol=1e-9, atol=1e-9)
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


@every_file
def test_every_assumption_is_reported_with_where_it_comes_from(case, tmp_path):
    _, target = tiny.target()
    foreign(case, tmp_path, target)
    found = read_foreign(tmp_path, target).imported
    known = {one.name: (one.value, one.source) for one in found.assumptions}
    assert known["taps"][0] == (1, 3) and known["anchor_first"][0] == FILES[case][1]
    assert known["mask_token_id"][0] == MASK and known["rope"][0] == {"rope_type": "default", "rope_theta": THETA}
    assert (known["num_layers"], known["ffn_size"]) == ((L, "shapes of tensors"), (INNER, "shapes of tensors"))
    assert all(source for _, source in known.values())
    whole = ("embed_tokens.weight", "lm_head.weight")
    assert found.tied == (whole if FILES[case][0] == "dspark" else ())


def test_heads_of_deepspec_without_a_markov_head_draft_from_their_first_slot(tmp_path):
    """They are published as dflash_*, which says nothing."""
    _, target = tiny.target()
    folder = tmp_path / "dflash_qwen3_block7"
    foreign("DeepSpec without Markov head", folder, target)
    assert detect(HeadFiles(folder)).name == "dspark"
    assert load_head(folder, target).options.depth == BLOCK


MISTAKES = {
    "layers shifted by one": dict(dflash_config={"mask_token_id": MASK, "target_layer_ids": [-1, 1]}),
    "layers swapped": dict(dflash_config={"mask_token_id": MASK, "target_layer_ids": [2, 0]}),
    "another mask": dict(dflash_config={"mask_token_id": 5, "target_layer_ids": [0, 2]}),
    "embeddings scaled": dict(dflash_config={**inner()["dflash_config"], "input_embedding_scale": 2.0}),
    "another base": dict(rope_theta=10000.0),
    "another epsilon": dict(rms_norm_eps=0.1),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_the_config_says_changes_the_drafts(mistake, tmp_path):
    _, target = tiny.target()
    tensors = foreign("z-lab", tmp_path, target, **MISTAKES[mistake])
    found, _ = said(load_head(tmp_path, target), target, TOKENS)
    wanted, _ = reference("z-lab", tensors, target, TOKENS)
    assert (found - wanted).abs().max() > 1e-3


def other(name, shift=1.0):
    return lambda tensors: tensors.update({name: tensors[name] + shift})


REFUSED = {
    "sliding layers": ("z-lab", dict(layer_types=["sliding_attention"] * L), "sliding window are not supported"),
    "causal": ("z-lab", dict(is_causal=True), "is_causal=True is not supported"),
    "attention mode": ("SpecForge DSpark", inner(attention_mode="mla", **HEADS), "attention_mode='mla' is not supp"),
    "softcap": ("z-lab", dict(final_logit_softcapping=30.0), "final_logit_softcapping=30.0 is not supported"),
    "multiplier": ("z-lab", dict(output_multiplier=0.5), "output_multiplier=0.5, and the target divides its logits"),
    "no mask": ("z-lab", dict(dflash_config={"target_layer_ids": [0, 2]}), "lacks dflash_config.mask_token_id"),
    "no layers": ("z-lab", dict(dflash_config={"mask_token_id": 1}), "lacks dflash_config.target_layer_ids"),
    "deep tap": ("z-lab", dict(dflash_config={"mask_token_id": 1, "target_layer_ids": [0, 3]}), r"taps=\[1, 4\]"),
    "another depth": ("z-lab", dict(num_target_layers=4), "of a target of 4 layers, and this one has 3"),
    "vocabulary": ("z-lab", dict(vocab_size=99), "a vocabulary of 99, and this one has 61"),
    "sizes": ("DeepSpec", dict(num_attention_heads=8), "says num_attention_heads=8, and its tensors 4"),
    "activation": ("DeepSpec", dict(hidden_act="gelu"), "hidden_act='gelu' is not supported"),
    "another": (
        "DeepSpec",
        dict(markov_head_type="lstm"),
        "markov_head_type='lstm' is not supported; known: van",
    ),
    "gated": ("DeepSpec", dict(markov_head_type="gated"), "lack.* markov_head.gate_proj.weight"),
    "no such head": ("DeepSpec", dict(markov_rank=0), "config.json and the tensors disagree on a Markov head"),
    "taps": ("speculators dflash2", dict(conv_kernel_size=3), "says conv_kernel_size=3, and its tensors 2"),
    "rank": ("speculators xpress", dict(xpress_rank=9), f"says xpress_rank=9, and its tensors {RANK}"),
    "ratio": ("speculators xpress", dict(xpress_mlp_ratio=2), "says xpress_mlp_ratio=2, and its tensors 3"),
    "rope": ("DeepSpec", dict(rope_scaling={"type": "dynamic", "factor": 2.0}), "rope scaling 'dynamic' is not supp"),
    "speculators' taps": ("speculators dflash", dict(aux_hidden_state_layer_ids=None), "lacks aux_hidden_state_layer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_or_does_not_fit_is_refused_by_name(case, tmp_path):
    _, target = tiny.target()
    source, fields, message = REFUSED[case]
    foreign(source, tmp_path, target, **fields)
    with pytest.raises(FormatError, match=message):
        load_head(tmp_path, target)


BROKEN = {
    "own embedding": (other("embed_tokens.weight"), "embed_tokens.weight is not the target's"),
    "missing": (lambda tensors: tensors.pop("layers.1.self_attn.k_norm.weight"), "lack layers.1.self_attn.k_norm"),
    "unknown": (lambda tensors: tensors.update(extra=torch.ones(1)), "they hold extra, which nothing is known of"),
    "shape": (lambda tensors: tensors.update({"norm.weight": torch.ones(3)}), r"norm.weight has shape \(3,\)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_tensors_that_do_not_fit_are_named(case, tmp_path):
    _, target = tiny.target()
    foreign("DeepSpec", tmp_path, target, change=BROKEN[case][0])
    with pytest.raises(FormatError, match=BROKEN[case][1]):
        load_head(tmp_path, target)


def test_an_lm_head_of_its_own_is_kept(tmp_path):
    _, target = tiny.target()
    tensors = foreign("DeepSpec", tmp_path / "theirs", target, change=other("lm_head.weight"))
    head = load_head(tmp_path / "theirs", target)
    found, _ = said(head, target, TOKENS)
    torch.testing.assert_close(found, reference("DeepSpec", tensors, target, TOKENS)[0], rtol=1e-9, atol=1e-9)
    made = convert(head, find_format("dspark"), target=target, target_name="t", num_draft_tokens=4)
    assert torch.equal(made.tensors["lm_head.weight"], tensors["lm_head.weight"])


def test_a_mask_embedding_beside_the_weights_is_read_where_pickles_are_asked_for(tmp_path):
    _, target = tiny.target()
    tensors = foreign("z-lab", tmp_path, target)
    torch.save({"embedding": target.embed.weight[MASK].clone(), "mask_token_id": 3}, tmp_path / "mask_embedding.pt")
    with pytest.raises(FormatError, match=r"pickled mask_embedding.pt"):
        load_head(tmp_path, target)
    head = load_head(tmp_path, target, pickles=True)
    found, _ = said(head, target, TOKENS)
    torch.testing.assert_close(found, reference("z-lab", tensors, target, TOKENS)[0], rtol=1e-9, atol=1e-9)


SELECTS = dict(mask_token_id=1, markov_rank=2, markov_head="bilinear")
REFINES = dict(mask_token_id=1, markov_rank=2, markov_head="refiner")
UNWRITABLE = {
    "own mask": ("dflash", {}, "an embedding of its own for masked slots"),
    "no norms": ("dflash", dict(mask_token_id=1, qk_norm=False), "qk_norm=false"),
    "first slot": ("dflash", dict(mask_token_id=1, anchor_first=True), "give 'speculators_dspark'"),
    "second slot": ("dspark", dict(mask_token_id=1), "anchor_first=false: this format's first slot drafts too"),
    "no field": ("dspark_specforge", dict(mask_token_id=1, anchor_first=True), "give 'speculators_dspark'"),
    "vocabulary": ("dspark", dict(mask_token_id=1, anchor_first=True, draft_vocab_size=9), "a draft vocabulary"),
    "heads": ("speculators_dflash", dict(mask_token_id=1, markov_rank=2), "this format has none; give 'speculators_"),
    "selector, no fields": ("dspark", dict(SELECTS, anchor_first=True), "give 'speculators_dflash2'"),
    "refiner, no fields": ("dspark", dict(REFINES, anchor_first=True), "give 'speculators_xpress'"),
    "convolutions, no fields": ("dflash", dict(mask_token_id=1, conv_taps=2), "give 'speculators_dflash2'"),
    "no convolutions": ("speculators_dflash2", dict(SELECTS, candidates=3), "this format has convolutions and candid"),
    "no candidates": ("speculators_dflash2", dict(SELECTS, conv_taps=2), "this format has convolutions and candid"),
    "no refiner": ("speculators_xpress", dict(mask_token_id=1), "lacks the Markov head that this format has"),
    "refiner and confidence": ("speculators_xpress", dict(REFINES, confidence=True), "has a Markov or a confidence"),
    "own LM head": ("speculators_dspark", dict(mask_token_id=1, draft_vocab_size=V), "this format takes the target's"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_a_format_cannot_hold_is_refused(case):
    _, target = tiny.target()
    name, options, message = UNWRITABLE[case]
    head = make("block", target, num_layers=1, **options)
    with pytest.raises(FormatError, match=message):
        convert(head, find_format(name), target=target, target_name="t", num_draft_tokens=4)


def test_files_are_in_the_heads_precision_and_advise_no_more_than_a_block(tmp_path):
    target = copy.deepcopy(tiny.target()[1]).to(torch.bfloat16)
    head = make("block", target, mask_token_id=3, attention_bias=True, block_size=4, num_layers=1)
    made = convert(head, find_format("speculators_dflash"), target=target, target_name="t", num_draft_tokens=8)
    assert made.config["dtype"] == "bfloat16" and {one.dtype for one in made.tensors.values()} == {torch.bfloat16}
    write_files(made, tmp_path / "head")
    found = read_foreign(tmp_path / "head", target).imported
    assert (found.num_draft_tokens, found.target_name, found.config.attention_bias) == (3, "t", True)
