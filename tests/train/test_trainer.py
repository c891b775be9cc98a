"""The training loop: resumable to the bit, atomic on disk, logged."""

import itertools
import json
import signal

import pytest
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.heads import HEADS
from paceline.train import distributed
from paceline.train.checkpoints import CheckpointError
from paceline.train.config import HeadSection, LoopConfig, ScheduleSection
from paceline.train.data import Crops
from paceline.train.losses import Comparison
from paceline.train.schedule import factor
from paceline.train.setup import build_head
from paceline.train.stopping import Stopped, Stopping
from paceline.train.tasks import Heads, NextToken, Trained
from paceline.train.trainer import Diverged, Score, Trainer
from paceline.train.validation import text_loss
from tests import tiny
from tests.train.runs import Masked, corpus


def options(steps=12, *, rate=1e-2, warmup=3, dropout=0.0, checkpoint_every=5, keep=2, **fields):
    return LoopConfig.model_validate(
        {
            "schedule": {"steps": steps, "warmup": warmup},
            "optimiser": {"learning_rate": rate, "dropout": dropout},
            "checkpoints": {"every": checkpoint_every, "keep": keep},
            "log_every": 2,
            "validate_every": 4,
            **fields,
        }
    )


def trainer(folder, **fields):
    """A tiny run; everything about it is a function of its arguments."""
    config = options(**fields)
    model = tiny.native(tiny.llama(1, dtype=torch.float32, num_hidden_layers=1, initializer_range=0.05))
    model.dropout = config.optimiser.dropout
    crops = Crops([(corpus(0), 1.0)], rows=4, length=16, seed=1)
    held_out = Crops([(corpus(1), 1.0)], rows=4, length=16, seed=2)

    def validate(task):
        return Score(value=-text_loss(task.model, held_out))

    task = NextToken(model=model)
    return Trainer(task=task, batches=crops, config=config, folder=folder, validate=validate)


class Cut(Exception):
    """The power fails."""


def run_until(run, step):
    """Train, and fail just before the update of ``step``."""
    batches = run.batches

    class Failing:
        rows = batches.rows

        def batch(self, number, rows):
            if number == step:
                raise Cut
            return batches.batch(number, rows)

    run.batches = Failing()
    with pytest.raises(Cut):
        run.run()


def weights(folder):
    last = max((folder / "checkpoints").glob("*"))
    return load_file(last / "state.safetensors")


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def without_speed(folder):
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines(folder)]


@pytest.mark.parametrize("cut", [3, 5, 8, 11])
@pytest.mark.parametrize("fields", [{}, {"dropout": 0.2, "accumulate": 2, "ema": 0.8}], ids=["plain", "everything"])
def test_a_run_cut_anywhere_and_resumed_ends_as_if_uncut(cut, fields, tmp_path):
    whole = trainer(tmp_path / "whole", **fields)
    best = whole.run()
    run_until(trainer(tmp_path / "cut", **fields), cut)
    assert (tmp_path / "cut" / "checkpoints").exists() == (cut >= 5)
    torch.manual_seed(cut)
    resumed = trainer(tmp_path / "cut", **fields)
    assert resumed.run() == best
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert_same(resumed.finished().state_dict(), whole.finished().state_dict())
    assert without_speed(tmp_path / "cut") == without_speed(tmp_path / "whole"), "repeated steps are logged once"


def test_dropout_changes_the_run_and_so_does_its_seed(tmp_path):
    ends = []
    for name, fields in (("a", {}), ("b", {"dropout": 0.2}), ("c", {"dropout": 0.2, "seed": 1})):
        trainer(tmp_path / name, **fields).run()
        ends.append(weights(tmp_path / name)["model.model.embed.weight"])
    assert not torch.equal(ends[0], ends[1]) and not torch.equal(ends[1], ends[2])


def test_a_finished_run_is_not_trained_further(tmp_path):
    best = trainer(tmp_path).run()
    before = weights(tmp_path)
    again = trainer(tmp_path)
    again.batches = None
    assert again.run() == best
    assert_same(weights(tmp_path), before)


