"""``paceline data regenerate`` for encoder-decoders: the target's own outputs, of texts and of sounds, and what is
trained on them.
"""

import json

import numpy as np
import pytest
import soundfile
import torch
import yaml

import paceline
from paceline.api import Engine, SamplingParams, load
from paceline.cli import run
from paceline.train.data.regenerated import LONG
from tests.speech.checkpoints import RATE, Whisper, sound
from tests.train.configs import train
from tests.train.pairs import pair, recipe, teacher, words, write_pairs


def regenerate(model, output, *options):
    return run(["data", "regenerate", "--model", str(model), "--output", str(output), *map(str, options)])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def section(path, kind, files, **fields):
    """A section ``data`` alone, in ``path``."""
    source = {"kind": kind, "paths": [str(file) for file in files], **fields}
    path.write_text(yaml.safe_dump({"sources": [source], "packing": "documents"}))
    return path


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A checkpoint of three decoder layers that gives no timestamps unasked, and twelve sounds for it."""
    whole = Whisper(0, shape=(("decoder_layers", 3),), suppress_tokens=[3, 4, *range(60, 172)])
    whole.model.float().save_pretrained(whole.directory)
    root = tmp_path_factory.mktemp("sounds")
    for number in range(12):
        soundfile.write(root / f"{number}.wav", sound(3.0 if number == 5 else 1.2, number), RATE)
    path = root / "sounds.jsonl"
    path.write_text("".join(json.dumps({"audio": f"{number}.wav"}) + "\n" for number in range(12)))
    return whole, root


def test_outputs_of_texts_are_the_targets_and_training_reads_them(tmp_path):
    own = tmp_path / "own.jsonl"
    data = section(tmp_path / "data.yaml", "pairs", [write_pairs(tmp_path / "pairs.jsonl", 24)])
    assert regenerate(teacher("bart"), own, data, "--temperature", "0", "--max-tokens", 25) == 0
    given, found = lines(tmp_path / "pairs.jsonl"), lines(own)
    assert [one["source"] for one in found] == [one["source"] for one in given]
    engine, params = Engine(load(teacher("bart"))), SamplingParams(temperature=0.0, max_tokens=25)
    results = engine.generate([one["source"] for one in given], params)
    for line, result in zip(found, results, strict=True):
        assert line["input_ids"] == [3, *result.tokens]
        assert line["loss_mask"] == [0] + [1] * len(result.tokens)
    path = recipe(tmp_path, schedule={"steps": 2}, validation={"every": 2, "prompts": 2, "tokens": 4, "k": 2})
    whole = yaml.safe_load(path.read_text())
    whole["data"]["sources"][0]["paths"] = [str(own)]
    path.write_text(yaml.safe_dump(whole))
    assert train(path) == 0


def test_an_interrupted_run_goes_on_and_a_file_of_lines_is_sources(tmp_path, capsys):
    random = np.random.default_rng(2)
    prompts, output = tmp_path / "sources.txt", tmp_path / "own.jsonl"
    prompts.write_text("".join(f"{words(pair(random)[0])}\n" for _ in range(6)))
    options = ["--prompt-file", prompts, "--temperature", "0,1", "--max-tokens", 25]
    assert regenerate(teacher("bart"), output, *options) == 0
    whole = output.read_bytes()
    output.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]) + b'{"ind')
    assert regenerate(teacher("bart"), output, *options) == 0
    assert output.read_bytes() == whole and "6 outputs" in capsys.readouterr().err


def test_sources_longer_than_the_outputs_room_are_no_prompts_of_the_decoder(tmp_path):
    """A source and an output may together have more tokens than the decoder has positions."""
    prompts, output = tmp_path / "sources.txt", tmp_path / "own.jsonl"
    prompts.write_text(words([9] * 120) + "\n")
    assert regenerate(teacher("bart"), output, "--prompt-file", prompts, "--max-tokens", 20, "--temperature", 0) == 0
    assert "left_out" not in lines(output)[0]


def test_outputs_of_sounds_are_those_of_transcriptions(whisper, tmp_path, capsys):
    whole, root = whisper
    data, own = section(root / "data.yaml", "sounds", [root / "sounds.jsonl"]), tmp_path / "own.jsonl"
    options = [data, "--temperature", "0,1", "--max-tokens", 20]
    assert regenerate(whole.directory, own, *options) == 0
    said, found = capsys.readouterr().err, lines(own)
    assert "1 that exceed a window are left out" in said
    assert [one["index"] for one in found] == list(range(12)) and found[5]["left_out"] == LONG
    kept = [one for one in found if "left_out" not in one]
    assert len(kept) > 4
    for line in kept:
        if line["index"] % 2 == 0:
            (wanted,) = paceline.transcribe(root / f"{line['index']}.wav", model=whole.loaded, max_new_tokens=20)
            assert line["input_ids"][4:24] == list(wanted.tokens)
            assert line["output"] == wanted.text.strip()
        start = [whole.ids[name] for name in ("<|startoftranscript|>", "<|transcribe|>", "<|notimestamps|>")]
        assert [line["input_ids"][at] for at in (0, 2, 3)] == start
        assert line["loss_mask"] == [0] * 4 + [1] * (len(line["input_ids"]) - 4)
        assert (own.parent / line["audio"]).resolve() == (root / f"{line['index']}.wav").resolve()
    written = own.read_bytes()
    own.write_bytes(b"".join(written.splitlines(keepends=True)[:3]))
    assert regenerate(whole.directory, own, *options) == 0 and own.read_bytes() == written


@pytest.mark.slow
def test_a_draft_for_whisper_is_trained_and_transcribes_the_same(whisper, tmp_path, capsys):
    whole, root = whisper
    own = tmp_path / "own.jsonl"
    data = section(tmp_path / "data.yaml", "sounds", [root / "sounds.jsonl"])
    assert regenerate(whole.directory, own, data, "--temperature", "1", "--max-tokens", 20) == 0
    fields = {
        "batch": {"rows": 4, "length": 36},
        "schedule": {"steps": 12, "warmup": 1},
        "optimiser": {"learning_rate": 0.001, "weight_decay": 0.0},
        "validation": {"every": 12, "prompts": 6, "tokens": 8, "k": 2},
    }
    path = recipe(tmp_path, whole.directory, **fields)
    written = yaml.safe_load(path.read_text())
    written["data"] |= {
        "sources": [{"kind": "sounds", "paths": [str(own)]}],
        "validation": {"share": 0.4, "by": "document"},
    }
    path.write_text(yaml.safe_dump(written))
    assert train(path) == 0
    draft = tmp_path / "run" / "draft"
    said = capsys.readouterr().out
    assert f"next: paceline transcribe talk.wav --model {whole.directory} --draft {draft}" in said
    assert "paceline.transcribe(" in (draft / "README.md").read_text()
    sounds = [root / f"{number}.wav" for number in range(4)]
    models = [load(folder, dtype=torch.float64) for folder in (whole.directory, draft)]
    plain = paceline.transcribe(sounds, model=models[0], max_new_tokens=30)
    drafted = paceline.transcribe(sounds, model=models[0], drafter=models[1], max_new_tokens=30, num_draft_tokens=3)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert sum(sum(one.summary.accepted) for one in drafted) > 0
    options = ["--model", str(whole.directory), "--draft", str(draft), "--max-new-tokens", "30"]
    assert run(["transcribe", str(sounds[0]), *options]) == 0
    assert capsys.readouterr().out.strip() == plain[0].text.strip()


def test_refused(whisper, tmp_path, capsys):
    whole, root = whisper
    (tmp_path / "a.txt").write_text("w9\n")
    text, sounds = (
        section(tmp_path / "text.yaml", "pairs", [write_pairs(tmp_path / "pairs.jsonl", 2)]),
        section(tmp_path / "sounds.yaml", "sounds", [root / "sounds.jsonl"]),
    )
    lines_option = ["--prompt-file", tmp_path / "a.txt"]
    for model, output, options, said in (
        (teacher("bart"), "a.npy", lines_option, "an array holds no pairs of sources and outputs; give FILE.jsonl"),
        (teacher("bart"), "a.jsonl", [*lines_option, "--as-chat"], "an encoder-decoder reads no chats"),
        (teacher("bart"), "a.jsonl", ["--text", tmp_path / "a.txt"], "which reads whole sources: give --prompt-file"),
        (teacher("bart"), "a.jsonl", [text, "--num-prompts", 3], "an encoder reads whole sources; leave them out"),
        (teacher("bart"), "a.jsonl", [sounds], "data: sources of kind sounds; "),
        (whole.directory, "a.jsonl", [text], "data: sources of kind pairs; "),
        (whole.directory, "a.jsonl", lines_option, "reads sound: give a configuration with sources of kind sounds"),
        (whole.directory, "a.jsonl", [sounds, "--top-p", 0.5], "--top-p 0.5: sounds are transcribed as the checkpoint"),
    ):
        assert regenerate(model, tmp_path / output, *options) == 2
        error = capsys.readouterr().err
        assert said in error, error
    assert not (tmp_path / "a.jsonl").exists()
