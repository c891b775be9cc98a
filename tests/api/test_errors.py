import shutil
import sys
from dataclasses import replace

import pytest
import torch

from paceline.api import build_drafter, embedded_pair, generate, load
from paceline.core.sampling import Sampling
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from tests.api.checkpoints import CONTEXT, config_of, make_tokenizer, other_vocabulary, pair, without_tokenizer


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


CALLS = {
    "no prompts": (dict(prompts=[]), "no prompts: give at least one"),
    "empty text": (dict(prompts=""), "empty prompt: give at least one token"),
    "empty tokens": (dict(prompts=[[5], []]), "empty prompt: give at least one token"),
    "no tokens wanted": (dict(max_tokens=0), "max_tokens=0: give at least 1"),
    "prompt beyond the context": (
        dict(prompts=[[5], [5] * CONTEXT]),
        rf"prompt of {CONTEXT} tokens and max_tokens=4 exceed the limit of {CONTEXT} tokens; shorten",
    ),
    "tokens beyond the vocabulary": (dict(prompts=[[5, 9999]]), "9999 leave the target's vocabulary of 320"),
    "negative draft length": (dict(num_draft_tokens=-1), "num_draft_tokens=-1: give 0"),
    "unknown drafter": (dict(drafter="eagle9"), r"unknown drafter 'eagle9'.*known names: model, ngram, none"),
    "nameless draft": (dict(drafter="model"), "drafter 'model' needs a draft model: give its directory"),
    "unknown verifier": (dict(verifier="typical"), "unknown verifier 'typical'; known: coupled, rejection"),
    "options that do not match": (dict(sampling=[Sampling()] * 3), "3 sampling options for 1 prompts"),
}


@pytest.mark.parametrize("case", CALLS)
def test_wrong_call_is_refused_before_any_work(target, case, monkeypatch):
    options, message = CALLS[case]
    monkeypatch.setattr(type(target.lm), "forward", None)  # any work would call it
    with pytest.raises(ValueError, match=message):
        generate(target, **{"prompts": "x", "max_tokens": 4, **options})


def broken(kind, folder):
    """A copy of the target with one thing wrong."""
    shutil.copytree(pair().target, folder)
    if kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "config is no JSON":
        (folder / "config.json").write_text("{")
    elif kind == "architecture":
        config_of(folder, model_type="mamba")
    elif kind == "no weights":
        (folder / "model.safetensors").unlink()
    elif kind == "weights are no safetensors":
        (folder / "model.safetensors").write_bytes(b"nothing")
    elif kind == "tokenizer":
        (folder / "tokenizer.json").write_text("[]")
    return folder


DIRECTORIES = {
    "no config": "not a model: .* has no config.json",
    "config is no JSON": "not a model: .* is not JSON",
    "architecture": "unsupported architecture 'mamba' in .*; supported: gpt2, llama",
    "no weights": "holds no safetensors weights; convert",
    "weights are no safetensors": "is not a safetensors file",
    "tokenizer": "is not a tokenizer",
}


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_directory_that_cannot_be_used_is_refused_with_the_reason(kind, tmp_path):
    with pytest.raises(ValueError, match=DIRECTORIES[kind]):
        load(broken(kind, tmp_path / "model"))


def test_missing_directory_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"no such model directory: .*nowhere; give"):
        load(tmp_path / "nowhere")


def test_text_without_a_tokenizer_is_refused_with_the_way_out(tmp_path):
    bare = load(without_tokenizer(tmp_path / "bare"))
    with pytest.raises(ValueError, match=r"bare has no tokenizer\.json: give the prompt as token ids"):
        generate(bare, "x", max_tokens=4)


def test_draft_of_another_vocabulary_is_refused_with_both_sizes(target, tmp_path):
    folder = other_vocabulary(tmp_path / "draft")
    sizes = rf"target .*target \(297 tokens\) and draft {folder} \(280 tokens\) have different vocabularies; take"
    with pytest.raises(ValueError, match=sizes):
        build_drafter(folder, target=target)


def test_padded_vocabularies_of_one_tokenizer_fit(target, tmp_path):
    folder = without_tokenizer(tmp_path / "draft", vocab_size=304, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"\(320 tokens\) and draft .* \(304 tokens\)"):
        build_drafter(folder, target=target)  # nothing proves that they are of one tokenizer
    make_tokenizer().save(str(folder / "tokenizer.json"))
    plain = generate(target, "def add(", max_tokens=12)[0]
    drafted = generate(target, "def add(", max_tokens=12, drafter=folder)[0]
    assert drafted.tokens == plain.tokens and sum(drafted.stats.drafted) > 0


def test_drafters_are_built_from_whatever_names_them(target):
    draft = load(pair().draft)
    assert isinstance(build_drafter(None, target=target), NoDrafter)
    assert isinstance(build_drafter("ngram", target=target), NgramDrafter)
    for given in (draft, pair().draft, str(pair().draft)):
        assert isinstance(build_drafter(given, target=target), ModelDrafter)
    ready = NgramDrafter(max_ngram=2)
    assert build_drafter(ready, target=target) is ready


def test_draft_directory_takes_the_precision_of_the_target():
    target = load(pair().target, dtype=torch.float32)
    drafter = build_drafter(pair().draft, target=target)
    assert drafter.lm.dtype is target.dtype is torch.float32
    assert load(pair().target).dtype is torch.float64


def test_draft_without_a_tokenizer_fits_by_size(target, tmp_path):
    folder = without_tokenizer(tmp_path / "draft", num_hidden_layers=1)
    assert isinstance(build_drafter(folder, target=target), ModelDrafter)
    assert isinstance(build_drafter(folder, target=replace(target, tokenizer=None)), ModelDrafter)


def test_missing_demo_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "paceline_demo", None)
    with pytest.raises(ValueError, match=r"pip install 'paceline\[demo\]'"):
        embedded_pair()
