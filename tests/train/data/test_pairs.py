"""Pairs as training rows: what the encoder reads, the output behind its start tokens, and what is learned of it."""

import json

import numpy as np
import pytest
import soundfile
import torch
from tokenizers import processors

from paceline.text.tokenizer import load_tokenizer
from paceline.train.batches import SourceBatch
from paceline.train.data import DataConfig, make_batches
from paceline.train.data.manifest import Split
from paceline.train.data.pair_encoder import find_pair_model
from tests.models.encoder_decoders import START, STATES, VOCAB, transformers_model
from tests.speech.checkpoints import RATE, Whisper, sound
from tests.train.pairs import END, write_tokenizer

LENGTH = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A T5 of at most STATES source tokens, which was not trained."""
    path = tmp_path_factory.mktemp("t5")
    transformers_model("t5", dtype=torch.float32).save_pretrained(path)
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def whisper():
    return Whisper(0)


def prepared(model, path, tmp_path, *, length=LENGTH, **source):
    """The rows of the lines in ``path``, all of which are trained on."""
    pairs_for = find_pair_model(str(model))
    kind = "sounds" if pairs_for.reads_sound else "pairs"
    config = DataConfig.model_validate(
        {
            "sources": [{"kind": kind, "paths": [str(path)], **source}],
            "packing": "documents",
            "validation": {"share": 0},
            "cache": str(tmp_path / "cache"),
        }
    )
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    return make_batches(
        config,
        tokenizer=load_tokenizer(model),
        vocab_size=vocab_size,
        end_of_text=None,
        rows=2,
        length=length,
        seed=0,
        pairs_for=pairs_for,
    )


def write(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def rows(found):
    """Every row, in the order of the lines: source, tokens and learned ones, without padding."""
    (packing,) = found.packings[Split.TRAIN]
    made = [packing.row(index) for index in range(packing.num_rows)]
    return [
        (row.source.tolist(), row.tokens[: row.learned.nonzero()[0][-1] + 1].tolist(), row.learned.tolist())
        for row in made
    ]


def test_texts_and_token_ids_become_rows(folder, tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"source": "w9 w8", "output": "w7 w6"},
        {"source": [11, 12, 13], "output": "w5"},
        {"source": "w14", "input_ids": [START, 40, 20, 21, END], "loss_mask": [0, 0, 1, 1, 1]},
        {"source": "w14", "left_out": "it loops"},
    )
    pad = [False] * 2
    assert rows(prepared(folder, path, tmp_path)) == [
        ([9, 8], [START, 7, 6, END], [False, True, True, True, False, *pad]),
        ([11, 12, 13], [START, 5, END], [False, True, True, False, False, *pad]),
        ([14], [START, 40, 20, 21, END], [False, False, True, True, True, *pad]),
    ]


def test_special_tokens_are_those_of_each_side(folder, tmp_path):
    """An encoder reads what the tokenizer adds; an output ends once, and begins with a text's beginning alone."""
    tokenizer = load_tokenizer(folder).inner
    model = tmp_path / "model"
    transformers_model("bart", dtype=torch.float32, decoder_start_token_id=END).save_pretrained(model)
    tokenizer.add_special_tokens({"bos_token": "w1"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="w1 $A </s>", special_tokens=[("w1", 1), ("</s>", END)]
    )
    tokenizer.save_pretrained(model)
    path = write(tmp_path / "a.jsonl", {"source": "w9", "output": "w7"})
    assert rows(prepared(model, path, tmp_path))[0][:2] == ([1, 9, END], [END, 1, 7, END])
    raw = json.loads((model / "config.json").read_text())
    (model / "generation_config.json").write_text(
        json.dumps({"decoder_start_token_id": END, "forced_bos_token_id": 1, "eos_token_id": END})
    )
    assert raw["is_encoder_decoder"]
    ((source, output, learned),) = rows(prepared(model, path, tmp_path))
    assert (source, output) == ([1, 9, END], [END, 1, 7, END]) and learned[:4] == [False, False, True, True]


def test_batches_pad_sources_and_know_their_lengths(folder, tmp_path):
    path = write(
        tmp_path / "a.jsonl", {"source": "w9 w8 w7", "output": "w6"}, {"source": "w5", "output": "w7 w8 w9 w10"}
    )
    found = prepared(folder, path, tmp_path).batches.batch(0, range(2))
    order = np.argsort(found.source.length.tolist())[::-1].tolist()
    assert found.source.inputs[order].tolist() == [[9, 8, 7], [5, 0, 0]]
    assert found.source.length[order].tolist() == [3, 1]
    assert found.tokens.shape == (2, LENGTH + 1) and found.learned.sum(-1)[order].tolist() == [2, 5]


def test_long_pairs_are_left_out_and_counted(folder, tmp_path, caplog):
    words = " ".join(["w9"] * STATES)
    path = write(
        tmp_path / "a.jsonl",
        {"source": words, "output": "w7"},
        {"source": f"{words} w9", "output": "w7"},
        {"source": "w8", "output": " ".join(["w7"] * (LENGTH - 1))},
        {"source": "w8", "output": " ".join(["w7"] * LENGTH)},
        {"source": "w8", "input_ids": [START, 9], "loss_mask": [0, 0]},
    )
    found = prepared(folder, path, tmp_path)
    assert [len(source) for source, *_ in rows(found)] == [STATES, 1]
    said = [record.message for record in caplog.records if "left out" in record.message]
    assert [one.split(": ", 1)[1] for one in said] == [
        f"1 of 5 pairs are left out: they have more than the {STATES} tokens that the encoder reads",
        f"1 of 5 pairs are left out: they have outputs of more than batch.length={LENGTH} tokens behind the first",
        "1 of 5 pairs are left out: they have outputs of which nothing is learned",
    ]
    assert found.counts[Split.TRAIN].num_unused == (STATES + 1) + 3 + (1 + LENGTH + 2) + 3


WRONG = {
    "no field": ({"source": "w9"}, "line 1: no 'output' among 'source'"),
    "a number": ({"source": 3, "output": "w9"}, "line 1: source is a int; give a text, or token ids"),
    "no text": ({"source": "w9", "output": 3}, "line 1: output is a int; give a text, or input_ids and loss_mask"),
    "nothing to read": (
        {"source": "", "output": "w9"},
        "line 1: source has no tokens, and an encoder reads at least one",
    ),
    "another vocabulary": (
        {"source": [VOCAB], "output": "w9"},
        f"line 1: token id {VOCAB}, and the vocabulary has {VOCAB}",
    ),
    "half a mask": ({"source": "w9", "input_ids": [3, 4], "loss_mask": [1]}, "input_ids has 2 entries and loss_mask 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lines_are_named(case, folder, tmp_path):
    line, said = WRONG[case]
    with pytest.raises(ValueError, match=said):
        prepared(folder, write(tmp_path / "a.jsonl", line), tmp_path)


def test_sounds_are_read_with_the_checkpoints_features_and_tokens(whisper, tmp_path, caplog):
    samples = [sound(seconds, seed) for seed, seconds in enumerate((1.5, 0.7, 2.5))]
    for number, one in enumerate(samples):
        soundfile.write(tmp_path / f"{number}.wav", one, RATE, subtype="FLOAT")
    path = write(
        tmp_path / "a.jsonl",
        *({"audio": f"{number}.wav", "text": f" {'AB' * (number + 1)} "} for number in range(3)),
    )
    found = prepared(whisper.directory, path, tmp_path, length=20, language="de", output="text")
    ids = whisper.ids
    start = [ids[name] for name in ("<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>")]
    (packing,) = found.packings[Split.TRAIN]
    assert packing.num_rows == 2 and "1 sounds are left out, for they are longer than a window of 2 s" in caplog.text
    wanted = whisper.extractor(samples[:2], sampling_rate=RATE, return_tensors="pt").input_features
    for index, text in enumerate((" AB", " ABAB")):
        row = packing.row(index)
        output = [*whisper.tokenizer.encode(text, add_special_tokens=False), ids["<|endoftext|>"]]
        size = len(start) + len(output)
        assert row.tokens[:size].tolist() == start + output
        assert row.learned.tolist() == [False] * 4 + [True] * len(output) + [False] * (21 - size)
        assert torch.equal(row.source, wanted[index])
    assert SourceBatch.of(list(wanted)).length.tolist() == [100, 100]


def test_sounds_that_are_wrong(whisper, tmp_path):
    with pytest.raises(ValueError, match=r"line 1: .*gone.wav: no such file; paths begin at the folder of"):
        prepared(whisper.directory, write(tmp_path / "a.jsonl", {"audio": "gone.wav", "output": "A"}), tmp_path)
    (tmp_path / "bad.wav").write_text("nothing")
    with pytest.raises(ValueError, match=r"bad.wav: not a sound"):
        prepared(
            whisper.directory, write(tmp_path / "b.jsonl", {"audio": "bad.wav", "output": "A"}), tmp_path, language="en"
        )
    soundfile.write(tmp_path / "good.wav", sound(0.5), RATE)
    path = write(tmp_path / "c.jsonl", {"audio": "good.wav", "output": "A"})
    with pytest.raises(ValueError, match=r"line 1: .* knows several languages; give that of the transcripts"):
        prepared(whisper.directory, path, tmp_path)
    with pytest.raises(ValueError, match=r"language 'german': .* has no token for it|no token for it"):
        prepared(whisper.directory, path, tmp_path, language="xx")


def test_reading_sound_names_the_extra(whisper, tmp_path, monkeypatch):
    soundfile.write(tmp_path / "good.wav", sound(0.5), RATE)
    path = write(tmp_path / "c.jsonl", {"audio": "good.wav", "output": "A"})
    monkeypatch.setattr("paceline.speech.audio.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'paceline\[speech\]'"):
        prepared(whisper.directory, path, tmp_path, language="en")


def test_another_sound_is_another_corpus(whisper, tmp_path):
    path = write(tmp_path / "c.jsonl", {"audio": "good.wav", "output": "A"})
    found = []
    for seconds in (0.5, 0.6):
        soundfile.write(tmp_path / "good.wav", sound(seconds), RATE)
        found.append(prepared(whisper.directory, path, tmp_path, language="en", length=10).manifest)
    with pytest.raises(ValueError, match="is not what"):
        found[1].check_same(found[0])
