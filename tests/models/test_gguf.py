"""GGUF files of every family and kind of block: what is written is what llama.cpp was given."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from safetensors.torch import load_file

from paceline.api import convert as converting
from paceline.api.convert import convert_gguf
from paceline.draft_heads.formats.base import FormatError
from paceline.models.base import LogitsFor
from paceline.models.directory import ModelError
from paceline.models.families import FAMILIES
from paceline.models.gguf import file as gguf_file
from paceline.models.loading import configure, load
from paceline.models.prefill import feed
from tests import tiny
from tests.models.gguf_files import K_QUANTS, Kind, bare_vocabulary, stored, write_gguf
from tests.models.layouts import LAYOUTS, LLAMA3_ROPE, close, fresh, plain, shaken, texts

UNSTORED = ("gpt_neox-sequential", "smollm3-listed", "smollm3")  # what GGUF has no key for
LONG_ROPE = {**LLAMA3_ROPE, "factor": 32.0, "original_max_position_embeddings": 8192}
OTHERS = {
    "every-fourth": lambda dtype: tiny.causal("smollm3", num_hidden_layers=4, dtype=dtype),
    "llama-3.2": lambda dtype: tiny.llama(dtype=dtype, head_dim=32, rope_parameters=LONG_ROPE),
    "sequential": lambda dtype: tiny.causal("gpt_neox", use_parallel_residual=False, rotary_pct=0.5, dtype=dtype),
}
MAKERS = {**{name: make for name, make in LAYOUTS.items() if name not in UNSTORED}, **OTHERS}


def model_of(layout, dtype=torch.float32):
    """A transformers model of its own."""
    return shaken(OTHERS[layout](dtype)) if layout in OTHERS else fresh(layout, dtype)


def converted(folder, model, *, dtype=None, **options):
    """The directory that a file of ``model`` becomes."""
    write_gguf(folder / "model.gguf", model, **options)
    convert_gguf(folder / "model.gguf", folder / "out", dtype=dtype)
    return folder / "out"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def weights(folder):
    """By the names of the checkpoint."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def own_names(raw, state):
    """``state`` by the decoder's names."""
    family = FAMILIES[raw["model_type"]]
    tied = ("head.weight",) if raw.get("tie_word_embeddings", raw["model_type"] == "gpt2") else ()
    read = (pair for name, tensor in state.items() for pair in family.read(name, tensor))
    return {name: tensor for name, tensor in read if name not in tied}


@pytest.mark.parametrize("layout", MAKERS)
def test_configuration_and_weights_are_the_models(layout, tmp_path):
    model = model_of(layout)
    folder = converted(tmp_path, model)
    raw, theirs = config_of(folder), model.config.to_dict()
    wanted, found = configure(theirs, "theirs"), configure(raw, folder)
    # llama.cpp files Mistral under llama, and has no window there.
    assert found == (replace(wanted, window=None) if layout.startswith("mistral") else wanted)
    state, parts = own_names(theirs, model.state_dict()), own_names(raw, weights(folder))
    assert parts.keys() == state.keys()
    for name, tensor in state.items():
        rounded = layout == "gemma" and "norm" in name  # stored plus 1
        torch.testing.assert_close(parts[name], tensor, rtol=0, atol=1.2e-7 if rounded else 0)


@pytest.mark.parametrize("layout", ["llama-3", "qwen2-yarn-tied", "phi3-partial", "gemma", "gpt_neox", "every-fourth"])
@torch.no_grad()
def test_logits_are_the_models(layout, tmp_path):
    model = model_of(layout)
    ours, text = load(converted(tmp_path, model)), texts(1, 40)
    found = feed(ours, ours.new_cache(1, 48).view(), text, torch.tensor([40]), 40, logits_for=LogitsFor.ALL).logits
    close(found[0], plain(model, text[0].tolist()))


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16])
def test_halves_are_written_as_they_are(kind, tmp_path):
    dtype = {Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}[kind]
    model = fresh("llama-3", dtype)
    found = weights(converted(tmp_path, model, kind=kind))
    for name, tensor in model.state_dict().items():
        assert found[name].dtype == dtype and torch.equal(found[name], tensor), name


def wide(hidden=256):
    """A model whose rows are whole blocks of every kind."""
    sizes = dict(hidden_size=hidden, intermediate_size=hidden, num_attention_heads=4, num_hidden_layers=1)
    return shaken(tiny.llama(dtype=torch.float32, **sizes))


