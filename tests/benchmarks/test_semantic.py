"""The study of text-to-semantic models: drafted and plain outputs in turn, and how right they are."""

import torch

from benchmarks.even_decoding import CONTROL, PLAIN
from benchmarks.semantic import DRAFTED, alike
from benchmarks.semantic_data import END, Pair, runs
from paceline.models.loading import save
from paceline.train.init_weights import random_model
from tests.benchmarks.command import records_of, run
from tests.models.semantic_models import config


def test_an_early_exit_is_decoded_beside_plain_decoding(tmp_path, capsys, still_machine):
    raw = config(num_text_ids=32, num_semantic_ids=64, max_target_positions=256, max_source_positions=64)
    save(random_model(raw, 1), raw, tmp_path / "target", dtype=torch.float32)
    few = "--batch 1,2 --k 2 --guidance 1 --num-texts 2 --repeats 2".split()
    given = ["--model", tmp_path / "target", "--head", "early_exit:exit_layer=1", *few]
    assert run("semantic", *given, "--output", tmp_path / "semantic.jsonl") == 0
    found = [line for line in records_of(tmp_path / "semantic.jsonl") if line["kind"] == "semantic"]
    assert [line["cell"]["batch"] for line in found] == [1, 2]
    for line in found:
        assert list(line["seconds"]) == [PLAIN, DRAFTED, CONTROL] and not line["void"]
        assert line["summary"]["steps"] < line["summary"]["emitted"], "drafts are accepted"
    assert "tokens per step" in capsys.readouterr().out


def test_outputs_are_alike_to_the_runs_of_their_texts():
    table = runs()
    pair = Pair(source=[3, 5], output=[])
    said = [*table[3], *table[5]]
    assert alike([[*said, END]], [pair]) == 1.0 and alike([[END]], [pair]) == 0.0
    assert 0.0 < alike([[*table[3], END]], [pair]) < 1.0
