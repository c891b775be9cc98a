"""Saving and loading draft heads: complete or refused, and only for their target."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.draft_heads.files import (
    CONFIG,
    MODEL_TYPE,
    WEIGHTS,
    HeadError,
    is_head,
    load_head,
    read_head_config,
    save_head,
)
from paceline.models.backend import pack_weights
from paceline.models.fingerprint import fingerprint
from paceline.models.loading import load, save
from tests import tiny
from tests.draft_heads.test_prophet import make, states
from tests.models.layouts import pair, texts

KINDS = {
    "prophet": dict(num_states=3),
    "linear_prophet": dict(depth=2),
    "medusa": dict(num_blocks=2),
    "hydra": dict(num_blocks=2, prefix=True),
    "mlp_speculator": dict(tied=True),
    "block": dict(block_size=4),
    "eagle": dict(),
    "eagle3": dict(draft_vocab_size=40),
    "mtp": dict(),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def saved(folder, kind="prophet", target=None):
    """A head that was saved in ``folder``."""
    target = target or tiny.target()[1]
    head = make(kind, target, **KINDS[kind])
    save_head(head, folder, target_name="the-target", fingerprint=fingerprint(target))
    return head


@every_kind
def test_loaded_head_matches_the_saved_one(kind, tmp_path):
    _, target = tiny.target()
    head = saved(tmp_path / "a" / "head", kind)
    again = load_head(tmp_path / "a" / "head", target)
    assert again.config == head.config and not any(p.requires_grad for p in again.parameters())
    tokens = texts(2, 7)
    hidden = states(target, tokens, head)
    assert torch.equal(again.unroll(tokens, hidden).logits, head.unroll(tokens, hidden).logits)
    assert sorted(file.name for file in (tmp_path / "a" / "head").iterdir()) == [CONFIG, WEIGHTS]
    assert not any(
        name.startswith(("decoder.embed", "decoder.head")) for name in load_file(tmp_path / "a/head" / WEIGHTS)
    )


@every_kind
def test_loaded_head_has_the_dtype_of_its_target(kind, tmp_path):
    _, target = tiny.target()
    saved(tmp_path, kind)
    narrow = copy.deepcopy(target).to(torch.bfloat16)
    state = load_head(tmp_path, narrow).own_state()
    assert {tensor.dtype for name, tensor in state.items() if name != "draft_ids"} == {torch.bfloat16}


def test_other_files_in_the_directory_are_kept(tmp_path):
    (tmp_path / "README.md").write_text("a card")
    saved(tmp_path)
    saved(tmp_path)
    assert (tmp_path / "README.md").read_text() == "a card" and len(list(tmp_path.iterdir())) == 3
    assert is_head(tmp_path) and not is_head(tmp_path.parent) and not is_head("")
    assert (tmp_path / WEIGHTS).stat().st_mode & 0o777 == 0o644


def test_failed_save_keeps_the_previous_files(tmp_path, monkeypatch):
    saved(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*given, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr("paceline.draft_heads.files.os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        saved(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def rewrite(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def other_weights(folder):
    state = load_file(folder / WEIGHTS)
    save_file(dict(list(state.items())[1:]), folder / WEIGHTS, metadata=metadata(folder))


def misshapen(folder):
    state = load_file(folder / WEIGHTS)
    save_file({**state, "project.weight": torch.zeros(3, 3)}, folder / WEIGHTS, metadata=metadata(folder))


def integers(folder):
    state = load_file(folder / WEIGHTS)
    save_file({**state, "project.weight": torch.zeros(3, 3).int()}, folder / WEIGHTS, metadata=metadata(folder))


def metadata(folder):
    found = json.loads((folder / CONFIG).read_text())
    return {MODEL_TYPE: json.dumps({"kind": found["kind"], "config": found["config"]})}


def of_two_saves(folder):
    head = make("prophet", tiny.target()[1], num_states=2)  # of the same shapes
    text = (folder / CONFIG).read_text()
    save_head(head, folder, target_name="the-target", fingerprint=fingerprint(tiny.target()[1]))
    (folder / CONFIG).write_text(text)


BROKEN = {
    "no directory": (lambda f: [one.unlink() for one in f.iterdir()], "is no head: it has no config.json"),
    "a model": (lambda f: (f / CONFIG).write_text('{"model_type": "llama"}'), "is no head: it has no config.json with"),
    "not JSON": (lambda f: (f / CONFIG).write_bytes(b"\xff{"), "is no head"),
    "no kind": (
        lambda f: rewrite(f / CONFIG, lambda c: c.pop("kind")),
        "config.json lacks 'kind': save the head again",
    ),
    "no target": (lambda f: rewrite(f / CONFIG, lambda c: c.update(target=3)), "save the head again"),
    "unknown kind": (
        lambda f: rewrite(f / CONFIG, lambda c: c.update(kind="oracle")),
        "a head of the kind 'oracle', and known are .*prophet.*; update Paceline",
    ),
    "unknown field": (
        lambda f: rewrite(f / CONFIG, lambda c: c["config"].update(colour=1)),
        "config.json: colour=1: Extra inputs are not permitted; update Paceline",
    ),
    "bad value": (lambda f: rewrite(f / CONFIG, lambda c: c["config"].update(depth=0)), "depth=0: Input should be"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "lacks model.safetensors: save the head again"),
    "cut short": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:99]), "is not a safetensors file"),
    "of two saves": (of_two_saves, "model.safetensors and config.json are not of one head"),
    "a tensor missing": (other_weights, "does not fit config.json: .*missing"),
    "misshapen": (misshapen, r"project.weight has shape \(3, 3\), its config says \(32, 32\)"),
    "integers": (integers, "project.weight holds no floats"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_directory_is_refused(case, tmp_path):
    damage, message = BROKEN[case]
    saved(tmp_path)
    damage(tmp_path)
    with pytest.raises(HeadError, match=message):
        load_head(tmp_path, tiny.target()[1])


def test_head_of_another_target_is_refused_naming_both(tmp_path):
    saved(tmp_path)
    message = "is a head of the-target .*3 layers of 32.* and not of mine .*; give the-target as the target, or train"
    for other in (tiny.native(tiny.llama(2)), tiny.native(tiny.llama(1, num_hidden_layers=2))):
        with pytest.raises(HeadError, match=message):
            load_head(tmp_path, other, target_name="mine")
    assert read_head_config(tmp_path).target == "the-target"


# Fingerprints


@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gpt2-odd-heads", "gpt_neox", "tied", "qwen3-bias"])
def test_fingerprint_does_not_depend_on_dtype_or_weight_packing(layout):
    _, lm = pair(layout, torch.float64)
    own = fingerprint(lm)
    assert own.kept and own.matrices
    for dtype in (torch.float32, torch.bfloat16):
        assert fingerprint(copy.deepcopy(lm).to(dtype)) == own
    laid = copy.deepcopy(lm).to(torch.bfloat16)
    pack_weights(laid)
    assert fingerprint(laid) == own
    half = fingerprint(copy.deepcopy(lm).to(torch.float16))
    assert half.kept is half.matrices is None and half.matches(own) and own.matches(half)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
def test_quantised_model_is_identified_by_its_unquantised_weights(quantization, tied, tmp_path):
    pytest.importorskip("torchao")
    found = []
    for seed in (1, 2):
        model = tiny.llama(seed, tie_word_embeddings=tied)
        save(tiny.native(model), model.config.to_dict(), tmp_path / str(seed))
        found.append([fingerprint(load(tmp_path / str(seed), quantization=scheme)) for scheme in (None, quantization)])
    (whole, rounded), (other, _) = found
    assert rounded.matrices is None and rounded.kept == whole.kept
    assert rounded.matches(whole) and not rounded.matches(other)


@pytest.mark.parametrize(
    "part", ["embed.weight", "blocks.1.ffn.down.weight", "blocks.2.attention_norm.weight", "norm.weight"]
)
def test_any_changed_weight_changes_the_fingerprint(part):
    _, lm = tiny.target()
    other = copy.deepcopy(lm)
    other.get_parameter(part).data.mul_(1.02)
    assert not fingerprint(other).matches(fingerprint(lm))