BLOCKS = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, *K_QUANTS]


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_blocks_are_written_as_they_dequantise(kind, tmp_path):
    model = wide()
    tensors = write_gguf(tmp_path / "model.gguf", model, kind=kind)
    done = convert_gguf(tmp_path / "model.gguf", tmp_path / "out", dtype=torch.float32)
    assert done.kinds == (kind.name,)
    found = weights(tmp_path / "out")
    for ours, theirs in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v"), ("self_attn.q_proj", "attn_q")):
        data, _ = stored(tensors[f"blk.0.{theirs}.weight"], kind)
        wanted = torch.from_numpy(dequantize(data, kind))
        if theirs == "attn_q":  # the two halves of each head were side by side
            wanted = wanted.reshape(4, 32, 2, 256).transpose(1, 2).reshape(256, 256)
        assert torch.equal(found[f"model.layers.0.{ours}.weight"], wanted), ours
    assert torch.equal(found["model.norm.weight"], model.state_dict()["model.norm.weight"])
    if kind not in K_QUANTS:  # whose blocks are any here, and say nothing of the model
        query = "model.layers.0.self_attn.q_proj.weight"
        assert (found[query] - model.state_dict()[query]).abs().max() < 0.1


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, *K_QUANTS], ids=lambda kind: kind.name)
def test_transformers_dequantises_alike(kind):
    dequant = pytest.importorskip("transformers.integrations.gguf.dequant")
    data, _ = stored(np.random.default_rng(1).standard_normal((4, 512), np.float32), kind)
    theirs = dequant.dequantize(torch.from_numpy(data.reshape(-1).copy()), int(kind)).reshape(4, 512)
    torch.testing.assert_close(torch.from_numpy(dequantize(data, kind)), theirs, rtol=1e-6, atol=1e-9)


def test_quantised_files_become_bfloat16_and_others_what_is_asked_for(tmp_path):
    model = wide()
    for kind, dtype, wanted in (
        (Kind.Q8_0, None, torch.bfloat16),
        (Kind.F32, torch.float16, torch.float16),
        (Kind.F16, torch.float32, torch.float32),
        (None, None, torch.float32),
    ):
        (folder := tmp_path / f"{kind}-{dtype}").mkdir()
        assert {tensor.dtype for tensor in weights(converted(folder, model, kind=kind, dtype=dtype)).values()} == {
            wanted
        }


def test_a_model_of_several_files_is_read_from_any_of_them(tmp_path):
    model = fresh("qwen3", torch.float32)
    write_gguf(tmp_path / "m.gguf", model, split_max_tensors=20)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [part.name for part in parts] == [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        convert_gguf(part, tmp_path / part.stem)
        found = weights(tmp_path / part.stem)
        assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    parts[1].unlink()
    with pytest.raises(
        ModelError, match=r"00001-of-00002.gguf: part m-00002-of-00002.gguf of 2 is not beside it; fetch"
    ):
        convert_gguf(parts[0], tmp_path / "other")


def test_large_models_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(converting, "SHARD", 20_000)
    model = fresh("llama-3", torch.float32)
    folder = converted(tmp_path, model)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert configure(config_of(folder), folder) == load(folder).config
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in weights(folder).items())


def write(tmp_path, **options):
    write_gguf(tmp_path / "model.gguf", fresh("llama-3", torch.float32), **options)
    return tmp_path / "model.gguf"


def without(*names):
    return lambda tensors: {name: values for name, values in tensors.items() if name not in names}


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def key(name, value):
    return lambda writer: writer.add_key_value(f"llama.{name}", value, gguf.GGUFValueType.get_type(value))


REFUSED = {
    "a tensor lacks": (dict(change=without("blk.1.ffn_up.weight")), r"they lack blk.1.ffn_up.weight"),
    "a tensor too many": (
        dict(edit=lambda writer: writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, 32), np.float32))),
        "they hold also blk.0.ffn_gate_inp.weight",
    ),
    "another shape": (
        dict(change=lambda tensors: {**tensors, "blk.0.ffn_up.weight": np.zeros((40, 32), np.float32)}),
        r"blk.0.ffn_up.weight has shape \(40, 32\), which does not fit its metadata",
    ),
    "biases": (
        dict(change=lambda tensors: {**tensors, "blk.0.attn_q.bias": np.zeros(32, np.float32)}),
        "attention_bias=True is not supported",
    ),
    "no embeddings": (dict(change=without("token_embd.weight")), "lacks token_embd.weight: it is no whole model"),
    "experts": (dict(edit=lambda writer: writer.add_expert_count(4)), "a mixture of experts cannot be converted"),
    "longrope": (
        dict(edit=lambda writer: writer.add_tensor("rope_factors_long.weight", np.ones(4, np.float32))),
        "hold also rope_factors_long.weight",
    ),
    "not finite": (
        dict(change=lambda tensors: {**tensors, "blk.0.ffn_up.weight": np.full((48, 32), np.nan, np.float32)}),
        "blk.0.ffn_up.weight holds numbers that are NaN or infinite in float32",
    ),
    "other factors": (
        dict(edit=lambda writer: writer.tensors[0].update({"rope_freqs.weight": _factors(writer)})),
        "rope_freqs.weight is no scaling of Llama 3",
    ),
    "big-endian": (
        dict(endianess=gguf.GGUFEndian.BIG),
        "has the other order of bytes; convert it in place: gguf-convert-",
    ),
}


