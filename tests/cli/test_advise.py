"""The command that says what to draft with."""

import json
from dataclasses import replace

import pytest
import torch

from paceline.cli import run
from paceline.models.loading import save
from tests import tiny
from tests.api.checkpoints import CONTEXT, EOS, VOCAB, make_tokenizer, pair
from tests.bench.test_advice import rates


@pytest.fixture(autouse=True)
def profiles(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setattr("paceline.bench.advice.ROUNDS", 3)
    return tmp_path / "profiles"


@pytest.fixture
def command(tmp_path):
    """The command's words with few and short prompts."""
    (tmp_path / "prompts.txt").write_text("def add(first,\nfor item in\n")
    return ["advise", str(pair().target), "--device", "cpu", "--prompts", str(tmp_path / "prompts.txt")]


@pytest.fixture(scope="module")
def useless(tmp_path_factory):
    """A draft model of other random weights, as large as the target."""
    folder = tmp_path_factory.mktemp("useless")
    model = tiny.llama(seed=9, vocab_size=VOCAB, max_position_embeddings=CONTEXT, eos_token_id=EOS)
    save(tiny.native(model), model.config.to_dict(), folder, dtype=torch.float64)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def advise(capsys, *words):
    assert run([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_every_setting_and_length(command, capsys):
    drafts = ["--draft", pair().draft, "--draft", "ngram"]
    found = advise(capsys, *command, *drafts, "--batch-size", "1,2", "--temperature", "0,1", "--max-tokens", 32)
    settings = [(one["drafter"], one["batch_size"], one["temperature"]) for one in found["settings"]]
    assert settings == [
        (draft, size, temperature)
        for draft in (str(pair().draft), "ngram")
        for size in (1, 2)
        for temperature in (0.0, 1.0)
    ]
    assert len(found["advice"]) >= 4 and found["what_if"] is None
    assert set(found["profiles"]) == {str(pair().draft), "ngram"}
    for one in found["settings"]:
        lengths = one["draft_lengths"]
        assert [length["num_draft_tokens"] for length in lengths] == list(range(9))
        assert lengths[0]["break_even_tokens_per_step"] == lengths[0]["speedup"] == 1
        for length in lengths:
            assert length["step_seconds"] > 0 and 1 <= length["expected_tokens_per_step"] <= 9
            assert length["speedup_low"] <= length["speedup"] <= length["speedup_high"] and length["times_measured"] > 0
        assert one["pays"] == (one["best_num_draft_tokens"] > 0)


def test_a_draft_that_is_never_right_does_not_pay_and_that_is_no_failure(command, capsys, useless):
    assert run([*command, "--draft", str(useless), "--temperature", "0"]) == 0
    said = capsys.readouterr().out
    assert f"batch size 1, temperature 0: no draft pays here. --draft {useless} comes nearest" in said
    found = advise(capsys, *command, "--draft", useless)
    assert found["pays"] is False and found["settings"][0]["best_num_draft_tokens"] == 0


def test_tables_and_sentences(command, capsys, tmp_path):
    assert run([*command, "--plot", str(tmp_path / "advice.svg")]) == 0
    said = capsys.readouterr().out
    assert "ngram, batch size 1, temperature 0" in said and "pays from" in said and "--drafter ngram" in said
    assert "by default (auto) a controller chooses it" in said and "profile: " in said
    drawing = (tmp_path / "advice.svg").read_text()
    assert drawing.startswith("<svg") and "batch size 1" in drawing and "ngram" in drawing


@pytest.mark.slow
def test_another_machine_is_estimated_beside_this_one(command, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("paceline.bench.what_if.measure_model_rates", lambda lm, progress: named(rates(8e9, 1e12), lm))
    words = [*command, "--draft", pair().draft, "--what-if", "bandwidth=4,flops=1000", "--plot", tmp_path / "a.svg"]
    found = advise(capsys, *words)
    there = found["what_if"]
    assert there["machine"] == "bandwidth=4,flops=1000" and there["advice"] and len(there["settings"]) == 1
    assert "8 GB/s and 1e+03 GFLOP/s here, 4 GB/s and 1e+03 GFLOP/s there" in there["assumptions"][0]
    pairs = zip(found["settings"][0]["draft_lengths"], there["settings"][0]["draft_lengths"], strict=True)
    assert all(one["step_seconds"] < other["step_seconds"] for one, other in pairs)
    assert "bandwidth=4" in (tmp_path / "a.svg").read_text()
    assert run(list(map(str, words))) == 0
    assert "with bandwidth=4,flops=1000" in capsys.readouterr().out


def named(found, lm):
    """Rates of the precision that ``lm`` has."""
    return replace(found, products={str(lm.dtype).removeprefix("torch."): found.products["bfloat16"]})


def test_generate_begins_with_what_was_measured(command, capsys):
    advise(capsys, *command)
    words = ["generate", "--model", str(pair().target), "--device", "cpu", "--drafter", "ngram", "--max-tokens", "4"]
    assert run([*words, "--explain", "for item"]) == 0
    assert "assumed" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_profile_of_another_model_is_ignored_with_a_warning_and_measured_anew(command, capsys, tmp_path):
    path = tmp_path / "own.json"
    advise(capsys, "advise", pair().draft, *command[2:], "--profile", path)
    before = path.read_text()
    generating = ["generate", "--model", str(pair().target), "--device", "cpu", "--drafter", "ngram"]
    assert run([*generating, "--max-tokens", "4", "--profile", str(path), "for item"]) == 0
    said = capsys.readouterr().err
    assert "another model" in said and "it is ignored" in said and "paceline advise" in said
    assert run([*command, "--profile", str(path)]) == 0
    said = capsys.readouterr()
    assert "another model" in said.err and "measured anew and replaced" in said.err
    assert path.read_text() != before and f"profile: {path}" in said.out
    assert run([*generating, "--max-tokens", "4", "--profile", str(path), "for item"]) == 0
    assert capsys.readouterr().err == ""


def test_prompt_files_take_one_too(command, capsys, tmp_path):
    path, prompts = tmp_path / "own.json", command[command.index("--prompts") + 1]
    advise(capsys, *command, "--profile", path)
    words = ["generate", "--model", str(pair().target), "--drafter", "ngram", "--device", "cpu", "--max-tokens", "4"]
    assert run([*words, "--prompt-file", prompts, "--profile", str(path), "--output", "-"]) == 0
    assert run([*words, "--num-draft-tokens", "2", "--profile", str(path), "for item"]) == 2
    assert "own.json: nothing begins from it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_costs_the_profile_alone(command, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_PROFILES", str(tmp_path / "file" / "below"))
    assert run(command) == 0
    said = capsys.readouterr()
    assert "no profile is kept" in said.err and "PACELINE_PROFILES" in said.err and "profile:" not in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--what-if", "speed=3"], "--what-if speed=3: unknown key 'speed'; known: bandwidth, flops, threads"),
        (["--what-if", "flops=0"], "flops=0: give a number of GFLOP/s above 0"),
        (["--what-if", "threads=half"], "threads=half: give a whole number"),
        (["--prompts", "missing.txt"], "--prompts missing.txt: No such file"),
        (["--draft", "nowhere/at/all"], "--draft nowhere/at/all: no such directory"),
        (["--draft", "none"], "--draft none: give what drafts"),
        (["--draft", "ngram:depth=3"], "drafter 'ngram' has no option 'depth'"),
        (["--draft", "prophet"], "drafter 'prophet' needs a head"),
        (["--batch-size", "0"], "--batch-size 0: give counts of at least 1"),
        (["--temperature", "cold"], "--temperature cold: give numbers of at least 0"),
        (["--max-tokens", "3"], "--max-tokens 3: give at least 16"),
        (["--num-prompts", "0"], "--num-prompts 0: give at least 1"),
        (["--plot", "a.png"], "--plot a.png: give a name that ends in .svg"),
        (["--plot", "nowhere/a.svg"], "--plot nowhere/a.svg: no such directory"),
        (["--profile", "nowhere/a.json"], "--profile nowhere/a.json: no such directory"),
        (["--profile", "a.json", "--draft", "ngram", "--draft", "ngram:max_ngram=2"], "a profile is of one"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.cli.options.ModelOptions.load", None)
    assert run(["advise", "model", *words]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1


def test_a_file_that_is_no_profile_is_not_overwritten(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("paceline.cli.options.ModelOptions.load", None)
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    assert run(["advise", "model", "--profile", str(tmp_path / "notes.json")]) == 2
    assert "exists already and is no profile" in capsys.readouterr().err
    assert (tmp_path / "notes.json").read_text() == '{"mine": 1}'


def test_prompts_that_are_too_long_are_refused(command, capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("for item in items: " * 200)
    assert run([*command]) == 2
    assert "leave the target's context of" in capsys.readouterr().err


def test_invalid_prompts_are_refused(command, capsys, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n')
    assert run([*command[:-1], str(tmp_path / "bad.jsonl")]) == 2
    assert f"--prompts {tmp_path / 'bad.jsonl'}: line 1" in capsys.readouterr().err
