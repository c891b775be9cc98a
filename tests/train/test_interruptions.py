"""Runs that are stopped, diverge or fill the disk leave a usable checkpoint and a clear message."""

import signal

import pytest
import torch
from safetensors import SafetensorError

from paceline.train.loop import distributed
from paceline.train.loop.checkpoints import CheckpointError
from paceline.train.loop.stopping import Stopped, StopSignals
from paceline.train.loop.trainer import Diverged
from tests.train.trainers import Cut, assert_same, trainer, weights, without_speed


def assert_resumes(tmp_path):
    """The run in ``cut`` goes on to the weights and log of one without interruption."""
    for name in ("cut", "whole"):
        trainer(tmp_path / name).run()
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert without_speed(tmp_path / "cut") == without_speed(tmp_path / "whole")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_run_after_its_step_with_a_checkpoint(number, tmp_path):
    run = trainer(tmp_path / "cut")
    batches = run.batches

    class Signalled:
        rows = batches.rows

        def batch(self, step, rows):
            if step == 6:
                signal.raise_signal(number)
            return batches.batch(step, rows)

    run.batches = Signalled()
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=r"stopped after step 7 of 12, which is saved in .*; the same command resumes"):
        run.run()
    assert signal.getsignal(number) == before
    assert max((tmp_path / "cut" / "checkpoints").iterdir()).name == "00000007"
    assert_resumes(tmp_path)


@pytest.mark.usefixtures("interruptible")
def test_second_signal_ends_the_process_unless_repeats_are_ignored():
    with pytest.raises(KeyboardInterrupt), StopSignals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        signal.raise_signal(signal.SIGINT)
    with StopSignals(ignore_repeats=True) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.requested


def test_nan_loss_ends_the_run_and_names_step_and_rows(tmp_path):
    run = trainer(tmp_path, accumulate=2)
    forward = run.task.forward

    def broken(batch, randomness):
        result = forward(batch, randomness)
        spoilt = torch.zeros_like(result.rows)
        if randomness.step == 7 and randomness.first_row == 2:
            spoilt[1] = float("nan")
        return result._replace(loss=result.loss + spoilt.sum(), rows=result.rows + spoilt)

    run.task.forward = broken
    with pytest.raises(Diverged, match=r"step 8 gave a loss of nan in rows 3 of its batch of 4 .*00000005"):
        run.run()
    again = trainer(tmp_path)
    again.run()
    assert again.step == 12


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error")])
def test_full_disk_leaves_the_previous_checkpoint(error, tmp_path, monkeypatch):
    real = distributed.save_file

    def failing(tensors, path, metadata=None):
        if "00000010" in str(path):
            path.write_bytes(b"half")
            raise error
        real(tensors, path, metadata)

    monkeypatch.setattr(distributed, "save_file", failing)
    with pytest.raises(CheckpointError, match=r"of step 10 was not written .*00000005, of step 5, is complete"):
        trainer(tmp_path / "cut").run()
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()] == ["00000005"]
    assert_resumes(tmp_path)


def test_crash_while_writing_leaves_the_previous_checkpoint_usable(tmp_path, monkeypatch):
    real = distributed.save_file

    def dying(tensors, path, metadata=None):
        real(tensors, path, metadata)
        if "00000010" in str(path):
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])  # what a killed process leaves behind
            raise Cut

    monkeypatch.setattr(distributed, "save_file", dying)
    with pytest.raises(Cut):
        trainer(tmp_path / "cut").run()
    monkeypatch.undo()
    assert (tmp_path / "cut" / "checkpoints" / "00000010.part").exists(), "an incomplete checkpoint"
    assert_resumes(tmp_path)
    assert not list((tmp_path / "cut" / "checkpoints").glob("*.part"))
