"""The training loop: resumable to the bit, atomic on disk, logged."""

import itertools
import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from paceline.train import trainer as training
from paceline.train.data import Crops
from paceline.train.objectives import next_token
from paceline.train.trainer import TrainConfig, Trainer, read_metadata, write_atomically
from tests import tiny


def corpus(seed, count=2000):
    """Tokens with something to learn: each is a fixed function of the one before, mostly."""
    generator = np.random.default_rng(seed)
    tokens = [1]
    while len(tokens) < count:
        surprise = generator.random() < 0.1
        tokens.append(int(generator.integers(tiny.VOCAB)) if surprise else (tokens[-1] * 7 + 3) % tiny.VOCAB)
    return np.asarray(tokens, dtype=np.uint16)


def trainer(folder, *, steps=12, **options):
    """A tiny run; everything about it is a function of its arguments."""
    model = tiny.native(tiny.llama(1, dtype=torch.float32, num_hidden_layers=1, initializer_range=0.05))
    crops = Crops([(corpus(0), 1.0)], rows=4, length=16, seed=1)
    held_out = Crops([(corpus(1), 1.0)], rows=4, length=16, seed=2)
    fields = {"warmup": 3, "log_every": 2, "validate_every": 4, "checkpoint_every": 5} | options
    config = TrainConfig(steps=steps, learning_rate=1e-2, **fields)

    def validate(model):
        return float(next_token(model, held_out.batch(0, range(4)).tokens))

    return Trainer(model.requires_grad_(True), next_token, crops, config, folder=folder, validate=validate)


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
    return load_file(folder / "checkpoint.safetensors")


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("cut", [3, 5, 8, 11])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_run_cut_anywhere_and_resumed_ends_as_if_uncut(cut, dropout, tmp_path):
    whole = trainer(tmp_path / "whole", dropout=dropout)
    best = whole.run()
    run_until(trainer(tmp_path / "cut", dropout=dropout), cut)
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists() == (cut >= 5)
    torch.manual_seed(cut)
    resumed = trainer(tmp_path / "cut", dropout=dropout)
    assert resumed.run() == best
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert_same(resumed.model.state_dict(), whole.model.state_dict())


def test_dropout_changes_the_run_and_so_does_its_seed(tmp_path):
    ends = []
    for name, options in (("a", {}), ("b", {"dropout": 0.2}), ("c", {"dropout": 0.2, "seed": 1})):
        trainer(tmp_path / name, **options).run()
        ends.append(weights(tmp_path / name)["model.embed.weight"])
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
    first = next_token(run.model, run.batches.batch(0, range(4)).tokens).item()
    run.run()
    last = next_token(run.model, run.batches.batch(0, range(4)).tokens).item()
    assert first > 3.5 and last < 0.7 * first


def test_every_line_of_the_log_parses_and_has_its_step(tmp_path):
    trainer(tmp_path).run()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    validations = [line for line in lines if "validation" in line]
    assert [line["step"] for line in losses] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in validations] == [4, 8, 12]
    assert all(line["tokens_per_second"] > 0 and 0 < line["loss"] < 10 for line in losses)


def test_the_best_weights_are_the_ones_loaded_at_the_end(tmp_path):
    run = trainer(tmp_path)
    values, states = iter([3.0, 1.0, 2.0]), []

    def validate(model):
        assert not model.training
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return next(values)

    run.validate = validate
    assert run.run() == 1.0
    assert_same(run.model.state_dict(), states[1])
    assert not torch.equal(states[1]["embed.weight"], states[2]["embed.weight"])
    assert not run.model.training and run.model.dropout == 0.0


def test_the_last_step_is_validated_and_saved_whatever_the_rhythm(tmp_path):
    trainer(tmp_path, steps=7, validate_every=100, checkpoint_every=100).run()
    assert read_metadata(tmp_path / "checkpoint.safetensors")["step"] == "7"
    assert (tmp_path / "best.safetensors").exists()


def test_a_validation_that_is_never_a_number_is_reported(tmp_path):
    run = trainer(tmp_path)
    run.validate = lambda model: float("nan")
    with pytest.raises(ValueError, match="no validation was a finite number: the run diverged; lower learning_rate"):
        run.run()


def test_a_crash_while_writing_leaves_the_former_checkpoint_usable(tmp_path, monkeypatch):
    whole = trainer(tmp_path / "whole")
    whole.run()
    real = training.save_file
    written = []

    def dying(tensors, path, metadata=None):
        written.append(path)
        if (metadata or {}).get("step") == "10":
            real(tensors, path, metadata)
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])  # what a killed process leaves behind
            raise Cut
        real(tensors, path, metadata)

    monkeypatch.setattr(training, "save_file", dying)
    with pytest.raises(Cut):
        trainer(tmp_path / "cut").run()
    monkeypatch.undo()
    assert written[-1].exists(), "the half-written file lies beside the checkpoint"
    assert read_metadata(tmp_path / "cut" / "checkpoint.safetensors")["step"] == "5"
    trainer(tmp_path / "cut").run()
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert not list((tmp_path / "cut").glob("*.part"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    write_atomically(path, {"x": torch.ones(3)}, {"step": "1"})

    def failing(tensors, path, metadata=None):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(training, "save_file", failing)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, {"x": torch.zeros(3)}, {"step": "2"})
    assert torch.equal(load_file(path)["x"], torch.ones(3)) and read_metadata(path) == {"step": "1"}
    monkeypatch.undo()
    write_atomically(path, {"x": torch.zeros(2, 3).t()})  # not contiguous
    assert load_file(path)["x"].shape == (3, 2) and read_metadata(path) == {}


def test_the_rate_warms_up_and_falls_to_a_tenth(tmp_path):
    run = trainer(tmp_path, steps=100, warmup=10)
    rates = []
    for step in range(100):
        run.step = step
        rates.append(run._rate())
    assert rates[0] < rates[5] < rates[9] and max(rates) <= 1e-2
    assert rates[9] > 0.95e-2
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert 0.1e-2 <= rates[-1] < 0.11e-2


@pytest.mark.parametrize(
    "fields", [{"steps": 0}, {"learning_rate": 0.0}, {"learning_rate": -1.0}, {"unknown": 1}, {"clip": 0.0}]
)
def test_options_out_of_range_are_refused(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        TrainConfig(**{"steps": 1, "learning_rate": 0.1, **fields})
