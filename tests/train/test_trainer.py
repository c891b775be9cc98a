"""The training loop: bitwise resume, checkpoints, logs."""

import itertools

import pytest
import torch
from pydantic import ValidationError

from demo.recipes.crops import Crops
from paceline.draft_heads import DRAFT_HEADS
from paceline.train.config import HeadSection
from paceline.train.loop.config import ScheduleSection
from paceline.train.loop.schedule import learning_rate_factor
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.setup import build_head
from paceline.train.tasks import DraftHeadTask, TrainedHead
from paceline.train.tasks.losses import DistillationLoss
from tests import tiny
from tests.train.synthetic import Masked, corpus
from tests.train.trainers import assert_same, lines, options, run_until, trainer, weights, without_speed

SKIP = {"dropout": 0.3, "curriculum": "gradual"}
OPTIONS = {
    "plain": {},
    "everything": {"dropout": 0.2, "accumulate": 2, "ema": 0.8},
    "layer skip": {"layer_skip": SKIP, "accumulate": 2},
    "Muon": {"optimiser": {"kind": "muon"}},
}


@pytest.mark.one_in(11)
@pytest.mark.parametrize("cut", [3, 5, 8, 11])
@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
def test_resumed_run_matches_uninterrupted_run_bitwise(cut, fields, tmp_path):
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


def test_weights_depend_on_dropout_and_seed(tmp_path):
    ends = []
    for name, fields in (("a", {}), ("b", {"dropout": 0.2}), ("c", {"dropout": 0.2, "seed": 1})):
        trainer(tmp_path / name, **fields).run()
        ends.append(weights(tmp_path / name)["model.model.embed.weight"])
    assert not torch.equal(ends[0], ends[1]) and not torch.equal(ends[1], ends[2])


def test_finished_run_is_not_trained_further(tmp_path):
    best = trainer(tmp_path).run()
    before = weights(tmp_path)
    again = trainer(tmp_path)
    again.batches = None
    assert again.run() == best
    assert_same(weights(tmp_path), before)


def test_loss_falls_on_a_learnable_corpus(tmp_path):
    run = trainer(tmp_path, steps=80)
    run.run()
    losses = [line["loss"] for line in lines(tmp_path) if "loss" in line]
    assert losses[0] > 3.5 and losses[-1] < 0.7 * losses[0]


def test_every_line_of_the_log_parses_and_has_its_step(tmp_path):
    run = trainer(tmp_path)
    validate = run.validate
    run.validate = lambda task: Score(value=validate(task).value, metrics={"validation.loss": 1.0})
    run.run()
    losses = [line for line in lines(tmp_path) if "loss" in line]
    validations = [line for line in lines(tmp_path) if "validation.loss" in line]
    assert [line["step"] for line in losses] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in validations] == [4, 8, 12]
    assert all(line["tokens_per_second"] > 0 and 0 < line["loss"] < 10 for line in losses)
    assert all(line["loss.text"] == pytest.approx(line["loss"], rel=1e-5) for line in losses)


def test_best_weights_are_loaded_at_the_end(tmp_path):
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


def test_average_of_weights_is_validated_and_saved(tmp_path):
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


def test_head_is_validated_and_saved_in_its_targets_dtype(tmp_path, monkeypatch):
    target = tiny.native(tiny.llama(1, dtype=torch.bfloat16))
    section = HeadSection(kind="last")
    monkeypatch.setitem(DRAFT_HEADS.entries, "last", "tests.train.heads:LastHead")
    head = build_head(section, target, seed=0, index=0)
    assert head.table.weight.dtype == torch.float32
    task = DraftHeadTask(
        target=target, heads=[TrainedHead(name="last", head=head)], loss=DistillationLoss(terms={"kl": 1.0})
    )
    seen = []

    def validate(served):
        seen.append(served.trained_heads[0].head.table.weight.detach().clone())
        return Score(value=float(len(seen)))

    crops = Crops([(corpus(0), 1.0)], rows=4, length=16, seed=1)
    run = Trainer(task=task, batches=crops, config=options(), folder=tmp_path, validate=validate)
    run.run()
    assert all(weight.dtype == torch.bfloat16 for weight in seen)
    assert torch.equal(seen[-1], head.table.weight.bfloat16()) and not torch.equal(seen[-1].float(), head.table.weight)
    assert torch.equal(run.finished().trained_heads[0].head.table.weight, seen[-1])
    assert run.finished().target is target


def test_last_step_is_always_validated_and_saved(tmp_path):
    trainer(tmp_path, steps=7, validate_every=100, checkpoint_every=100).run()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000007"]
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["00000007"]


def test_only_the_last_checkpoints_remain(tmp_path):
    trainer(tmp_path, checkpoint_every=2, keep=3).run()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000008", "00000010", "00000012"]


def test_validation_without_a_number_is_reported(tmp_path):
    run = trainer(tmp_path)
    run.validate = lambda task: Score(value=float("nan"))
    with pytest.raises(ValueError, match="no validation gave a number: the run diverged"):
        run.run()


def test_the_last_weights_are_written_where_every_output_loops(tmp_path, caplog):
    run = trainer(tmp_path, steps=7)
    run.validate = lambda task: Score(value=None, metrics={"sampled": 2.0})
    assert run.run().metrics == {"sampled": 2.0}
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["00000007"]
    assert "every greedy output loops: the weights of the last step are written" in caplog.text
    again = trainer(tmp_path, steps=8)
    again.validate = run.validate
    again.run()
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["00000008"], "the last of the longer run"
    longer = trainer(tmp_path, steps=9)
    longer.validate = lambda task: Score(value=1.5)
    assert longer.run().value == 1.5, "any measured acceptance is more than none"


@pytest.mark.parametrize("layer_skip", [None, SKIP], ids=["plain", "layer skip"])
def test_accumulated_micro_batches_match_the_whole_batch(layer_skip, tmp_path):
    ends = []
    for num_parts in (1, 2, 4):
        run = trainer(tmp_path / str(num_parts), layer_skip=layer_skip, accumulate=num_parts, precision="fp32")
        run.batches = Masked(run.batches)
        run.run()
        ends.append(weights(tmp_path / str(num_parts)))
    for other in ends[1:]:
        for name, tensor in ends[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5, msg=name)


def test_indivisible_batch_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batches of 4 rows cannot be shared by 1 processes in 3 parts"):
        trainer(tmp_path, accumulate=3)


def test_learning_rate_warms_up_and_decays_to_the_floor():
    rates = [learning_rate_factor(ScheduleSection(steps=100, warmup=10), step) for step in range(100)]
    assert rates[0] < rates[5] < rates[9] and max(rates) <= 1
    assert rates[9] > 0.95
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert 0.1 <= rates[-1] < 0.11
    assert learning_rate_factor(ScheduleSection(steps=10, warmup=0, floor=1.0), 0) == 1.0


@pytest.mark.parametrize(
    "fields", [{"steps": 0}, {"rate": 0.0}, {"rate": -1.0}, {"unknown": 1}, {"accumulate": 0}, {"ema": 1.0}]
)
def test_options_out_of_range_are_refused(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        options(**fields)
