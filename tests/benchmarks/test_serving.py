"""What a server adds to a token is timed beside the engine alone, and both write the same."""

from http.client import HTTPConnection

import pytest

from benchmarks import serving
from benchmarks.study import Timing
from paceline.bench.raw import RawFile
from tests.benchmarks.command import measured, run
from tests.serve.listening import listening
from tests.serve.served import engine

CELL = serving.Cell(what=serving.SERVED, drafter=serving.MODEL, num_tokens=12)


def test_both_sides_are_timed_in_turn_and_what_the_server_adds_is_shown(tmp_path):
    raw = RawFile(tmp_path / "serving.jsonl")
    with listening() as server:
        sides = serving.Sides(CELL, HTTPConnection("127.0.0.1", server.port), engine())
        serving.time_cells(
            [CELL],
            lambda _: sides.turns,
            raw=raw,
            identify=serving.run_cells("serving", "run"),
            timing=Timing(repeats=2, seconds=0.0),
        )
        sides.connection.close()
    (record,) = raw.records
    assert {name: len(seconds) for name, seconds in record["seconds"].items()} == {
        serving.OFFLINE: 2,
        serving.SERVED: 2,
        serving.AGAIN: 2,
    }
    record["seconds"] = {serving.OFFLINE: [1.2, 1.2], serving.SERVED: [1.8, 1.8], serving.AGAIN: [1.2, 1.2]}
    found = serving.overhead(record)
    assert (found.value, found.low, found.high) == pytest.approx((50, 50, 50))  # ms per token
    # Whether the machine was quiet just now decides nothing here; only the pairs decide what is void.
    shown = [serving.TOKENS[4].text({**record, "void": void}) for void in (False, True)]
    assert shown[0].startswith("50.000 [") and shown[1] == "void"
    moved = {serving.OFFLINE: [1.0, 2.0, 3.0], serving.AGAIN: [1.1, 2.2, 1.0]}
    assert 1 / serving.control({"seconds": moved}) == pytest.approx(1.1)  # the median of the pairs, not of the times


def test_texts_that_differ_are_a_fault_and_no_figure():
    with listening() as server:
        sides = serving.Sides(CELL, HTTPConnection("127.0.0.1", server.port), engine())
        sides.offline()

        sides.served()
        assert sides.found({})
        sides.texts.add("another")
        with pytest.raises(RuntimeError, match="wrote different texts"):
            sides.found({})
        sides.connection.close()


def test_a_server_that_does_not_start_is_reported(tmp_path):
    words = serving.words_of([tmp_path / "none", tmp_path / "none"], serving.NONE, "float32")
    with pytest.raises(RuntimeError, match="no such model directory"):
        serving.start(words, [])


@pytest.mark.slow
def test_the_whole_study(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "benchmarks.study.is_void", lambda ratios: False
    )  # on a busy machine void cells are measured anew
    records, out = measured("serving", tmp_path / "serving.jsonl", capsys)
    assert [one["cell"]["what"] for one in records if one["kind"] == "serving"] == ["start", "served", "served"]
    assert "until it answers" in out and "overhead ms" in out
    assert run("serving", "--report", "--output", tmp_path / "serving.jsonl") == 0
