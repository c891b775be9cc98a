"""Draft heads beside plain decoding: the draft length that is chosen for each, and what is shown of them."""

from functools import partial

import pytest
import torch

from benchmarks.even_decoding import CONTROL, PLAIN, Decoded, Sides, flat
from benchmarks.head_cells import AUTO, BEST, Cell, best_depth, prompts_that_do_not_loop
from benchmarks.heads import MODEL, HeadStudy, heads_in, line_of
from paceline.api import load
from paceline.core.stats import Summary
from paceline.draft_heads.files import save_head
from paceline.draft_heads.medusa import MedusaConfig, MedusaHead
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import pair
from tests.benchmarks.command import measured, run, small


def write_head(folder, depth=2):
    """A new Medusa head of the tiny target in ``folder``."""
    target = load(pair().target, dtype="float32", device="cpu").lm
    head = MedusaHead.make(MedusaConfig(depth=depth), target, generator=torch.Generator().manual_seed(0))
    save_head(head, folder, target_name="tiny", fingerprint=fingerprint(target))


def cell(**changes):
    given = {"drafter": "x", "hash": "", "temperature": 0.8, "batch_size": 1, "max_tokens": 8}
    return Cell(**(given | changes))


def decoded(seconds, *drafted):
    summary = Summary(steps=2, emitted=2, drafted=list(drafted), accepted=[0] * len(drafted))
    return Decoded(seconds=seconds, tokens=((1,),), summaries=(summary,), drafting=0.0)


def sides(**by_name):
    """A repeat of a part."""
    return Sides({name: [[one]] for name, one in by_name.items()})


def test_every_drafter_is_measured_with_its_best_draft_length_and_with_the_controllers(tmp_path, capsys, still_machine):
    records, out = measured("heads", tmp_path / "heads.jsonl", capsys)
    found = [line for line in records if line["kind"] == "heads"]
    assert [(line["cell"]["drafter"], line["cell"]["batch_size"]) for line in found] == [(MODEL, 1), (MODEL, 2)]
    for line in found:
        assert list(line["seconds"]) == [PLAIN, AUTO, BEST, CONTROL] and set(line["searched"]) == {"1", "2"}
        assert len(line["summaries"][BEST]) == 2, "one for each prompt"
        assert line["depth"] in (1, 2) and line["bytes"] > 0 and line["slot_bytes"] > 0
    alone, batch = found
    assert "reading" not in batch, "the times of its requests do not add up"
    for name, repeats in alone["seconds"].items():
        for part, whole in zip(flat(alone["reading"][name]), flat(repeats), strict=True):
            assert 0 < part < whole
    assert "best k" in out and "auto: decoding" in out and "temperature 0.8, batch 2" in out
    assert (tmp_path / "heads.svg").read_text().startswith("<svg")


def test_heads_of_training_runs_are_measured_once_more_when_they_were_trained_again(tmp_path, capsys, still_machine):
    runs, path = tmp_path / "zoo", tmp_path / "heads.jsonl"
    write_head(runs / "one" / "medusa")
    assert small("heads", path, "--heads", runs, "--batch", 1) == 0
    assert "medusa" in capsys.readouterr().out
    before = path.read_text().splitlines()
    write_head(runs / "one" / "medusa", depth=1)
    assert small("heads", path, "--heads", runs, "--batch", 1) == 0
    after = path.read_text().splitlines()
    assert after[: len(before)] == before and len(after) == len(before) + 1, "the draft model is not measured again"
    assert capsys.readouterr().out.count("medusa") == 1, "the new one is shown alone"
    assert run("heads", "--report", "--output", path) == 0


def test_the_fastest_draft_length_is_the_best():
    found = sides(plain=decoded(9.0, 0, 0), a=decoded(5.0, 2, 0), b=decoded(3.0, 2, 1), control=decoded(9.0, 0, 0))
    assert best_depth(found, {"a": 1, "b": 2}) == 2


def test_draft_lengths_that_a_head_cannot_draft_are_not_chosen():
    found = sides(a=decoded(5.0, 2, 0, 0), b=decoded(3.0, 2, 1, 0), c=decoded(2.9, 2, 1, 0))
    assert best_depth(found, {"a": 1, "b": 2, "c": 3}) == 2, "the third drafts what the second does"


def test_prompts_whose_plain_output_loops_are_left_out(monkeypatch):
    target = load(pair().target, dtype="float32", device="cpu")
    every = prompts_that_do_not_loop(target, "prose", cell(), 4, 4)
    assert len(every[0]) == len(every[1]) == 4 and every[2] == 0
    seen = []

    def third_loops(tokens):
        seen.append(tokens)
        return tokens == seen[2] if len(seen) > 2 else False

    monkeypatch.setattr("benchmarks.head_cells.is_looping", third_loops)
    kept = prompts_that_do_not_loop(target, "prose", cell(), 3, 4)
    assert kept[0] == [every[0][at] for at in (0, 1, 3)] and kept[2] == 1
    assert [one.seed for one in kept[1]] == [0, 1, 3], "each has the seed under which it does not loop"
    seen.clear()
    with pytest.raises(ValueError, match="3 of 4 outputs do not loop, and 4 are needed"):
        prompts_that_do_not_loop(target, "prose", cell(), 4, 4)


def test_a_line_has_both_measurements_and_their_intervals():
    counts = {"steps": 4, "emitted": 8, "drafted": [4], "accepted": [4]}
    few = {"steps": 8, "emitted": 8, "drafted": [0], "accepted": [0]}
    seconds = {PLAIN: [[4.0], [4.0]], AUTO: [[4.0], [4.0]], BEST: [[2.0], [2.0]], CONTROL: [[4.0], [4.0]]}
    summaries = {PLAIN: [few], AUTO: [few], BEST: [counts], CONTROL: [few]}
    about = {"cell": {"drafter": "x", "hash": "", "temperature": 0.0, "batch_size": 1, "max_tokens": 8}}
    record = {**about, "bytes": 2_000_000, "depth": 3, "num_looping": 1, "void": False, "seconds": seconds}
    line = line_of(record | {"summaries": summaries})
    assert (line.tokens.value, line.speedup.value, line.auto_tokens.value, line.auto_speedup.value) == (2, 2, 1, 1)
    assert line.size == 2.0 and line.depth == 3 and line.cache is None
    assert line_of(record | {"summaries": summaries, "slot_bytes": 1500}).cache == 1.5
    assert line.auto_decoding is None, "it was not measured in earlier runs"
    reading = {PLAIN: [[1.0], [1.0]], AUTO: [[2.5], [2.5]], BEST: [[1.0], [1.0]], CONTROL: [[1.0], [1.0]]}
    assert line_of(record | {"summaries": summaries, "reading": reading}).auto_decoding.value == 3.0 / 1.5


def test_options_that_mean_nothing_are_refused(tmp_path):
    study = partial(HeadStudy, output=tmp_path / "raw.jsonl")
    with pytest.raises(ValueError, match="16 prompts make no parts of 6 for batches of 3"):
        study(batch=(3,)).check()
    with pytest.raises(ValueError, match="temperatures="):
        study(temperatures=(-1.0,)).check()
    with pytest.raises(ValueError, match="is a draft head; train some first"):
        heads_in(tmp_path)
    study().check()
