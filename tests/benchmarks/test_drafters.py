"""All drafters beside plain decoding: what is measured of each, and which of them a mixture is compared with."""

import json
import shutil
from functools import partial

import pytest
import torch

from benchmarks.drafters import CONTROL, MIXTURES, PLAIN, TOGETHER, DrafterStudy, drafters_of, lines_of
from paceline.api import load
from paceline.bench.raw import RawFile
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from tests.api.checkpoints import pair
from tests.benchmarks.command import measured
from tests.models.encoder_decoders import transformers_model


def cell(suite, seconds, *, void=False):
    """A record of one prompt in two repeats."""
    counts = {"steps": 4, "emitted": 8, "drafted": [4, 2], "accepted": [3, 1]}
    return {
        "cell": {"suite": suite, "batch_size": 1, "max_tokens": 8},
        "void": void,
        "seconds": {name: [[value], [value]] for name, value in seconds.items()},
        "summaries": {name: counts for name in seconds},
        "drafting": {name: 0.25 for name in seconds},
    }


def test_every_drafter_is_decoded_beside_plain_decoding(tmp_path, capsys, still_machine):
    records, out = measured("drafters", tmp_path / "drafters.jsonl", capsys)
    [found] = [line for line in records if line["kind"] == "drafters"]
    names = DrafterStudy(output=tmp_path).drafters
    assert list(found["seconds"]) == [PLAIN, *names, CONTROL]
    assert all(len(found["seconds"][name]) == 2 for name in names)
    assert found["summaries"][PLAIN]["steps"] > found["summaries"]["model"]["steps"] - 1 > 0
    assert all(name in out for name in names)
    assert (tmp_path / "drafters.svg").read_text().startswith("<svg")


def test_every_side_runs_the_encoder_of_a_target_that_has_one(tmp_path, monkeypatch, still_machine):
    vocabulary = json.loads((pair().target / "config.json").read_text())["vocab_size"]
    model = transformers_model("t5", dtype=torch.float32, vocab_size=vocabulary, n_positions=512)
    model.save_pretrained(tmp_path / "target")
    shutil.copy(pair().target / "tokenizer.json", tmp_path / "target")
    read, encode = [], EncoderDecoderLM.encode_inputs
    monkeypatch.setattr(EncoderDecoderLM, "encode_inputs", lambda lm, *given: read.append(id(lm)) or encode(lm, *given))
    names = ("copy", "suffix")
    study = DrafterStudy(
        output=tmp_path / "raw.jsonl",
        target=tmp_path / "target",
        drafters=names,
        suites=("correct",),
        dtype="float32",
        num_prompts=1,
        max_tokens=8,
        repeats=2,
    )
    study.check()
    study.measure(RawFile(study.output), lambda _: None)
    sides = len((PLAIN, *names, CONTROL))
    assert len(set(read)) == sides and len(read) == 3 * sides, "every repeat, the warm-up too"


def test_mixtures_are_compared_with_the_best_single_drafter_of_all_cells_together():
    code = cell("code", {PLAIN: 4.0, "ngram": 4.0, "model": 2.0, "auto": 2.5, CONTROL: 4.0})
    edit = cell("edit", {PLAIN: 8.0, "ngram": 2.0, "model": 8.0, "auto": 2.0, CONTROL: 8.0})
    by_name = {line.drafter: line for line in lines_of([code], "code")}
    assert by_name["model"].speedup.value == 2.0 and by_name["model"].of_best is None
    assert by_name["auto"].of_best.value == 0.8
    whole = {line.drafter: line for line in lines_of([code, edit], TOGETHER)}
    assert whole["auto"].of_best.value == pytest.approx(6 / 4.5), "ngram takes 6 seconds for both, model 10"
    assert whole["auto"].summary.steps == 8 and whole["auto"].summary.acceptance_rate == 8 / 12


def test_names_that_nobody_knows_are_refused(tmp_path):
    study = partial(DrafterStudy, output=tmp_path / "raw.jsonl")
    draft = load(pair().draft, dtype="float32", device="cpu")
    assert set(MIXTURES) <= set(study().drafters) == drafters_of(study().drafters, draft).keys()
    with pytest.raises(ValueError, match="--drafters medusa: known are ngram"):
        drafters_of(("medusa",), draft)
    with pytest.raises(ValueError, match=r"--drafters model: known are .*auto, layer_skip, without --draft"):
        study(target=pair().target, drafters=("copy", "model")).check()
    with pytest.raises(ValueError, match="4 prompts make no batches of 3"):
        study(batch=(3,)).check()
