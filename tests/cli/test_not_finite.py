"""A model with NaN in its weights: every command that decodes says so, and what it prints as JSON is JSON."""

import json
import math
import shutil

import pytest
from safetensors.torch import load_file, save_file

from paceline.cli import run
from tests.api.checkpoints import pair


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken") / "target"
    shutil.copytree(pair().target, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, folder / "model.safetensors")
    return str(folder)


def strict(text):
    return [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in text.splitlines()]


def test_generate_ends_with_an_error_that_names_the_step_and_the_cause(broken, capsys):
    assert run(["generate", "--model", broken, "--json", "--logprobs", "2", "--max-tokens", "4", "x"]) == 1
    shown = capsys.readouterr()
    (result,) = strict(shown.out)
    assert result["tokens"] == [] and result["error"].startswith("step 1, after 0 tokens: the target's logits hold NaN")
    assert "step 1, after 0 tokens: the target's logits hold NaN or infinity" in shown.err


def test_score_ends_with_an_error_or_names_the_line(broken, capsys, tmp_path):
    assert run(["score", "--model", broken, "--json", "x", "y"]) == 2
    assert "scored token 0: the target's logits hold NaN" in capsys.readouterr().err
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "x", "continuation": "y"}\n')
    assert run(["score", "--model", broken, "--json", "--file", str(tmp_path / "pairs.jsonl")]) == 1
    (line,) = strict(capsys.readouterr().out)
    assert line["error"].startswith("line 1: scored token 0: the target's logits hold NaN")
    (tmp_path / "text.txt").write_text("hello world")
    assert run(["score", "--model", broken, "--text", str(tmp_path / "text.txt")]) == 2
    assert "text.txt: scored token 0: the target's logits hold NaN" in capsys.readouterr().err
