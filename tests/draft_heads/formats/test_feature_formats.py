"""Medusa, Hydra and MLP speculator files: read as their layouts say, written again bit by bit, or refused by name.

The reference forwards are written from the layouts alone, in plain torch.
"""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel

from paceline.draft_heads.files import load_head
from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.detection import detect, find_format, read_foreign
from paceline.draft_heads.formats.writing import convert, write_files
from paceline.drafters import DRAFTERS
from tests import tiny
from tests.drafters.feature_heads import fitted, new_head
from tests.harness import request, run
from tests.models.layouts import pair, texts

H, V, N, INNER, DV = 32, tiny.VOCAB, 3, 24, 20
BASE = {"base_model_name_or_path": "the-target"}
VLLM = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": H, "vocab_size": V, "num_heads": N}
VLLM |= {"max_paths": 64, "topk": 10, **BASE}
IBM = {
    "architectures": ["MLPSpeculatorPreTrainedModel"],
    "model_type": "mlp_speculator",
    "vocab_size": V,
    "emb_dim": H,
    "n_predict": N,
    "top_k_tokens_per_head": [5, 4, 3],
    "n_candidates": 5,
}
HYDRA = {"hydra_num_heads": N, "hydra_head_arch": "mlp", "hidden_state_offset": 0, **BASE}


class Draw:
    """Random tensors, each other ones."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64) * 0.3


def faster_decoding(blocks=1, prefix="", lm_head="{i}.{blocks}", block="{i}.{j}"):
    draw, tensors = Draw(), {}
    for i in range(N):
        same = {"weight": draw(H, H), "bias": draw(H)}
        for j in range(blocks):
            at = prefix + block.format(i=i, j=j)
            tensors |= {f"{at}.linear.{name}": one for name, one in same.items()}
        tensors[prefix + lm_head.format(i=i, blocks=blocks) + ".weight"] = draw(V, H)
    return tensors


def vllm(blocks=2, bias=False, original=False, rows=V, ids=None):
    draw, tensors = Draw(), {}
    for i in range(N):
        for j in range(blocks):
            tensors[f"blocks.{i}.layers.{j}.weight"] = draw(H, H)
            tensors |= {f"blocks.{i}.layers.{j}.bias": draw(H)} if bias else {}
        tensors |= {} if original else {f"lm_heads.{i}.weight": draw(rows, H)}
    tensors |= {"lm_head.weight": draw(rows, H)} if original else {}
    return tensors if ids is None else {**tensors, "token_map": ids}


def speculator(tied=False, inner=H, copies=1):
    draw, tensors = Draw(), {}
    for at in range(N):
        stored = at == 0 or not tied or at < copies
        shared = tied and at > 0
        for part, shapes in (
            ("emb", {"weight": (V, inner)}),
            ("proj", {"weight": (inner, H if at == 0 else inner)}),
            ("ln", {"weight": (inner,), "bias": (inner,)}),
            ("head", {"weight": (V, inner)}),
        ):
            for name, shape in shapes.items():
                first = 1 if part == "proj" else 0
                if stored or (part == "proj" and at == 1):
                    known = tensors.get(f"speculator.{part}.{first}.{name}") if shared and at > first else None
                    tensors[f"speculator.{part}.{at}.{name}"] = draw(*shape) if known is None else known
    return tensors


def prefix_layer():
    """A decoder of one layer like the target's, as transformers has it."""
    torch.manual_seed(4)
    model = LlamaModel(LlamaConfig(**{**tiny.target()[0].config.to_dict(), "num_hidden_layers": 1})).double().eval()
    model.embed_tokens.weight.data.copy_(tiny.target()[1].embed.weight)
    return model


def prefixed(blocks=1):
    """The tensors of Hydra++: dropouts have numbers too."""
    plain = hydra(blocks, last=".1")
    tensors = {}
    for name, one in plain.items():
        parts = name.split(".")
        if parts[0] == "hydra_mlp":
            parts[2] = str(2 * int(parts[2]) + 1)
        tensors[".".join(parts)] = one
    own = prefix_layer().state_dict()
    for name, one in own.items():
        if name != "embed_tokens.weight":
            own[name] = one + 0.1 * Draw()(*one.shape)
    return tensors | {f"prefix_embeding_layer.{name}": one for name, one in own.items()}


