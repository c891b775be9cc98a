"""Texts that part are found, with the place and the margin; the kernel's do not part."""

from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from paceline.api import load
from paceline.audit import divergence
from paceline.audit.divergence import measure
from tests.api.checkpoints import pair

PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6]]


def test_the_kernel_parts_nowhere_and_the_draft_is_used():
    target = load(pair().target, dtype="bfloat16", device="cpu")
    found = measure(target, PROMPTS, drafter=load(pair().draft, dtype="bfloat16"), num_tokens=30, batch_size=3)
    assert (found.num_texts, found.num_tokens, found.divergence_points, found.per_token) == (3, 90, (), 0.0)
    assert found.smallest_margin >= 0 and found.mean_acceptance_length > 1


def test_a_text_that_parts_is_placed_and_its_margin_is_that_of_plain_decoding(monkeypatch):
    target = load(pair().target, dtype="float64", device="cpu")
    real, plain = divergence.generate, {}

    def other(target, prompts, params, **options):
        results = real(target, prompts, params, **options)
        if "drafter" not in options:
            plain.update(enumerate(results))
            return results
        changed = list(results[1].tokens)
        changed[7] = (changed[7] + 1) % 300
        return [results[0], replace(results[1], tokens=tuple(changed)), results[2]]

    monkeypatch.setattr(divergence, "generate", other)
    found = measure(target, PROMPTS, drafter="ngram", num_tokens=12)
    (parting,) = found.divergence_points
    assert (parting.prompt, parting.position, found.num_tokens) == (1, 7, 12 + 8 + 12)
    first, second = plain[1].logprobs[7].top_raw[:2]
    assert parting.margin == pytest.approx(first[1] - second[1]) and found.per_token == pytest.approx(1 / 32)


def test_the_table_has_a_line_for_each_way(capsys):
    words = [
        "divergence",
        "--target",
        str(pair().target),
        "--draft",
        str(pair().draft),
        "--max-tokens",
        "4",
        "--batch",
        "2",
    ]
    assert main([*words, "--backend", "kernel", "--backend", "eager", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert out.count("float32") == 2 and "kernel" in out and "eager" in out
    assert main(["divergence", "--target", "somewhere"]) == 2
    assert "give both" in capsys.readouterr().err
