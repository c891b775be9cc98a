"""``paceline convert``: a GGUF file becomes a directory that decodes, as target and as draft."""

import json

import pytest
import torch

import paceline
from paceline.cli import run
from tests import tiny
from tests.api.checkpoints import EOS, VOCAB, make_tokenizer
from tests.models.gguf_files import Kind, write_gguf
from tests.models.layouts import shaken
from tests.text.test_gguf_vocabulary import fields_of


def model(**options):
    return shaken(tiny.llama(dtype=torch.float32, vocab_size=VOCAB, max_position_embeddings=512, **options))


def tokens():
    """The tests' tokenizer, padded to the size of the embeddings as llama.cpp pads it."""
    found = {key.removeprefix("tokenizer.ggml."): value for key, value in fields_of(make_tokenizer()).items()}
    known = found["tokens"]
    padding = [f"[PAD{number}]" for number in range(len(known), VOCAB)]
    kinds = [3, *[1] * (len(known) - 1), *[5] * len(padding)]
    return dict(tokens=[*known, *padding], kinds=kinds, merges=found["merges"], eos_token_id=EOS, pre="gpt-2")


def test_a_file_becomes_a_model_that_decodes_with_a_converted_draft(tmp_path, capsys):
    target = model()
    write_gguf(tmp_path / "target.gguf", target, tokens=tokens())
    write_gguf(tmp_path / "draft.gguf", target, kind=Kind.Q8_0, tokens=tokens())
    for name in ("target", "draft"):
        words = ["convert", str(tmp_path / f"{name}.gguf"), "-o", str(tmp_path / name), "--dtype", "float32"]
        assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    count, size = sum(part.numel() for part in target.parameters()), make_tokenizer().get_vocab_size()
    written = f"llama, {count:,} parameters of F32 written as float32; {size} tokens, no chat template"
    assert lines[:2] == [
        f"{tmp_path / 'target'}: {written}",
        f"next: paceline generate --model {tmp_path / 'target'} PROMPT",
    ]
    assert f"draft: llama, {count:,} parameters of Q8_0, F32 written as float32" in lines[2]
    prompts, params = ["def add(first", "for item in"], paceline.SamplingParams(max_tokens=40, temperature=0)
    loaded, draft = paceline.load(tmp_path / "target"), paceline.load(tmp_path / "draft")
    plain = paceline.generate(loaded, prompts, params, drafter=None)
    wanted = [
        target.generate(torch.tensor([list(one.prompt_tokens)]), max_new_tokens=40, do_sample=False, eos_token_id=EOS)
        for one in plain
    ]
    assert [one.prompt_tokens + one.token_ids for one in plain] == [tuple(one[0].tolist()) for one in wanted]
    drafted = paceline.generate(loaded, prompts, params, drafter=draft, num_draft_tokens=4)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert [one.text for one in drafted] == [loaded.tokenizer.decode(one.token_ids) for one in plain]
    accepted = [source for one in drafted for source in one.source].count(paceline.Source.DRAFTED)
    assert accepted > 0.6 * sum(len(one.token_ids) for one in drafted)


def test_the_end_of_text_is_the_files(tmp_path):
    write_gguf(tmp_path / "model.gguf", model(), tokens=tokens())
    assert run(["convert", str(tmp_path / "model.gguf"), "--output", str(tmp_path / "out")]) == 0
    assert paceline.load(tmp_path / "out").eos == (EOS,)


def test_json_and_another_tokenizer(tmp_path, capsys):
    write_gguf(tmp_path / "model.gguf", model(), kind=Kind.F16, tokens={**tokens(), "pre": "viking"})
    (tmp_path / "own").mkdir()
    make_tokenizer().save(str(tmp_path / "own" / "tokenizer.json"))
    words = ["convert", str(tmp_path / "model.gguf"), "--output", str(tmp_path / "out"), "--json"]
    assert run(words) == 2
    assert "rules called 'viking', which are not known" in capsys.readouterr().err
    assert run([*words, "--tokenizer", str(tmp_path / "own")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model_type"], found["from"], found["dtype"]) == ("llama", ["F16"], "float16")
    assert paceline.load(tmp_path / "out").tokenizer.encode("def add") == make_tokenizer().encode("def add").ids


REFUSED = {
    "no such file": (["none.gguf"], "none.gguf: no such file; give a GGUF file"),
    "not GGUF": (["notes.gguf"], "notes.gguf is not a whole GGUF file (GGUF magic invalid); fetch it again"),
    "precision": (["notes.gguf", "--dtype", "float64"], "--dtype float64: known are float32, bfloat16, float16"),
    "no tokenizer": (
        ["model.gguf", "--tokenizer", "empty"],
        "empty holds no tokenizer; give a directory with tokenizer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_is_one_line(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.gguf").write_text("no model at all, but some notes")
    if name == "no tokenizer":
        write_gguf(tmp_path / "model.gguf", model(), tokens=tokens())
    words, message = REFUSED[name]
    assert run(["convert", *words, "--output", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