def hydra(blocks=1, grounded=True, first=0, last=""):
    draw, tensors = Draw(), {}
    for i in range(N):
        inner = (i + 2) * H if grounded else H
        tensors |= {
            f"hydra_mlp.{i}.{first}.linear.weight": draw(H, inner),
            f"hydra_mlp.{i}.{first}.linear.bias": draw(H),
        }
        if grounded:
            tensors[f"hydra_mlp.{i}.{first}.res_connection.weight"] = draw(H, inner)
            tensors[f"hydra_mlp.{i}.{first}.res_connection.bias"] = draw(H)
        same = {"weight": draw(H, H), "bias": draw(H)}
        for j in range(1, blocks):
            tensors |= {f"hydra_mlp.{i}.{first + j}.linear.{name}": one for name, one in same.items()}
        tensors |= {f"hydra_lm_head.{i}{last}.weight": draw(V, H), f"hydra_lm_head.{i}{last}.bias": draw(V)}
    return tensors


IDS = torch.arange(2, 62, 3)[:DV]
# Format, config.json, tensors, and whether writing gives these very files.
FILES = {
    "medusa": ("medusa", {"medusa_num_heads": 2, "medusa_num_layers": 1, **BASE}, faster_decoding(), True),
    "medusa, blocks": ("medusa", {"medusa_num_heads": 2, "medusa_num_layers": 3}, faster_decoding(3), True),
    "medusa, ModelOpt": (
        "medusa",
        {},
        faster_decoding(2, "parallel_draft_heads.", "{i}.lm_head", "{i}.medusa_layers.{j}"),
        False,
    ),
    "medusa, old ModelOpt": ("medusa", {}, faster_decoding(1, "parallel_draft_heads.medusa_heads."), False),
    "vllm": ("medusa_vllm", {**VLLM, "num_hidden_layers": 2, "medusa_fc_bias": False}, vllm(), True),
    "vllm, bias": ("medusa_vllm", {**VLLM, "medusa_fc_bias": True}, vllm(1, True), True),
    "vllm, one LM head": ("medusa_vllm", {**VLLM, "original_lm_head": True}, vllm(original=True), True),
    "vllm, vocabulary": (
        "medusa_vllm",
        {**VLLM, "truncated_vocab_size": DV},
        vllm(rows=DV, ids=IDS),
        True,
    ),
    "vllm, vocabulary in disorder": (
        "medusa_vllm",
        {**VLLM, "truncated_vocab_size": DV},
        vllm(rows=V, ids=IDS.flip(0).contiguous()),
        False,
    ),
    "speculator": (
        "mlp_speculator",
        {**IBM, "inner_dim": 0, "tie_weights": False, "scale_input": False},
        speculator(),
        True,
    ),
    "speculator, tied": (
        "mlp_speculator",
        {**IBM, "inner_dim": INNER, "tie_weights": True, "scale_input": True},
        speculator(True, INNER),
        True,
    ),
    "speculator, tied, all stored": (
        "mlp_speculator",
        {**IBM, "inner_dim": INNER, "tie_weights": True, "scale_input": True},
        speculator(True, INNER, N),
        False,
    ),
    "hydra": ("hydra", {**HYDRA, "hydra_num_layers": 1, "grounded_heads": True}, hydra(), True),
    "hydra, blocks": ("hydra", {**HYDRA, "hydra_num_layers": 4, "grounded_heads": True}, hydra(4), True),
    "hydra, indices shifted": ("hydra", HYDRA, hydra(2, first=1, last=".1"), False),
    "hydra, prefix": ("hydra", {**HYDRA, "hydra_head_arch": "prefix-mlp", "hydra_num_layers": 3}, prefixed(3), True),
    "hydra, not grounded": ("hydra", {**HYDRA, "grounded_heads": False}, hydra(grounded=False), True),
}
every_file = pytest.mark.parametrize("case", FILES)
written = pytest.mark.parametrize("case", [case for case, (_, _, _, same) in FILES.items() if same])
TOKENS, ANCHOR = texts(1, 9)[0], 4


