"""Verifying from an exit's hidden states is timed beside verifying anew, and both write the same."""

import pytest

from paceline.drafters.early_exit import EarlyExitDrafter
from tests.benchmarks.command import measured, records_of, small


def test_every_cell_is_measured_once_and_shown(tmp_path, capsys, still_machine):
    records, out = measured("resume", tmp_path / "resume.jsonl", capsys)
    cells = [line for line in records if line["kind"] == "resume"]
    assert [(c["cell"]["num_rows"], c["cell"]["exit_layer"]) for c in cells] == [(1, 1), (1, 2), (3, 1), (3, 2)]
    assert all(seconds == [1] * 3 for cell in cells for seconds in cell["seconds"].values())
    assert "44%" in out, "two of three nodes skip two of three layers"
    assert (tmp_path / "resume.svg").read_text().startswith("<svg")


def test_two_ways_that_differ_are_a_fault_and_no_figure(tmp_path, monkeypatch, still_machine):
    """As when the hidden states that verification goes on from are not the nodes' own."""
    right = EarlyExitDrafter._resumable

    def wrong(self, grown, leading):
        tree = right(self, grown, leading)
        tree.resume.hidden.mul_(-1)
        return tree

    monkeypatch.setattr(EarlyExitDrafter, "_resumable", wrong)
    with pytest.raises(RuntimeError, match="wrote different tokens"):
        small("resume", tmp_path / "resume.jsonl")
    assert not [line for line in records_of(tmp_path / "resume.jsonl") if line["kind"] == "resume"]
