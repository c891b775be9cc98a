"""Another project's head is found by its config or its tensors, read by the one format that knows it, or refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.draft_heads.files import load_head
from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.detection import detect, find_format, read_foreign
from paceline.draft_heads.formats.writing import convert, write_files
from paceline.models.directory import ModelError, is_head, is_own_head, read_config
from paceline.models.loading import save
from tests import tiny
from tests.draft_heads.formats.tiny_format import SecondFormat, StitchedFormat, TinyFormat, registered
from tests.draft_heads.test_prophet import make, states
from tests.models.layouts import texts


@pytest.fixture(autouse=True)
def formats():
    with registered(TinyFormat, StitchedFormat):
        yield


def head_of(target, **options):
    head = make("linear_prophet", target, depth=2, **options)
    torch.manual_seed(5)
    for part in head.own_state().values():
        part.data = torch.randn_like(part) * 0.3
    return head


def exported(folder, **options):
    """A head and the directory in the tiny format that it was written to."""
    _, target = tiny.target()
    head = head_of(target, **options)
    made = convert(head, TinyFormat(), target=target, target_name="the-target", num_draft_tokens=4)
    write_files(made, folder)
    return head


def change(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_round_trip_is_bitwise(tmp_path):
    head, (_, target) = exported(tmp_path / "head"), tiny.target()
    assert is_head(tmp_path / "head") and not is_own_head(tmp_path / "head")
    again = load_head(tmp_path / "head", target)
    assert again.config == head.config and not again.training
    for name, tensor in head.own_state().items():
        assert torch.equal(again.own_state()[name], tensor)
    tokens = texts(2, 7)
    hidden = states(target, tokens, head)
    assert torch.equal(again.unroll(tokens, hidden).logits, head.unroll(tokens, hidden).logits)
    made = convert(again, TinyFormat(), target=target, target_name="the-target", num_draft_tokens=4)
    write_files(made, tmp_path / "again")
    for name in ("config.json", "model.safetensors", "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "head" / name).read_bytes(), name


def test_pickled_head_is_read_where_it_is_asked_for(tmp_path):
    head, (_, target) = exported(tmp_path), tiny.target()
    files = HeadFiles(tmp_path)
    torch.save({name: files.tensor(name) for name in files.headers}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FormatError, match="only pickled weights"):
        load_head(tmp_path, target)
    again = load_head(tmp_path, target, pickles=True)
    assert torch.equal(again.own_state()["maps.weight"], head.own_state()["maps.weight"])


def test_what_was_assumed_is_reported(tmp_path):
    exported(tmp_path)
    found = read_foreign(tmp_path, tiny.target()[1])
    assert found.format.name == "tiny" and found.imported.num_draft_tokens == 4
    assert ("depth", 2, "config.json: num_steps") in found.imported.assumptions


UNSUPPORTED = {
    "LiLiCorr": {"architectures": ["LiLiCorrDraftModel"]},
    "Arctic's MLP and LSTM speculator": {"architectures": ["ArcticLSTMSpeculatorPreTrainedModel"]},
    "XPress in another layout than that of speculators": {"architectures": ["Qwen3XPressModel"]},
    "DFlash2 in another layout than that of speculators": {"architectures": ["DFlash2DraftModel"]},
    "Domino": {"architectures": ["Unknown"], "dflash_config": {"projector_type": "domino"}},
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_known_kind_that_is_not_supported_is_refused_by_name(kind, tmp_path):
    exported(tmp_path)
    change(tmp_path, **UNSUPPORTED[kind])
    assert is_head(tmp_path)
    with pytest.raises(FormatError, match=f"{kind} is not supported: it needs .+"):
        load_head(tmp_path, tiny.target()[1])


def test_files_of_no_or_of_several_formats_are_refused(tmp_path):
    exported(tmp_path)
    change(tmp_path, architectures=["MedusaOtherModel"])
    message = r"no known format: speculators_model_type None, architectures \['MedusaOtherModel'\], tensors steps.0"
    with pytest.raises(FormatError, match=message):
        detect(HeadFiles(tmp_path))
    change(tmp_path, architectures=["MedusaTinyModel"], quantization_config={"quant_method": "gptq"})
    with pytest.raises(FormatError, match=r"weights are quantised \(gptq\)"):
        detect(HeadFiles(tmp_path))
    change(tmp_path, quantization_config=None)
    with registered(SecondFormat):
        with pytest.raises(FormatError, match="of several formats: second, tiny"):
            detect(HeadFiles(tmp_path))
    with pytest.raises(FormatError, match=r"unknown format 'nothing'; known: .*tiny"):
        find_format("nothing")


BROKEN = {
    "other sizes": (lambda f: change(f, hidden_size=64), "hidden states of 64, and this one has 32; give its own"),
    "lacks a tensor": (lambda f: change(f, num_steps=3), "they lack steps.2.weight"),
    "unknown tensor": (lambda f: change(f, num_steps=1), "they hold steps.1.weight, which nothing is known of"),
    "lacks a field": (lambda f: change(f, num_steps=None), "config.json lacks num_steps, which this head needs"),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]),
        "is broken or truncated",
    ),
    "without weights": (lambda f: (f / "model.safetensors").unlink(), "holds no weights of a head"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_head_that_does_not_fit_is_refused(case, tmp_path):
    damage, message = BROKEN[case]
    exported(tmp_path)
    damage(tmp_path)
    with pytest.raises(FormatError, match=message):
        load_head(tmp_path, tiny.target()[1])


# What is a head


def save_names(folder, *names, config=None):
    save_file({name: torch.zeros(2) for name in names}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama", "architectures": ["A"]}))


HEADS = {
    "EAGLE-1": ("fc.weight", "layers.0.self_attn.q_proj.weight"),
    "EAGLE-3": ("midlayer.self_attn.q_proj.weight", "fc.weight"),
    "Medusa": ("0.0.linear.weight", "0.1.weight"),
    "DSpark": ("markov_head.markov_w1.weight", "norm.weight"),
    "MLP speculator": ("speculator.emb.0.weight", "speculator.head.0.weight"),
    "MTP of speculators": ("mtp_layers.0.input_proj.weight",),
}


@pytest.mark.parametrize("kind", HEADS)
def test_head_is_known_by_its_tensors_alone(kind, tmp_path):
    save_names(tmp_path, *HEADS[kind])
    assert is_head(tmp_path)
    with pytest.raises(ModelError, match="is a draft head, not a model: give it as the draft"):
        read_config(tmp_path)


@pytest.mark.parametrize("kind", ["EAGLE-1", "EAGLE-3"])
def test_pickled_head_is_known_by_its_tensors_without_unpickling(kind, tmp_path):
    torch.save({name: torch.zeros(2) for name in HEADS[kind]}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    assert is_head(tmp_path)
    with pytest.raises(FormatError, match="only pickled weights"):
        load_head(tmp_path, tiny.target()[1])


@pytest.mark.parametrize(
    "architecture",
    [
        *(
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3DraftModel",
            "Qwen3Eagle3Model",
            "PEagleDraftModel",
        ),
        *("DFlashDraftModel", "Qwen3DSparkModel", "DominoDraftModel", "LiLiCorrDraftModel", "MTPDraftModel"),
        *(
            "MedusaModel",
            "MLPSpeculatorPreTrainedModel",
            "ArcticLSTMSpeculatorPreTrainedModel",
            "EagleLlamaForCausalLM",
        ),
    ],
)
def test_head_is_known_by_its_architecture(architecture, tmp_path):
    save_names(tmp_path, "a", config={"architectures": [architecture]})
    assert is_head(tmp_path)


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen3NextForCausalLM", "Eagle2_5_VLForConditionalGeneration"]
)
def test_model_is_no_head(architecture, tmp_path):
    names = ("model.embed_tokens.weight", "model.layers.0.fc.weight", "mtp.fc.weight", "h.0.attn.weight")
    save_names(tmp_path, *names, config={"model_type": "llama", "architectures": [architecture]})
    assert not is_head(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert not is_head(tmp_path) and not is_head(tmp_path / "missing") and not is_head("")


# Layers inside the target's directory


@pytest.mark.parametrize("sharded", [False, True])
def test_layers_are_added_to_a_copy_of_the_targets_directory(sharded, tmp_path):
    model, target = tiny.target()
    source = tmp_path / "target"
    if sharded:
        model.save_pretrained(source, max_shard_size="20KB")
    else:
        save(target, model.config.to_dict(), source, dtype=torch.float64)
    (source / "heads").mkdir()
    head = head_of(target)
    made = convert(head, StitchedFormat(), target=target, target_name=str(source), num_draft_tokens=2)
    write_files(made, tmp_path / "out", target_path=source)
    files = HeadFiles(tmp_path / "out")
    assert torch.equal(files.tensor("steps.1.weight"), made.tensors["steps.1.weight"])
    assert files.config["num_steps"] == 2 and files.config["model_type"] == "llama"
    assert set(HeadFiles(source).headers) | set(made.tensors) == set(files.headers)
    assert not (tmp_path / "out" / "heads").exists() and not is_head(tmp_path / "out")
    for name in HeadFiles(source).headers:
        assert torch.equal(files.tensor(name), HeadFiles(source).tensor(name))
    again = convert(head, StitchedFormat(), target=target, target_name=str(source), num_draft_tokens=2)
    with pytest.raises(FormatError, match="has draft layers already"):
        write_files(again, tmp_path / "twice", target_path=tmp_path / "out")
    assert not (tmp_path / "twice").exists() and not list(tmp_path.glob(".*part"))
    with pytest.raises(FormatError, match="give the target as a directory"):
        write_files(again, tmp_path / "hub", target_path=tmp_path / "organisation" / "name")


def test_nothing_is_written_over(tmp_path):
    exported(tmp_path / "head")
    with pytest.raises(FormatError, match="exists already; give another name"):
        exported(tmp_path / "head")
    (tmp_path / "empty").mkdir()
    exported(tmp_path / "empty")
    assert is_head(tmp_path / "empty") and (tmp_path / "empty" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_kind_and_options_that_a_format_cannot_hold_are_refused(tmp_path):
    _, target = tiny.target()
    options = dict(target=target, target_name="t", num_draft_tokens=2)
    with pytest.raises(FormatError, match=r"format 'tiny' cannot hold a prophet head; .*: linear_prophet"):
        convert(make("prophet", target), TinyFormat(), **options)
    with pytest.raises(FormatError, match="anchors=3: the format holds none"):
        convert(head_of(target, anchors=3), TinyFormat(), **options)
