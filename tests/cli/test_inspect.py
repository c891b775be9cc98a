import json
import sys

import pytest
import torch

from paceline.api import Engine, load
from paceline.api.build import build_drafter
from paceline.cli import run
from paceline.drafters import DRAFTERS
from paceline.drafters.none import NoDrafter
from paceline.engine.memory import weight_bytes
from tests.api.checkpoints import CONTEXT, VOCAB, other_vocabulary, pair, without_tokenizer
from tests.examples.installed import put_example


def inspect(capsys, *words):
    assert run(["inspect", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_facts_are_those_of_the_loaded_model(capsys):
    found = inspect(capsys, pair().target, "--batch-size", 3, "--context", 100)
    loaded = load(pair().target)
    model = found["model"]
    assert model["parameters"] == sum(p.numel() for p in loaded.lm.parameters())
    assert (model["architecture"], model["vocabulary"], model["context"]) == ("llama", VOCAB, CONTEXT)
    assert (model["layers"], model["heads"], model["kv_heads"], model["head_dim"]) == (3, 4, 2, 8)
    assert model["precision"] == ["float64"] and loaded.dtype == torch.float64
    assert model["size_on_disk"] == (pair().target / "model.safetensors").stat().st_size
    assert found["tokenizer"] == {"tokens": loaded.tokenizer.size, "chat_template": False, "end_of_text": [0]}
    assert found["memory"]["weights"] == weight_bytes([loaded.lm])


@pytest.mark.parametrize("draft", [False, True])
def test_memory_is_what_the_engine_takes(draft, capsys):
    words = ["--draft", pair().draft] if draft else []
    found = inspect(capsys, pair().target, "--batch-size", 3, "--context", 100, "--num-draft-tokens", 4, *words)
    target = load(pair().target)
    drafter = build_drafter(pair().draft, target=target) if draft else None
    engine = Engine(target, drafter=drafter, batch_size=3, max_length=100, num_draft_tokens=4)
    caches = [engine.decoder.cache.storage] + ([drafter.cache.storage] if draft else [])
    taken = sum(tensor.numel() * tensor.element_size() for cache in caches for tensor in (cache.keys, cache.values))
    assert 0.7 * taken < found["memory"]["cache"] < 1.5 * taken


def test_no_weights_are_read(capsys, monkeypatch):
    def refuse(*_):
        raise AssertionError("a weight was read")

    monkeypatch.setattr("paceline.models.loading._tensors", refuse)
    inspect(capsys, pair().target, "--draft", pair().draft)


def test_precision_asked_for_is_reckoned_with(capsys):
    half = inspect(capsys, pair().target, "--dtype", "float16")["memory"]
    whole = inspect(capsys, pair().target, "--dtype", "float32")["memory"]
    assert whole["weights"] == 2 * half["weights"] and whole["cache"] > half["cache"]


def test_draft_fits_or_the_reason_is_given(capsys, tmp_path):
    fitting = inspect(capsys, pair().target, "--draft", pair().draft)["draft"]
    assert fitting["fits"] and not fitting["reasons"] and fitting["note"] is None
    other = other_vocabulary(tmp_path / "other")
    found = inspect(capsys, pair().target, "--draft", other)["draft"]
    assert not found["fits"] and "different vocabularies" in found["reasons"][0]
    assert found["note"] == "drafts nothing beyond its context of 128 tokens"


def test_everything_installed_that_can_draft_is_named_with_a_line(capsys, tmp_path, monkeypatch):
    put_example(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    DRAFTERS.refresh()
    try:
        found = inspect(capsys, pair().target)
    finally:
        monkeypatch.undo()
        sys.modules.pop("paceline_bigram", None)
        DRAFTERS.refresh()
    assert found["drafters"].keys() >= {"bigram", "model", "ngram", "none"}
    assert found["drafters"]["none"] == NoDrafter.__doc__
    assert found["verifiers"].keys() >= {"coupled", "rejection"}
    assert all(found["drafters"].values())


def test_model_without_tokenizer_is_described(capsys, tmp_path):
    found = inspect(capsys, without_tokenizer(tmp_path / "bare"))
    assert found["tokenizer"]["tokens"] is None


def test_table_is_for_people(capsys):
    assert run(["inspect", str(pair().target), "--draft", str(pair().draft)]) == 0
    out = capsys.readouterr().out
    for words in ("architecture", "llama", "rows that fit", "chat template", "MiB", "fits"):
        assert words in out