def foreign(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    state = {name: one.clone().contiguous() for name, one in tensors.items()}
    save_file(state, folder / "model.safetensors")


def state_before(target):
    """What the heads read at ANCHOR: the state of the token before, after the target's final norm."""
    with torch.no_grad():
        return target.norm(target.causal(TOKENS[None], taps=(3,)).hidden[3][0, ANCHOR - 1])


def medusa_reference(config, tensors, h, target):
    found, at = [], lambda i, j, name: tensors.get(f"blocks.{i}.layers.{j}.{name}")
    for i in range(N):
        x, blocks = h, 0
        while at(i, blocks, "weight") is not None:
            bias = at(i, blocks, "bias")
            x = x + F.silu(at(i, blocks, "weight") @ x + (0 if bias is None else bias))
            blocks += 1
        lm_head = tensors.get("lm_head.weight", tensors.get(f"lm_heads.{i}.weight"))
        if "token_map" in tensors and len(lm_head) == V:
            lm_head = lm_head[tensors["token_map"]]
        logits = lm_head @ x
        if "token_map" in tensors:
            logits = torch.full((V,), -math.inf, dtype=x.dtype).index_copy(0, tensors["token_map"], logits)
        found.append(logits)
    return found


def faster_decoding_reference(config, tensors, h, target):
    renamed = {}
    for name, one in tensors.items():
        name = name.removeprefix("parallel_draft_heads.").removeprefix("medusa_heads.").replace("medusa_layers.", "")
        i, rest = name.split(".", 1)
        j = rest.split(".")[0]
        linear = ".linear." in rest
        renamed[f"blocks.{i}.layers.{j}.{name.split('.')[-1]}" if linear else f"lm_heads.{i}.weight"] = one
    return medusa_reference(config, renamed, h, target)


def speculator_reference(config, tensors, h, target):
    tied, inner = config["tie_weights"], config["inner_dim"] or H

    def part(name, at, one="weight"):
        first = min(at, 1) if name == "proj" else 0
        return tensors[f"speculator.{name}.{first if tied else at}.{one}"]

    def scaled(x):
        return x * torch.rsqrt(x.pow(2).mean() + 1e-6)

    state_weight = 0.5 ** (0.5 / N)
    emb_weight = math.sqrt((1 - state_weight**2) * (inner / 2))
    state, found = scaled(h) / math.sqrt(2) if config["scale_input"] else h, []
    for at in range(N):
        z = part("proj", at) @ state + (emb_weight / state_weight) * part("emb", at)[TOKENS[ANCHOR + at]]
        state = F.gelu(scaled(z) * part("ln", at) + part("ln", at, "bias"))
        found.append(part("head", at) @ state)
    return found


def hydra_reference(config, tensors, h, target):
    if config["hydra_head_arch"] == "prefix-mlp":
        layer = prefix_layer()
        layer.load_state_dict(
            {name.split(".", 1)[1]: one for name, one in tensors.items() if name.startswith("prefix")}
        )
        with torch.no_grad():
            states = target.norm(target.causal(TOKENS[None], taps=(3,)).hidden[3])
            h = layer(inputs_embeds=states).last_hidden_state[0, ANCHOR - 1]
    found, x = [], h
    for i in range(N):
        own = {name.split(".", 2)[2]: one for name, one in tensors.items() if name.startswith(f"hydra_mlp.{i}.")}
        places = sorted({name.split(".")[0] for name in own})
        grounded = any("res_connection" in name for name in own)
        x = torch.cat((x, target.embed.weight[TOKENS[ANCHOR + i]])) if grounded else h
        y = x
        for j in places:
            residual = y
            if f"{j}.res_connection.weight" in own:
                residual = own[f"{j}.res_connection.weight"] @ y + own[f"{j}.res_connection.bias"]
            y = residual + F.silu(own[f"{j}.linear.weight"] @ y + own[f"{j}.linear.bias"])
        [weight], [bias] = (
            [one for name, one in tensors.items() if name.startswith(f"hydra_lm_head.{i}.") and name.endswith(end)]
            for end in ("weight", "bias")
        )
        found.append(weight @ y + bias)
    return found


REFERENCES = {
    "medusa": faster_decoding_reference,
    "medusa_vllm": medusa_reference,
    "mlp_speculator": speculator_reference,
    "hydra": hydra_reference,
}


def said(head, target):
    """The draft logits [N, V] of a loaded head at ANCHOR."""
    with torch.no_grad():
        unrolled = head.unroll(TOKENS[None], target.causal(TOKENS[None], taps=head.taps).hidden)
    logits = unrolled.logits[0, ANCHOR]
    return logits if head.vocab_map is None else head.vocab_map.target_logits(logits)


@every_file
def test_a_foreign_head_is_read_as_its_layout_says(case, tmp_path):
    _, target = tiny.target()
    name, config, tensors, _ = FILES[case]
    foreign(tmp_path, config, tensors)
    assert detect(HeadFiles(tmp_path)).name == name
    wanted = torch.stack(REFERENCES[name](config, tensors, state_before(target), target))
    tolerance = 1e-5 if "prefix" in case else 1e-9  # transformers rotates by angles of single precision
    torch.testing.assert_close(said(load_head(tmp_path, target), target), wanted, rtol=tolerance, atol=tolerance)


@written
def test_written_files_are_those_that_were_read(case, tmp_path):
    _, target = tiny.target()
    name, config, tensors, _ = FILES[case]
    foreign(tmp_path / "theirs", config, tensors)
    head = load_head(tmp_path / "theirs", target)
    for turn in ("ours", "again"):
        made = convert(head, find_format(name), target=target, target_name="the-target", num_draft_tokens=3)
        write_files(made, tmp_path / turn)
        [file] = (tmp_path / turn).glob("*.safetensors")
        found = load_file(file)
        assert found.keys() == tensors.keys() and all(torch.equal(found[name], one) for name, one in tensors.items())
        head = load_head(tmp_path / turn, target)
    theirs, ours = (read_foreign(tmp_path / turn, target).imported for turn in ("theirs", "again"))
    assert theirs.config == ours.config and theirs.tied == ours.tied
    said_so = json.loads((tmp_path / "ours/config.json").read_text())
    assert {key: said_so[key] for key in config if not key.startswith("medusa_num")}.items() <= {
        **config,
        **said_so,
    }.items()
    assert (tmp_path / "ours/config.json").read_text() == (tmp_path / "again/config.json").read_text()


@every_file
def test_assumptions_say_where_they_come_from(case, tmp_path):
    _, target = tiny.target()
    _, config, tensors, _ = FILES[case]
    foreign(tmp_path, config, tensors)
    found = read_foreign(tmp_path, target).imported
    known = {one.name: (one.value, one.source) for one in found.assumptions}
    assert known["depth"][0] == N == found.num_draft_tokens and known["normalized"] == (True, "the format")
    assert all(source for _, source in known.values())
    if "medusa_num_heads" in config:
        assert known["depth"][1] == "tensors (config.json: medusa_num_heads=2)"


PICKLED = {"medusa": "medusa_lm_head.pt", "hydra": "hydra_lm_head.pt"}


@pytest.mark.parametrize("case", PICKLED)
def test_published_files_are_pickles_and_read_when_asked_for(case, tmp_path):
    _, target = tiny.target()
    _, config, tensors, _ = FILES[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(
        {**tensors, **({"input_embed_fn.weight": target.embed.weight} if case == "hydra" else {})},
        tmp_path / PICKLED[case],
    )
    with pytest.raises(FormatError, match="only pickled weights"):
        read_foreign(tmp_path, target)
    found = read_foreign(tmp_path, target, pickles=True).imported
    assert found.kind == case and found.config.depth == N
    assert found.ignored == (("input_embed_fn.weight",) if case == "hydra" else ())


@pytest.mark.parametrize("name", ["medusa", "medusa_vllm"])
@pytest.mark.parametrize("lm_head", ["shared", "target"])
def test_lm_heads_that_are_one_or_the_targets_are_found_to_be_so(name, lm_head, tmp_path):
    _, target = tiny.target()
    head = new_head("medusa", target, spread=0.1, depth=2, lm_head=lm_head)
    write_files(convert(head, find_format(name), target=target, target_name="t", num_draft_tokens=2), tmp_path / "head")
    again = load_head(tmp_path / "head", target)
    assert again.config == head.config
    assert all(torch.equal(again.own_state()[name], one) for name, one in head.own_state().items())


@pytest.mark.parametrize("name", REFERENCES)
def test_a_head_that_was_written_and_read_is_accepted_as_often(name, tmp_path):
    _, target = tiny.looping_target()
    kind = "medusa" if name.startswith("medusa") else name
    lengths = []
    head = fitted(kind, target, noise=0.3, depth=3)
    write_files(convert(head, find_format(name), target=target, target_name="t", num_draft_tokens=3), tmp_path / "head")
    for one in (head, load_head(tmp_path / "head", target)):
        requests = [request(prompt, max_tokens=20) for prompt in ([7], [7, 3], [11], [23], [42])]
        result = run(DRAFTERS.find(kind)(head=one), "coupled", requests, target=target, k=3)
        lengths.append(result.summary.mean_acceptance_length)
    assert lengths[0] == lengths[1] > 1.4


def without(name):
    return lambda tensors: tensors.pop(name)


def more(name, *shape):
    return lambda tensors: tensors.update({name: torch.zeros(shape, dtype=torch.float64)})


REFUSED = {
    "a block is missing": ("medusa", {}, without("1.0.linear.bias"), r"lack bias of block 0 of head 1"),
    "an LM head is missing": ("vllm", {}, without("lm_heads.2.weight"), "lack the LM head of head 2"),
    "unknown": ("medusa", {}, more("extra.weight", 3), "hold extra.weight, which nothing is known of"),
    "another size": ("medusa", {}, more("0.0.linear.weight", 5, 5), r"hidden states of 5, and this one has 32"),
    "another vocabulary": ("speculator", {"vocab_size": 99}, None, "a vocabulary of 99, and this one has 61"),
    "too many tokens": (
        "vllm",
        {},
        lambda tensors: tensors.update({f"lm_heads.{i}.weight": torch.zeros(99, H).double() for i in range(N)}),
        "LM heads of 99 tokens",
    ),
    "fewer stages": ("speculator", {"n_predict": 2}, None, "hold speculator.emb.2.weight, speculator.head.2.weight"),
    "no number of stages": ("speculator", {"n_predict": None}, None, "lacks n_predict"),
    "not tied": (
        "speculator, tied, all stored",
        {},
        lambda tensors: tensors.update({"speculator.emb.2.weight": torch.ones(V, INNER).double()}),
        "tie_weights is true, and speculator.emb.2.weight is not speculator.emb.0.weight",
    ),
    "Hydra++": ("hydra", {"hydra_head_arch": "prefix-mlp"}, None, "'prefix-mlp', and the tensors lack a layer"),
    "a prefix layer": (
        "hydra",
        {},
        more("prefix_embeding_layer.norm.weight", H),
        "'mlp', and the tensors hold a layer",
    ),
    "a part of a prefix layer": (
        "hydra",
        {"hydra_head_arch": None},
        more("prefix_embeding_layer.norm.weight", H),
        "they lack prefix_embeding_layer.layers.0",
    ),
    "cross attention": ("hydra", {"hydra_head_arch": "cross-attn"}, None, "hydra_head_arch='cross-attn'"),
    "another state": ("hydra", {"hidden_state_offset": 1}, None, "hidden_state_offset=1 is not supported"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_does_not_fit_is_refused_by_name(mistake, tmp_path):
    case, fields, change, message = REFUSED[mistake]
    _, config, tensors, _ = FILES[case]
    tensors = dict(tensors)
    if change is not None:
        change(tensors)
    foreign(tmp_path, {**config, **fields}, tensors)
    with pytest.raises(FormatError, match=message):
        read_foreign(tmp_path, tiny.target()[1])


UNWRITABLE = [
    ("medusa", "medusa", dict(block_bias=False), "block_bias=false"),
    ("medusa", "medusa", dict(num_blocks=2), "num_blocks=2 without shared_blocks"),
    ("medusa", "medusa", dict(draft_vocab_size=9), "draft_vocab_size"),
    ("medusa", "medusa_vllm", dict(normalized=False), "normalized=false"),
    ("mlp_speculator", "mlp_speculator", dict(draft_vocab_size=9), "draft_vocab_size"),
    ("mlp_speculator", "mlp_speculator", dict(normalized=False), "normalized=false"),
    ("hydra", "hydra", dict(num_blocks=3), "num_blocks=3 without shared_blocks"),
    ("hydra", "hydra", dict(num_blocks=2, grounded=False), "grounded=false with several blocks"),
]


@pytest.mark.parametrize(("kind", "name", "sizes", "message"), UNWRITABLE, ids=str)
def test_options_that_a_format_lacks_are_refused_by_name(kind, name, sizes, message):
    _, target = tiny.target()
    head = new_head(kind, target, spread=0.1, **sizes)
    with pytest.raises(FormatError, match=message):
        convert(head, find_format(name), target=target, target_name="t", num_draft_tokens=2)


@pytest.mark.parametrize("layout", ["gpt2", "gemma", "olmo2", "granite"])
def test_a_prefix_layer_that_is_not_llamas_is_not_written(layout):
    target = pair(layout)[1]
    head = new_head("hydra", target, prefix=True)
    with pytest.raises(FormatError, match="a prefix layer of this format is one of Llama"):
        convert(head, find_format("hydra"), target=target, target_name="the-target", num_draft_tokens=3)
