"""``paceline data``: counts, the target's own texts, its hidden states; each goes on after an interruption."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.api import SamplingParams, generate, load
from paceline.cli import run
from paceline.core.noise import split_seed
from paceline.engine.runner import Runner
from paceline.text.loops import is_looping
from paceline.train.data import DataConfig, make_batches
from tests.api.checkpoints import EOS, VOCAB, config_of, pair, without_tokenizer
from tests.cli.files import lines_of, write
from tests.train.data.corpora import files

TEXTS = [f"def f{number}(first, second):\n    return first + {number} * second\n" for number in range(30)]
TEMPERATURES = (0.0, 0.4, 0.7, 1.0)


@pytest.fixture
def corpus(tmp_path):
    return files(tmp_path / "texts", TEXTS)


def data(tmp_path, command, *options):
    return run(["data", command, "--cache", str(tmp_path / "cache"), *map(str, options)])


def regenerate(tmp_path, output, *options):
    given = ("--model", pair().target, "--max-tokens", 16, "--batch-size", 3, "--output", output, *options)
    return data(tmp_path, "regenerate", *given)


def from_texts(tmp_path, corpus, output, *options):
    return regenerate(
        tmp_path, output, "--text", corpus, "--num-prompts", 12, "--prompt-tokens", 6, "--seed", 5, *options
    )


def read(tmp_path, source, **fields):
    config = DataConfig.model_validate(
        {"sources": [source], "validation": {"share": 0}, "cache": tmp_path / "cache", **fields}
    )
    return make_batches(config, tokenizer=None, vocab_size=VOCAB, end_of_text=EOS, rows=2, length=12, seed=0)


def test_prepare_counts_what_a_run_will_read(tmp_path, corpus, capsys):
    config = tmp_path / "run.yaml"
    config.write_text(
        f"target: {{path: {pair().target}}}\nbatch: {{length: 20}}\nsteps: 3\n"
        f"data:\n  sources: [{{kind: text, paths: [{corpus}]}}]\n  validation: {{share: 0.3}}\n"
    )
    assert data(tmp_path, "prepare", config, "--json", "--manifest", tmp_path / "m.json") == 0
    shown = json.loads(capsys.readouterr().out)
    train, held_out = shown["splits"]
    assert shown["length"] == "20" and train["files"] + held_out["files"] == len(TEXTS) and held_out["files"] > 0
    target = load(pair().target)
    tokens = [len(target.tokenizer.encode(text)) + 1 for text in TEXTS]
    assert train["tokens"] + held_out["tokens"] == sum(tokens)
    assert train["rows"] == (train["tokens"] - 1) // 20
    manifest = json.loads((tmp_path / "m.json").read_text())
    assert sum(file["num_tokens"] for file in manifest["files"]) == sum(tokens)
    assert data(tmp_path, "prepare", "--text", corpus, "--bytes", "--length", 8) == 0
    assert "rows of 8 tokens" in capsys.readouterr().out


def test_every_output_equals_plain_decoding_at_its_temperature_and_seed(tmp_path, corpus):
    output = tmp_path / "own.jsonl"
    assert from_texts(tmp_path, corpus, output) == 0
    target, lines = load(pair().target), lines_of(output)
    assert [line["index"] for line in lines] == list(range(12))
    num_kept = 0
    for line in lines:
        if "left_out" in line:
            continue
        num_kept += 1
        prompt = line["input_ids"][: line["loss_mask"].count(0)]
        assert len(prompt) == 6 and line["loss_mask"] == sorted(line["loss_mask"])
        params = SamplingParams(
            max_tokens=16, temperature=TEMPERATURES[line["index"] % 4], seed=split_seed(5, line["index"])
        )
        (expected,) = generate(target, [prompt], params)
        assert line["input_ids"][6:] == list(expected.token_ids) and not is_looping(expected.token_ids)
    assert num_kept > 6


def test_drafting_does_not_change_the_data(tmp_path, corpus):
    plain, drafted = tmp_path / "plain.jsonl", tmp_path / "drafted.jsonl"
    assert from_texts(tmp_path, corpus, plain) == 0
    assert from_texts(tmp_path, corpus, drafted, "--draft", pair().draft) == 0
    assert plain.read_bytes() == drafted.read_bytes()


def test_looping_outputs_are_left_out_and_counted(tmp_path, capsys, monkeypatch):
    prompts = write(tmp_path / "p.txt", [text.splitlines()[0] for text in TEXTS[:6]])
    seen = []
    monkeypatch.setattr(
        "paceline.train.data.regenerated.is_looping", lambda tokens: seen.append(1) or len(seen) % 3 == 0
    )
    output = tmp_path / "own.jsonl"
    assert regenerate(tmp_path, output, "--prompt-file", prompts) == 0
    lines = lines_of(output)
    left_out = [line for line in lines if "left_out" in line]
    assert len(lines) == 6 and len(left_out) == 2 and not any("input_ids" in line for line in left_out)
    assert "4 outputs" in (said := capsys.readouterr().err) and "2 that loop are left out" in said
    found = read(tmp_path, {"kind": "rows", "paths": [str(output)]}, packing="documents")
    assert found.manifest.files[0].num_documents == 4


def test_regenerated_lines_are_training_data(tmp_path, corpus):
    output, array = tmp_path / "own.jsonl", tmp_path / "array.npy"
    assert from_texts(tmp_path, corpus, output) == 0
    assert from_texts(tmp_path, corpus, array) == 0
    kept = [line for line in lines_of(output) if "left_out" not in line]
    found = read(tmp_path, {"kind": "rows", "paths": [str(output)]})
    assert found.manifest.files[0].num_learned == sum(sum(line["loss_mask"]) for line in kept)
    assert np.load(array).tolist() == [token for line in kept for token in line["input_ids"]]
    assert read(tmp_path, {"kind": "tokens", "paths": [str(array)]}).batches.num_rows > 0


def test_regeneration_resumes_after_an_interruption(tmp_path, corpus, monkeypatch, capsys):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "own.jsonl"
    assert from_texts(tmp_path, corpus, whole) == 0
    count = [0]

    def launch(self, real=Runner.launch):
        count[0] += 1
        if count[0] == 40:
            raise KeyboardInterrupt
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "launch", launch)
        assert from_texts(tmp_path, corpus, output) == 130
    assert 0 < len(lines_of(output)) < 12
    assert from_texts(tmp_path, corpus, output) == 0
    assert output.read_bytes() == whole.read_bytes()
    capsys.readouterr()
    assert from_texts(tmp_path, corpus, output, "--max-tokens", 17) == 2
    assert "was written with other sampling options" in capsys.readouterr().err
    assert from_texts(tmp_path, corpus, output, "--temperature", "0.4") == 2
    assert "was written for another prompt in line 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_regeneration_is_completed_to_that_of_one_run(tmp_path, corpus):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "own.jsonl"
    options = ("--text", corpus, "--num-prompts", 28, "--prompt-tokens", 6, "--max-tokens", 200, "--ignore-eos")
    words = ["data", "regenerate", "--cache", tmp_path / "cache", "--model", pair().target, "--batch-size", 2, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", *map(str, words), "--output", str(output)],
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + 60
    while process.poll() is None and not (output.exists() and output.stat().st_size > 1500):
        assert time.monotonic() < limit, "it never wrote"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert 0 < output.read_bytes().count(b"\n") < 28
    for path in (output, whole):
        assert run([*map(str, words), "--output", str(path)]) == 0
    assert output.read_bytes() == whole.read_bytes()


def features(tmp_path, output, *options):
    return data(tmp_path, "features", "--model", pair().target, "--output", output, *options)


def test_features_are_the_targets_hidden_states_and_are_read_back(tmp_path, corpus, capsys):
    output = tmp_path / "hidden"
    options = ("--text", corpus, "--taps", "1", "--length", "24", "--batch-size", "4")
    assert features(tmp_path, output, *options) == 0
    assert "layers 1, 3, in" in capsys.readouterr().err
    rows = lines_of(output / "rows.jsonl")
    lm = load(pair().target).lm
    for number in (0, len(rows) - 1):
        file = load_file(output / "hidden_states" / f"hs_{number}.safetensors")
        tokens = torch.tensor(rows[number]["input_ids"])
        expected = lm.causal(tokens[None], taps=(1, 3)).hidden
        for layer, tap in enumerate((1, 3)):
            assert torch.allclose(file["hidden_states"][:, layer].double(), expected[tap][0], rtol=1e-2, atol=1e-2)
    found = read(tmp_path, {"kind": "features", "path": str(output)})
    assert set(found.batches.batch(0, range(2)).hidden) == {1, 3}
    (output / "hidden_states" / "hs_1.safetensors").unlink()
    assert features(tmp_path, output, *options) == 0
    assert (output / "hidden_states" / "hs_1.safetensors").exists()
    assert features(tmp_path, output, *options, "--taps", "2") == 2
    assert "and now it is [2, 3]: give another --output" in capsys.readouterr().err


def test_held_out_documents_have_hidden_states_of_their_own(tmp_path, corpus):
    one, other = tmp_path / "one", tmp_path / "other"
    config = tmp_path / "data.yaml"
    config.write_text(f"sources: [{{kind: text, paths: [{corpus}]}}]\nvalidation: {{share: 0.4}}\n")
    assert features(tmp_path, one, config, "--taps", "1") == 0
    assert features(tmp_path, other, config, "--taps", "1", "--split", "validation") == 0
    texts = [{tuple(row["input_ids"]) for row in lines_of(folder / "rows.jsonl")} for folder in (one, other)]
    assert not texts[0] & texts[1] and len(texts[0] | texts[1]) == len(TEXTS)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["prepare"], "give either a configuration, CONFIG.yaml, or texts by --text"),
        (["prepare", "--text", "nowhere", "--bytes"], "nowhere: no such file"),
        (["prepare", "--library"], "no model: give --model DIR"),
        (["prepare", "nowhere.yaml"], "nowhere.yaml: No such file or directory; give a YAML file"),
        (["prepare", "--library", "--model", "./nowhere"], "no such model directory: nowhere"),
        (["prepare", "--library", "--bytes", "--length", "0"], "length 0: give at least 1"),
        (["regenerate", "--model", "M", "--output", "a.txt", "--library"], "a.txt: give FILE.jsonl, or FILE.npy"),
        (["regenerate", "--model", "M", "--output", "a.npy"], "give either --prompt-file, or texts"),
        (
            ["regenerate", "--model", "M", "--output", "a.npy", "--library", "--temperature", "x"],
            "--temperature x: give",
        ),
        (["features", "--model", "M", "--output", "a", "--library", "--taps", "x"], "--taps x: give numbers of layers"),
        (
            ["features", "--model", "M", "--output", "a", "--taps", "1", "--split", "test"],
            "--split test: known are train, validation",
        ),
    ],
)
def test_bad_input_is_one_line_with_the_way_out(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    assert run(["data", *words]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1 and said.startswith("paceline: ")


def test_every_wrong_field_of_a_configuration_is_named(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text("data: {sources: [{kind: text, paths: [a], pth: b}], packing: tight}\n")
    assert run(["data", "prepare", str(config)]) == 2
    said = capsys.readouterr().err
    assert "data.sources.0.text.pth: Extra inputs are not permitted ('b' was given)" in said and "data.packing" in said
    for text, reason in (("a: [", "not YAML"), ("- 1", "a list; give a mapping")):
        config.write_text(text)
        assert run(["data", "prepare", str(config)]) == 2 and reason in capsys.readouterr().err


def test_a_target_of_a_smaller_vocabulary_than_its_tokenizer_is_refused(tmp_path, corpus, capsys):
    model = without_tokenizer(tmp_path / "model")
    (model / "tokenizer.json").write_bytes((pair().target / "tokenizer.json").read_bytes())
    config_of(model, vocab_size=100)
    assert data(tmp_path, "prepare", "--text", corpus, "--model", model) == 2
    assert "has 297 tokens and the target 100: give the target's own tokenizer" in capsys.readouterr().err


def test_the_example_of_enwik8_reads_a_local_file_and_says_where_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[2] / "examples" / "enwik8.yaml"
    assert data(tmp_path, "prepare", example) == 2
    assert "enwik8: no such file; enwik8 is in http://mattmahoney.net/dc/enwik8.zip" in capsys.readouterr().err
    (tmp_path / "enwik8").write_bytes(np.random.default_rng(0).bytes(100_000))
    small = tmp_path / "small.yaml"
    small.write_text(example.read_text(encoding="utf-8").replace("000000", "000"), encoding="utf-8")
    assert data(tmp_path, "prepare", small, "--json") == 0
    train, held_out = json.loads(capsys.readouterr().out)["splits"]
    assert (train["tokens"], held_out["tokens"], train["rows"]) == (90_000, 5_000, (90_000 - 1) // 512)
