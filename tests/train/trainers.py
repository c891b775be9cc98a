"""Tiny training runs and their files."""

import json

import pytest
import torch
from safetensors.torch import load_file

from demo.recipes.crops import Crops
from paceline.train.loop.config import LoopConfig
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.tasks import NextToken
from paceline.train.tasks.layer_skip import LayerSkip, LayerSkipSection
from paceline.train.validation import text_loss
from tests import tiny
from tests.train.synthetic import corpus


def options(steps=12, *, rate=1e-2, warmup=3, dropout=0.0, checkpoint_every=5, keep=2, optimiser=None, **fields):
    return LoopConfig.model_validate(
        {
            "schedule": {"steps": steps, "warmup": warmup},
            "optimiser": {"learning_rate": rate, "dropout": dropout, **(optimiser or {})},
            "checkpoints": {"every": checkpoint_every, "keep": keep},
            "log_every": 2,
            "validate_every": 4,
            **fields,
        }
    )


def trainer(folder, *, layer_skip=None, **fields):
    """A tiny run; everything about it is a function of its arguments."""
    config = options(**fields)
    layers = 1 if layer_skip is None else 3
    model = tiny.native(tiny.llama(1, dtype=torch.float32, num_hidden_layers=layers, initializer_range=0.05))
    model.dropout = config.optimiser.dropout
    crops = Crops([(corpus(0), 1.0)], rows=4, length=16, seed=1)
    held_out = Crops([(corpus(1), 1.0)], rows=4, length=16, seed=2)

    def validate(task):
        return Score(value=-text_loss(task.model, held_out))

    skip = None
    if layer_skip is not None:
        skip = LayerSkip(LayerSkipSection(**layer_skip), num_layers=layers, num_steps=config.schedule.steps)
    task = NextToken(model=model, layer_skip=skip)
    return Trainer(task=task, batches=crops, config=config, folder=folder, validate=validate)


class Cut(Exception):
    """A simulated crash."""


def run_until(run, step):
    """Train, and crash before the update of ``step``."""
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