def test_loss_goes_down_on_a_corpus_that_can_be_learned(tmp_path):
    run = trainer(tmp_path, steps=80)
    run.run()
    losses = [line["loss"] for line in lines(tmp_path) if "loss" in line]
    assert losses[0] > 3.5 and losses[-1] < 0.7 * losses[0]


def test_every_line_of_the_log_parses_and_has_its_step(tmp_path):
    run = trainer(tmp_path)
    validate = run.validate
    run.validate = lambda task: Score(value=validate(task).value, measures={"validation.loss": 1.0})
    run.run()
    losses = [line for line in lines(tmp_path) if "loss" in line]
    validations = [line for line in lines(tmp_path) if "validation.loss" in line]
    assert [line["step"] for line in losses] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in validations] == [4, 8, 12]
    assert all(line["tokens_per_second"] > 0 and 0 < line["loss"] < 10 for line in losses)
    assert all(line["loss.text"] == pytest.approx(line["loss"], rel=1e-5) for line in losses)


def test_the_best_weights_are_the_ones_loaded_at_the_end(tmp_path):
    run = trainer(tmp_path)
    values, states = iter([1.0, 3.0, 2.0]), []

    def validate(task):
        assert not task.training and not task.model.training
        states.append({name: tensor.clone() for name, tensor in task.state_dict().items()})
        return Score(value=next(values))

    run.validate = validate
    assert run.run().value == 3.0
    assert_same(run.finished().state_dict(), states[1])
    assert not torch.equal(states[1]["model.embed.weight"], states[2]["model.embed.weight"])
    assert not run.task.training
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["00000008"]


