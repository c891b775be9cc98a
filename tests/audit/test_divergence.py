"""Divergence points are found with their position and margin; the batch-invariant kernel has none."""

from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from paceline.api import load
from paceline.audit import divergence
from paceline.audit.divergence import measure_divergence
from tests.api.checkpoints import pair

PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6]]


def test_kernel_outputs_never_diverge():
    target, draft = (load(path, dtype="bfloat16", device="cpu") for path in (pair().target, pair().draft))
    found = measure_divergence(target, PROMPTS, drafter=draft, num_tokens=30, batch_size=3)
    assert (found.num_sequences, found.num_tokens, found.divergence_points, found.per_token) == (3, 90, (), 0.0)
    assert found.smallest_margin >= 0 and found.mean_acceptance_length > 1


def test_first_divergence_has_its_position_and_the_margin_of_plain_decoding(monkeypatch):
    target = load(pair().target, dtype="float64", device="cpu")
    real, plain = divergence.generate, {}

    def changed(target, prompts, params, **options):
        results = real(target, prompts, params, **options)
        if "drafter" not in options:
            plain.update(enumerate(results))
            return results
        tokens = list(results[1].token_ids)
        tokens[7] = (tokens[7] + 1) % 300
        return [results[0], replace(results[1], token_ids=tuple(tokens)), results[2]]

    monkeypatch.setattr(divergence, "generate", changed)
    found = measure_divergence(target, PROMPTS, drafter="ngram", num_tokens=12)
    (point,) = found.divergence_points
    assert (point.prompt, point.position, found.num_tokens) == (1, 7, 12 + 8 + 12)
    first, second = plain[1].logprobs[7].top_raw[:2]
    assert point.margin == pytest.approx(first[1] - second[1]) and found.per_token == pytest.approx(1 / 32)


def test_study_prints_a_line_per_backend(capsys):
    models = ["--target", str(pair().target), "--draft", str(pair().draft)]
    words = ["divergence", *models, "--max-tokens", "4", "--batch", "2"]
    assert main([*words, "--backend", "kernel", "--backend", "eager", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert out.count("float32") == 2 and "kernel" in out and "eager" in out
    assert main(["divergence", "--target", "somewhere"]) == 2
    assert "give both" in capsys.readouterr().err
