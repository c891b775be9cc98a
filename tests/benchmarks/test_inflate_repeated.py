"""Whispers that are inflated by repeating: the same function, in both implementations, and what is refused."""

import json

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from benchmarks.__main__ import main
from benchmarks.inflate import repeated
from benchmarks.inflate.command import write
from benchmarks.inflate.widths import count_parameters
from paceline.models.loading import ModelError, load
from tests.models.encoder_decoders import context, pair, transformers_model

IDS = torch.tensor([[3, 5, 40, 22]])


def logits(lm, frames):
    states = lm.encode_inputs(frames, length := torch.tensor([20]))
    return lm.causal(IDS, source=lm.source_of(states, length)).logits


@torch.no_grad()
def test_a_repeated_whisper_computes_the_same(tmp_path):
    lm, frames = pair("whisper")[1], context("whisper", 5).inputs["input_features"][None]
    large = repeated.repeat(lm, 3)
    assert (large.config.hidden_size, large.config.num_heads, large.config.encoder.blocks.ffn_size) == (96, 12, 144)
    torch.testing.assert_close(logits(large, frames), wanted := logits(lm, frames), rtol=0, atol=1e-10)
    transformers_model("whisper").save_pretrained(tmp_path / "small")
    write(large, tmp_path / "large", source=tmp_path / "small")
    config = json.loads((tmp_path / "large/config.json").read_text())
    assert config["d_model"] == 96 and config["decoder_ffn_dim"] == 120 and config["encoder_attention_heads"] == 12
    theirs = WhisperForConditionalGeneration.from_pretrained(tmp_path / "large")
    found = theirs(input_features=frames, decoder_input_ids=IDS).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)
    torch.testing.assert_close(logits(load(tmp_path / "large"), frames), wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_last_norm_is_shared_among_what_the_head_reads(monkeypatch):
    lm, frames = pair("whisper")[1], context("whisper", 5).inputs["input_features"][None]
    monkeypatch.setattr(repeated, "LAST", ())
    torch.testing.assert_close(logits(repeated.repeat(lm, 2), frames), 2 * logits(lm, frames), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "nothing"), [("TABLES", ()), ("SOUND", "")])
def test_ids_places_and_features_are_not_repeated(name, nothing, monkeypatch):
    monkeypatch.setattr(repeated, name, nothing)
    with pytest.raises(ModelError, match="has shape"):
        repeated.repeat(pair("whisper")[1], 2)


def test_the_factor_is_that_of_the_nearest_size():
    lm = pair("whisper")[1]
    size = count_parameters(repeated.widened(lm.config, 4))
    assert count_parameters(repeated.repeat_to(lm, num_parameters=round(1.04 * size)).config) == size
    with pytest.raises(ValueError, match=r"no factor comes within 5 % of it; near it are [\d,]+, [\d,]+"):
        repeated.repeat_to(lm, num_parameters=round(1.2 * size))
    for kind in ("t5", "bart"):
        with pytest.raises(ValueError, match="only encoder-decoders of Whisper's layout"):
            repeated.repeat(pair(kind)[1], 2)


def test_the_command_inflates_a_whisper_and_keeps_its_ids(tmp_path, capsys):
    transformers_model("whisper", dtype=torch.float32).save_pretrained(tmp_path / "small")
    (tmp_path / "small/preprocessor_config.json").write_text("{}")
    size = count_parameters(repeated.widened(pair("whisper")[1].config, 2))
    words = ["inflate", "--model", str(tmp_path / "small"), "--output", str(tmp_path / "large"), "--parameters"]
    assert main([*words, str(size)]) == 0
    assert "hidden size 64, feed-forward 80, 8 query and 8 key-value heads" in capsys.readouterr().out
    assert (tmp_path / "large/preprocessor_config.json").exists()
    words[4] = str(tmp_path / "wide")
    assert main([*words, str(size), "--vocab", "100"]) == 2
    assert "new ids come last, where an encoder-decoder's timestamps are" in capsys.readouterr().err