def test_the_mean_of_weights_is_what_is_validated_and_kept(tmp_path):
    run = trainer(tmp_path, ema=0.5, validate_every=1, steps=3, precision="fp32")
    means, seen = [], []
    mean = {name: parameter.detach().clone() for name, parameter in run.parameters.items()}

    def validate(task):
        for name, parameter in run.parameters.items():
            mean[name] = 0.5 * mean[name] + 0.5 * parameter.detach()
        means.append(dict(mean))
        seen.append({name: parameter.detach().clone() for name, parameter in task.trained().items()})
        return Score(value=float(len(seen)))

    run.validate = validate
    run.run()
    for wanted, found in zip(means, seen, strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(dict(run.finished().trained()), means[-1])
    assert not torch.equal(run.parameters["model.embed.weight"], means[-1]["model.embed.weight"])


def test_a_head_is_validated_and_kept_in_its_targets_precision(tmp_path, monkeypatch):
    target = tiny.native(tiny.llama(1, dtype=torch.bfloat16))
    section = HeadSection(kind="last")
    monkeypatch.setitem(HEADS.entries, "last", "tests.train.heads:LastHead")
    head = build_head(section, target, seed=0, place=0)
    assert head.table.weight.dtype == torch.float32
    task = Heads(target=target, heads=[Trained(name="last", head=head)], comparison=Comparison(terms={"kl": 1.0}))
    seen = []

    def validate(served):
        seen.append(served.parts[0].head.table.weight.detach().clone())
        return Score(value=float(len(seen)))

    crops = Crops([(corpus(0), 1.0)], rows=4, length=16, seed=1)
    run = Trainer(task=task, batches=crops, config=options(), folder=tmp_path, validate=validate)
    run.run()
    assert all(weight.dtype == torch.bfloat16 for weight in seen)
    assert torch.equal(seen[-1], head.table.weight.bfloat16()) and not torch.equal(seen[-1].float(), head.table.weight)
    assert torch.equal(run.finished().parts[0].head.table.weight, seen[-1])
    assert run.finished().target is target


def test_the_last_step_is_validated_and_saved_whatever_the_rhythm(tmp_path):
    trainer(tmp_path, steps=7, validate_every=100, checkpoint_every=100).run()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000007"]
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["00000007"]


def test_the_last_checkpoints_are_kept(tmp_path):
    trainer(tmp_path, checkpoint_every=2, keep=3).run()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000008", "00000010", "00000012"]


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_validation_that_is_never_a_number_is_reported(value, tmp_path):
    run = trainer(tmp_path)
    run.validate = lambda task: Score(value=value)
    with pytest.raises(ValueError, match="no validation measured anything: the run diverged or every text loops"):
        run.run()


def test_accumulated_parts_learn_as_the_whole_batch(tmp_path):
    ends = []
    for parts in (1, 2, 4):
        run = trainer(tmp_path / str(parts), accumulate=parts, precision="fp32")
        run.batches = Masked(run.batches)
        run.run()
        ends.append(weights(tmp_path / str(parts)))
    for other in ends[1:]:
        for name, tensor in ends[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_with_all_saved(number, tmp_path):
    trainer(tmp_path / "whole").run()
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
    with pytest.raises(Stopped, match=r"stopped after step 7 of 12, which is saved in .*; the same command goes on"):
        run.run()
    assert signal.getsignal(number) == before
    assert max((tmp_path / "cut" / "checkpoints").iterdir()).name == "00000007"
    trainer(tmp_path / "cut").run()
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert without_speed(tmp_path / "cut") == without_speed(tmp_path / "whole")


def test_the_second_signal_ends_the_process_unless_many_share_the_run():
    with pytest.raises(KeyboardInterrupt), Stopping() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        signal.raise_signal(signal.SIGINT)
    with Stopping(patient=True) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.asked


def test_a_loss_that_is_no_number_ends_the_run_and_names_step_and_rows(tmp_path):
    run = trainer(tmp_path, accumulate=2)
    forward = run.task.forward

    def broken(batch, draws):
        result = forward(batch, draws)
        spoilt = torch.zeros_like(result.rows)
        if draws.step == 7 and draws.first_row == 2:
            spoilt[1] = float("nan")
        return result._replace(loss=result.loss + spoilt.sum(), rows=result.rows + spoilt)

    run.task.forward = broken
    with pytest.raises(Diverged, match=r"step 8 gave a loss of nan in rows 3 of its batch of 4 .*00000005"):
        run.run()
    again = trainer(tmp_path)
    again.run()
    trainer(tmp_path / "whole").run()
    assert again.step == 12


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error")])
def test_a_full_disk_keeps_the_checkpoint_before(error, tmp_path, monkeypatch):
    trainer(tmp_path / "whole").run()
    real = distributed.save_file

    def failing(tensors, path, metadata=None):
        if "00000010" in str(path):
            path.write_bytes(b"half")
            raise error
        real(tensors, path, metadata)

    monkeypatch.setattr(distributed, "save_file", failing)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 10 was not written .*00000005, of step 5, is whole"):
        trainer(tmp_path / "cut").run()
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()] == ["00000005"]
    trainer(tmp_path / "cut").run()
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_crash_while_writing_leaves_the_former_checkpoint_usable(tmp_path, monkeypatch):
    trainer(tmp_path / "whole").run()
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
    assert (tmp_path / "cut" / "checkpoints" / "00000010.part").exists(), "half of it lies aside"
    trainer(tmp_path / "cut").run()
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert not list((tmp_path / "cut" / "checkpoints").glob("*.part"))


def test_rows_that_cannot_be_shared_are_refused(tmp_path):
    with pytest.raises(ValueError, match="batches of 4 rows cannot be shared by 1 processes in 3 parts"):
        trainer(tmp_path, accumulate=3)


def test_the_rate_warms_up_and_falls_to_a_tenth():
    rates = [factor(ScheduleSection(steps=100, warmup=10), step) for step in range(100)]
    assert rates[0] < rates[5] < rates[9] and max(rates) <= 1
    assert rates[9] > 0.95
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert 0.1 <= rates[-1] < 0.11
    assert factor(ScheduleSection(steps=10, warmup=0, floor=1.0), 0) == 1.0


@pytest.mark.parametrize(
    "fields", [{"steps": 0}, {"rate": 0.0}, {"rate": -1.0}, {"unknown": 1}, {"accumulate": 0}, {"ema": 1.0}]
)
def test_options_out_of_range_are_refused(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        options(**fields)
