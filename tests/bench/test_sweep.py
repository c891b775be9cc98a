import json

import pytest

from paceline.bench.missing_peers import failures_of
from paceline.bench.raw import RawFile, fingerprint, hash_model, read_records
from paceline.bench.runner import Configuration, DecodingFailed
from paceline.bench.sweep import Axes, Protocols, Ways, run_sweep
from tests.bench.scripted import TOKENS, Bench

AXES = Axes(drafters=["ngram", "model"], num_draft_tokens=[1, 2], batch_sizes=[1, 4], temperatures=[0], max_tokens=[8])
ONE = Axes(drafters=["ngram"], num_draft_tokens=[2], batch_sizes=[1], temperatures=[0], max_tokens=[4]).cells()


def sweep(path, bench, cells=ONE, conditions=None, protocol=None):
    raw = RawFile(path)
    run_sweep(
        cells,
        workbench=bench,
        raw=raw,
        conditions=conditions or {"machine": "this"},
        notes={"date": "today"},
        protocol=protocol or Protocols(repeats=2),
        clock=bench.clock,
    )
    return [record for record in raw.records if record["kind"] == "cell"]


def test_cells_are_all_combinations_that_there_are():
    assert len(AXES.cells()) == 8 == len(set(AXES.cells()))
    peers = Axes(
        drafters=[],
        num_draft_tokens=[1, 2],
        batch_sizes=[1, 4],
        temperatures=[0],
        max_tokens=[8],
        peers=[
            Ways(plain="still", drafting=("alone",), batches=False),
            Ways(plain="quiet", drafting=("both",), batches=True),
        ],
    )
    found = [(cell.drafter, cell.num_draft_tokens, cell.batch_size) for cell in peers.cells()]
    assert [cell for cell in found if cell[0] in ("still", "alone")] == [
        ("still", 0, 1),
        ("alone", 1, 1),
        ("alone", 2, 1),
        ("still", 0, 4),
    ]
    assert [cell for cell in found if cell[0] in ("quiet", "both")] == [
        (name, k, batch) for batch in (1, 4) for name, k in (("quiet", 0), ("both", 1), ("both", 2))
    ]


def test_a_side_that_fails_is_written_down_and_the_others_go_on(tmp_path):
    """The third cell's candidate dies when it runs, once; the next sweep times it."""

    class Dying(Bench):
        def candidate(self, name, cell):
            made = super().candidate(name, cell)
            if len(self.made) != 3:
                return made

            def die():
                raise DecodingFailed("it died")

            return Configuration(name=name, parts=[die])

    path, cells = tmp_path / "raw.jsonl", AXES.cells()
    assert len(sweep(path, Dying(), cells)) == 7
    failure = next(record for record in read_records(path) if record["kind"] == "failure")
    assert failure["task"] == cells[2].identity() and failure["message"] == "it died"
    assert [line.task for line in failures_of(read_records(path))] == ["model k=1, batch 1, temperature 0, 8 tokens"]
    assert len(sweep(path, Bench(), cells)) == 8
    assert failures_of(read_records(path)) == []


def test_every_cell_is_kept_with_its_raw_figures(tmp_path):
    cells = sweep(tmp_path / "raw.jsonl", Bench(), AXES.cells())
    assert len(cells) == 8
    assert cells[0]["seconds"] == {"plain": [2, 2], "candidate": [1, 1], "control": [2, 2]}
    assert cells[0]["steps"] == {"plain": 8, "candidate": 5} and cells[0]["num_tokens"] == 8
    assert cells[0]["texts"][1]["counts"]["accepted"] == [1, 0] and not cells[0]["void"]
    assert [record["kind"] for record in read_records(tmp_path / "raw.jsonl")] == ["run"] + ["cell"] * 8


def test_a_rerun_measures_only_what_is_missing(tmp_path):
    path, again = tmp_path / "raw.jsonl", Bench()
    sweep(path, Bench(), AXES.cells()[:5])
    assert len(sweep(path, again, AXES.cells())) == 8
    assert set(again.made) == set(AXES.cells()[5:])
    assert path.read_text().count('"kind": "run"') == 1


def test_other_conditions_are_another_run(tmp_path):
    again = Bench()
    sweep(tmp_path / "raw.jsonl", Bench())
    sweep(tmp_path / "raw.jsonl", again, conditions={"machine": "another"})
    sweep(tmp_path / "raw.jsonl", again, protocol=Protocols(repeats=3))
    assert len(again.made) == 2


def test_void_runs_are_kept_and_repeated_until_the_control_holds(tmp_path):
    cells = sweep(tmp_path / "raw.jsonl", Bench(controls=[1.1, 0.9]))
    assert [(cell["attempt"], cell["void"]) for cell in cells] == [(0, True), (1, True), (2, False)]


def test_a_machine_that_never_rests_is_given_up(tmp_path):
    path, bench = tmp_path / "raw.jsonl", Bench(controls=[2.0] * 9)
    assert [cell["void"] for cell in sweep(path, bench)] == [True] * 3
    assert len(sweep(path, bench)) == 3
    assert len(sweep(path, bench, protocol=Protocols(repeats=2, attempts=5))) == 5


def test_a_torn_line_is_measured_again(tmp_path):
    path, again = tmp_path / "raw.jsonl", Bench()
    sweep(path, Bench())
    path.write_bytes(path.read_bytes()[:-20])
    assert len(sweep(path, again)) == len(again.made) == 1
    assert [record["kind"] for record in read_records(path)] == ["run", "cell"]


def test_unequal_token_counts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="token counts differ"):
        sweep(tmp_path / "raw.jsonl", Bench(tokens=((1, 2), (3,))))


def test_loops_and_differences_are_reported_text_by_text(tmp_path):
    (cell,) = sweep(tmp_path / "raw.jsonl", Bench(tokens=((1, 2, 9, 4), TOKENS[1])))
    assert [text["first_difference"] for text in cell["texts"]] == [2, None]
    assert [text["looping"] for text in cell["texts"]] == [False, False]
    assert cell["texts"][0]["distinct"] == 1


@pytest.mark.parametrize("text", ['{"a": 1}\n', "[]\n"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "raw.jsonl").write_text(text)
    with pytest.raises(ValueError, match="line 1: no line of a benchmark"):
        RawFile(tmp_path / "raw.jsonl")


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="no such directory"):
        RawFile(tmp_path / "none" / "raw.jsonl")


@pytest.mark.parametrize("counts", [{"repeats": 0}, {"attempts": 0}])
def test_counts_below_one_are_refused(counts):
    with pytest.raises(ValueError, match="=0: give at least 1"):
        Protocols(**counts)


def test_fingerprints_follow_content(tmp_path):
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 2, "b": 2})
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = hash_model(tmp_path)
    (tmp_path / "notes.txt").write_text("of no consequence")
    assert hash_model(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert hash_model(tmp_path) != first
