"""``paceline transcribe``: files to text, subtitles and JSON; files that fail; what is refused."""

import json
import re

import pytest
import soundfile

from paceline.cli import EXIT_BAD_INPUT, run
from tests.api.checkpoints import pair
from tests.speech.checkpoints import RATE, sound, whisper


@pytest.fixture
def files(tmp_path):
    """A short and a long sound."""
    for name, seconds in (("short.wav", 1.0), ("long.flac", 5.3)):
        soundfile.write(tmp_path / name, sound(seconds), RATE, subtype="PCM_24")
    return [tmp_path / "short.wav", tmp_path / "long.flac"]


def ran(capsys, *words):
    code = run([str(word) for word in ("transcribe", *words, "--model", whisper().directory)])
    return code, capsys.readouterr()


def test_json_has_the_tokens_of_transformers_with_and_without_a_draft(capsys, files):
    tokens = []
    for draft in ((), ("--drafter", "ngram", "--num-draft-tokens", 3), ("--draft", whisper(1).directory)):
        code, said = ran(capsys, *files, "--format", "json", *draft)
        assert code == 0
        lines = [json.loads(line) for line in said.out.splitlines()]
        assert [line["file"] for line in lines] == list(map(str, files))
        tokens.append([[token for one in line["segments"] for token in one["tokens"]] for line in lines])
    assert tokens[0] == tokens[1] == tokens[2]
    samples, _ = soundfile.read(files[1], dtype="float32")
    assert tokens[0][1] == whisper().generate(samples, task="transcribe")[0]


def test_subtitles_are_written_to_a_directory(capsys, files, tmp_path):
    folder = tmp_path / "subtitles"
    code, said = ran(capsys, *files, "--format", "srt", "--output-dir", folder)
    assert code == 0 and said.out == ""
    assert sorted(path.name for path in folder.iterdir()) == ["long.srt", "short.srt"]
    assert re.match(r"1\n00:00:00,\d{3} --> 00:00:0\d,\d{3}\n", (folder / "long.srt").read_text())
    assert ran(capsys, *files, "--format", "srt", "--output-dir", folder)[0] == EXIT_BAD_INPUT
    assert ran(capsys, *files, "--format", "srt", "--output-dir", folder, "--overwrite")[0] == 0


def test_text_of_several_files_is_named(capsys, files):
    one = ran(capsys, files[0])[1].out
    both = ran(capsys, *files)[1].out
    assert both.startswith(f"{files[0]}: {one}") and f"{files[1]}: " in both


def test_a_bad_file_fails_alone(capsys, files, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"nothing")
    code, said = ran(capsys, files[0], tmp_path / "bad.wav", files[1], "--format", "json")
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert code == 1 and [("error" in line) for line in lines] == [False, True, False]
    assert said.err.count("\n") == 1 and said.err.startswith(f"paceline: {tmp_path / 'bad.wav'}: not a sound")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no AUDIO"),
        (["a.wav", "b.wav", "--format", "srt"], "give --output-dir DIR"),
        (["a.wav", "b/a.flac", "--output-dir", "out"], "would both become"),
        (["a.wav", "--format", "docx"], "known are text, srt, vtt, json"),
        (["a.wav", "--overwrite"], "nothing to overwrite"),
        (["a.wav", "--task", "sing"], "known are transcribe, translate"),
        (["a.wav", "--language", "germann"], "did you mean german"),
        (["a.wav", "--no-speech-threshold", "0.5"], "without logprob_threshold"),
    ],
)
def test_what_is_refused_is_one_line(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, said = ran(capsys, *words)
    assert code == EXIT_BAD_INPUT and message in said.err and said.err.count("\n") == 1


def test_a_text_model_is_refused(capsys, files):
    code = run(["transcribe", str(files[0]), "--model", str(pair().target)])
    assert code == EXIT_BAD_INPUT and "reads text, not sound" in capsys.readouterr().err
