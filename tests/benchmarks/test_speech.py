"""The study of speech, on a checkpoint with random weights: what it measures, what it shows, and what it refuses."""

from collections import Counter

import pytest
import soundfile

from benchmarks.__main__ import main
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from tests.benchmarks.command import records_of
from tests.speech.checkpoints import RATE, near, sound, whisper


@pytest.fixture
def study(tmp_path):
    """Its command line, for two sounds."""
    for number in range(2):
        soundfile.write(tmp_path / f"{number}.wav", sound(1.5, seed=number), RATE)
    paths = {"target": whisper().directory, "draft": near().name, "sounds": tmp_path, "output": tmp_path / "raw.jsonl"}
    words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    return ["speech", *words, *"--num-sounds 2 --batch 1,2 --max-tokens 8 --repeats 2 --dtype float32".split()]


@pytest.mark.slow
def test_every_side_encodes_its_windows_in_every_decoding(study, monkeypatch):
    """And for the first token: states that another decoding still holds would make a side faster."""
    encoded: Counter[int] = Counter()
    encode = EncoderDecoderLM._encode

    def counted(self, contexts):
        encoded[id(self)] += len(contexts)
        return encode(self, contexts)

    monkeypatch.setattr(EncoderDecoderLM, "_encode", counted)
    assert main([*study, "--peers", "float32"]) == 0
    decodings, windows = 2 * 3, 2  # of each batch size: a warm-up and two repeats
    once = 2 * decodings * windows  # whole outputs, and first tokens
    plain = once + decodings * windows  # and the encoder alone
    assert sorted(encoded.values()) == [once, once, once, plain], "control, both models of drafted, and plain"


def test_sides_and_transformers_are_measured_part_by_part(study, tmp_path, capsys):
    assert main([*study, "--peers", "float32"]) == 0
    out = capsys.readouterr().out
    assert "batch 2" in out and "transformers, float32" in out and "without encoder" in out
    cells = [record for record in records_of(tmp_path / "raw.jsonl") if record["kind"] == "speech"]
    for cell, parts in zip(cells, (2, 1), strict=True):
        assert set(cell["seconds"]) == {"plain", "control", "drafted", "transformers, float32"}
        assert all(len(part) == parts for taken in cell["seconds"].values() for part in taken)
        assert [len(taken) for taken in cell["encoder"]] == [parts] * len(cell["seconds"]["plain"])
        assert all(part > 0 for taken in cell["encoder"] for part in taken)
        assert cell["equal"] == {"transformers, float32": 1.0}, "the same text as transformers"
        # How often the controller drafts follows the clock.
        assert cell["summaries"]["drafted"]["steps"] <= cell["summaries"]["plain"]["steps"]
    assert main([*study, "--peers", "float32"]) == 0, "nothing is measured twice"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-sounds", "3", "--batch", "2"), "3 sounds make no batches of 2"),
        (("--num-sounds", "4"), "has 2 files .wav; give a folder with 4"),
        (("--peers", "int8"), "--peers int8: known are bfloat16, float32"),
    ],
)
def test_what_cannot_be_measured_is_refused(study, words, message, capsys):
    options = {**dict(zip(study[1::2], study[2::2], strict=True)), **dict(zip(words[::2], words[1::2], strict=True))}
    assert main(["speech", *(word for pair in options.items() for word in pair)]) == 2
    assert message in capsys.readouterr().err
