"""The embedded pair: what ships, that others read it as we do, and that drafting pays on it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.api import SamplingParams, embedded_heads, embedded_pair, generate, load, total
from paceline.bench.suites import PYTHON_PROMPTS
from paceline.text.loops import is_looping
from paceline.train.data import HELD_OUT

TARGET, DRAFT = embedded_pair()
HEADS = embedded_heads()
PACKAGE = TARGET.parent
TEXT = (
    "def greet(name):\n    '''Say hello: \u00e9\u00df\u6f22\U0001f600.'''\n"
    '\treturn  f"{name!r}"\n<|endoftext|>import os'
)


@pytest.fixture(scope="module")
def pair():
    return load(TARGET, dtype=torch.float32), load(DRAFT, dtype=torch.float32)


def test_the_package_is_small_and_the_core_carries_no_weights():
    assert sum(path.stat().st_size for path in PACKAGE.rglob("*") if path.is_file()) <= 20 * 10**6
    assert not list(Path(paceline.__file__).parent.rglob("*.safetensors"))


@pytest.mark.parametrize("directory", [TARGET, DRAFT], ids=["target", "draft"])
def test_each_model_ships_whole(directory):
    files = {path.name for path in directory.iterdir()}
    assert files == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    card = (directory / "README.md").read_text(encoding="utf-8")
    assert "held-out loss" in card and "tokens per step" in card and "PSF" in card
    assert load(directory).dtype == torch.bfloat16


def test_the_manifest_names_every_text_with_its_hash_and_split():
    manifest = json.loads((PACKAGE / "manifest.json").read_text(encoding="utf-8"))
    assert len(manifest) > 500 and all(len(entry["sha256"]) == 64 for entry in manifest)
    held_out = {entry["name"] for entry in manifest if entry["split"] == "held-out"}
    assert held_out and held_out <= HELD_OUT
    trained = {entry["sha256"] for entry in manifest if entry["split"] == "train"}
    assert not trained & {entry["sha256"] for entry in manifest if entry["split"] == "held-out"}


@pytest.mark.parametrize("directory", [TARGET, DRAFT], ids=["target", "draft"])
def test_transformers_reads_the_same_tokens_and_logits(directory, pair):
    own = pair[0] if directory == TARGET else pair[1]
    assert own.tokenizer is not None
    ids = own.tokenizer.encode(TEXT)
    assert AutoTokenizer.from_pretrained(directory)(TEXT)["input_ids"] == ids
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.tensor([ids])
    with torch.no_grad():
        torch.testing.assert_close(own.lm.causal(tokens).logits, model(tokens).logits, atol=1e-3, rtol=1e-4)
    assert own.eos == (0,)


@pytest.mark.parametrize("directory", HEADS, ids=lambda path: path.name)
def test_each_head_ships_whole_and_is_about_a_megabyte(directory):
    assert {path.name for path in directory.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in directory.iterdir()) < 1.5 * 10**6
    card = (directory / "README.md").read_text(encoding="utf-8")
    assert "tokens per step, greedy, k = " in card and "PSF" in card


@pytest.mark.parametrize("given", ["draft", *HEADS], ids=lambda given: getattr(given, "name", given))
def test_drafting_changes_nothing_and_is_accepted(given, pair):
    """Acceptance on our own prompts, which neither model has seen, at least the recorded value."""
    target, draft = pair[0], pair[1] if given == "draft" else given
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    plain = generate(target, PYTHON_PROMPTS, params)
    fast = generate(target, PYTHON_PROMPTS, params, drafter=draft, num_draft_tokens=5)
    assert [r.token_ids for r in fast] == [r.token_ids for r in plain]
    sound = [r for r in fast if not is_looping(r.token_ids)]
    assert len(sound) >= 3
    counts = total(sound)
    assert counts.mean_acceptance_length > 2.2
    assert counts.first_acceptance > 0.6


def test_the_same_seed_gives_the_same_text_with_any_drafter(pair):
    target, draft = pair
    params = SamplingParams(max_tokens=32, temperature=0.8, top_p=0.95, seed=3)
    texts = [
        [r.token_ids for r in generate(target, PYTHON_PROMPTS[:3], params, drafter=drafter, num_draft_tokens=5)]
        for drafter in (None, "ngram", draft, *HEADS)
    ]
    assert all(text == texts[0] for text in texts)