def _factors(writer):
    info = writer.tensors[0]["rope_freqs.weight"]
    info.tensor = np.array([1, 3, 2, 8], np.float32)
    return info


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused(name, tmp_path):
    options, message = REFUSED[name]
    with pytest.raises(ModelError, match=message) as refusal:
        convert_gguf(write(tmp_path, **options), tmp_path / "out")
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(("scaling", "named"), [("longrope", "'longrope'"), ("yarn", "'yarn'")])
def test_scaling_of_positions_that_is_not_known_is_refused(scaling, named, tmp_path):
    model = fresh("qwen3", torch.float32)
    write_gguf(
        tmp_path / "m.gguf", model, edit=lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
    )
    with pytest.raises(ModelError, match=f"RoPE scaling {named} cannot be converted; known are none, linear"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_a_file_cut_anywhere_is_refused_in_one_line(tmp_path):
    whole, header = write(tmp_path).read_bytes(), gguf.GGUFReader(tmp_path / "model.gguf").data_offset
    for end in (0, 3, 6, 20, *range(24, header, 97), len(whole) - 2000, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:end])
        reason = r"it ends after \d+ bytes, before what its header announces" if end else "cannot mmap an empty file"
        with pytest.raises(ModelError, match=rf"is not a whole GGUF file \({reason}\); fetch it again") as refusal:
            convert_gguf(tmp_path / "cut.gguf", tmp_path / "out")
        assert "\n" not in str(refusal.value)
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + b"\xff" * 500)  # sizes without end
    with pytest.raises(ModelError, match="is not a whole GGUF file"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "out")


def test_other_architectures_and_kinds_are_named(tmp_path):
    path = write(tmp_path)
    other = path.read_bytes().replace(b"llama", b"mamba")
    (tmp_path / "mamba.gguf").write_bytes(other)
    with pytest.raises(
        ModelError, match="architecture 'mamba' cannot be converted; known are llama, qwen2, qwen3, phi3"
    ):
        convert_gguf(tmp_path / "mamba.gguf", tmp_path / "out")
    integers = dict(change=lambda tensors: {**tensors, "blk.0.ffn_up.weight": np.zeros((48, 32), np.int8)})
    write_gguf(path, fresh("llama-3", torch.float32), kind=None, **integers, edit=_as_int8)
    with pytest.raises(ModelError, match=r"blk.0.ffn_up.weight is stored as I8, which cannot be dequantised"):
        convert_gguf(path, tmp_path / "out")


def _as_int8(writer):
    writer.tensors[0]["blk.0.ffn_up.weight"].dtype = Kind.I8


def test_nothing_is_written_over_and_the_package_is_named(tmp_path, monkeypatch):
    path = write(tmp_path)
    convert_gguf(path, tmp_path / "out")
    with pytest.raises(FormatError, match="out exists already; give another name"):
        convert_gguf(path, tmp_path / "out")
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"model.gguf: reading GGUF needs gguf; pip install 'paceline\[gguf\]'"):
        convert_gguf(path, tmp_path / "other")
    with pytest.raises(ModelError, match=r"none.gguf: no such file; give a GGUF file"):
        monkeypatch.undo()
        convert_gguf(tmp_path / "none.gguf", tmp_path / "other")


def test_fewer_tokens_than_embeddings_are_padding_and_more_are_refused(tmp_path):
    path = write(tmp_path, tokens=bare_vocabulary(40))
    assert convert_gguf(path, tmp_path / "out").vocabulary_size == 40
    path = write(tmp_path, tokens=bare_vocabulary(62))
    with pytest.raises(ModelError, match="62 tokens, and embeddings of 61; give the directory of the model's own tok"):
        convert_gguf(path, tmp_path / "other")
