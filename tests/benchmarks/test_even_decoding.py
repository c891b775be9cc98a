"""Sides that are decoded evenly, and the study of the controller, whose sides are draft lengths."""

from functools import partial

import pytest

from benchmarks import controller
from benchmarks.controller import AUTO
from benchmarks.even_decoding import CONTROL, PLAIN, decode_sides
from benchmarks.study import Timing
from paceline.api import Engine, SamplingParams, load
from tests.api.checkpoints import pair
from tests.benchmarks.command import measured

PROMPTS = ([5, 9, 2], [3, 1, 4, 1], [8] * 6)


def decoded(**models):
    """Three prompts in parts of two and one, and the sides in the order in which their engines were made."""
    paths = {PLAIN: pair().target, "ngram": pair().target, CONTROL: pair().target} | models
    made = []

    def make(name):
        made.append(name)
        model = load(paths[name], dtype="float32", device="cpu")
        return Engine(model, drafter="ngram" if name == "ngram" else None, batch_size=2, max_length=40)

    found = decode_sides(
        {name: partial(make, name) for name in paths},
        PROMPTS,
        [SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)] * 3,
        what="three prompts",
        batch_size=2,
        timing=Timing(repeats=2),
    )
    return found, made


def test_every_side_decodes_every_part_after_a_warm_up(still_machine):
    found, made = decoded()
    for repeats in found.decoded.values():
        assert [[list(map(len, part.tokens)) for part in parts] for parts in repeats] == [[[9, 9], [9]]] * 2, (
            "the warm-up is left out"
        )
    timed = {name: [[part.seconds for part in parts] for parts in repeats] for name, repeats in found.decoded.items()}
    assert found.seconds == timed
    assert found.seconds[PLAIN] == found.seconds[CONTROL] and not found.void
    sides = [PLAIN, "ngram", CONTROL]
    assert made == [*reversed(sides), *reversed(sides), *sides, *sides, *reversed(sides), *reversed(sides)]


def test_other_tokens_are_a_fault_and_no_figure(still_machine):
    with pytest.raises(RuntimeError, match=r"^three prompts: ngram wrote other tokens"):
        decoded(ngram=pair().draft)


def test_the_controller_is_decoded_beside_fixed_lengths(tmp_path, capsys, still_machine, monkeypatch):
    monkeypatch.setattr(controller, "LONGEST_PROMPT", 500)  # of the 512 tokens that the pair reads
    records, out = measured("controller", tmp_path / "controller.jsonl", capsys)
    one, two = [line for line in records if line["kind"] == "controller"]
    for found, parts in ((one, 2), (two, 1)):
        assert list(found["seconds"]) == [PLAIN, "k=2", AUTO, CONTROL]
        assert [list(map(len, found["seconds"][name])) for name in found["seconds"]] == [[parts, parts]] * 4
        assert found["seconds"][PLAIN] == found["seconds"][CONTROL] and not found["void"]
        assert found["steps"]["k=2"] < found["steps"][PLAIN] == found["steps"][CONTROL] == 8 * 2 // parts
    assert "auto over best fixed" in out and (tmp_path / "controller.svg").read_text().startswith("<svg")


def test_the_time_of_every_output_length_is_read_on_the_way(tmp_path, capsys, still_machine):
    records, out = measured("lengths", tmp_path / "lengths.jsonl", capsys)
    greedy, sampled = [line for line in records if line["kind"] == "lengths"]
    for found in (greedy, sampled):
        assert list(found["seconds"]) == [PLAIN, "1", "2", CONTROL] and found["lengths"] == [4, 9]
        for parts in found["seconds"].values():
            assert len(parts) == 2 and all(first < last for first, last in parts), "two prompts"
    assert (
        "greedy, " in out
        and "of plain decoding's speed" in " ".join(out.split())
        and "top_p 0.95" in out
        and "k = 2: " in out
    )
    assert (tmp_path / "lengths.svg").read_text().startswith("<svg")
