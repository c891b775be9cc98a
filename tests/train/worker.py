"""One process of a distributed run; the main process writes the weights to a file."""

import os
import sys
import traceback

import torch
from safetensors.torch import save_file

from demo.recipes.crops import Crops
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.train.loop.config import LoopConfig
from paceline.train.loop.distributed import open_strategy
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.tasks import DraftHeadTask, TrainedHead
from paceline.train.tasks.layer_skip import LayerSkip, LayerSkipSection
from paceline.train.tasks.losses import DistillationLoss
from tests import tiny
from tests.train.heads import LastConfig, LastHead, TapConfig, TapHead
from tests.train.synthetic import Masked, corpus

ROWS = 4


def make_task(*, joint, skips):
    """Two heads, one with random anchors, and a frozen or trained target; or an exit without weights."""
    target = tiny.native(tiny.llama(1, dtype=torch.float32))
    if skips:
        config = EarlyExitConfig(exit_layer=2, num_blocks=0, own_norm=False)
        exit_head = EarlyExitHead.make(config, target, generator=torch.Generator())
        return DraftHeadTask(
            target=target,
            heads=[TrainedHead(name="exit", head=exit_head, weight=0)],
            loss=DistillationLoss(terms={"kl": 1.0}),
            target_weight=1.0,
            layer_skip=LayerSkip(LayerSkipSection(dropout=0.5, every=2), num_layers=3, num_steps=6),
        )
    tap = TapHead.make(TapConfig(anchors=5), target, generator=torch.Generator().manual_seed(1))
    last = LastHead.make(LastConfig(), target, generator=torch.Generator().manual_seed(2))
    return DraftHeadTask(
        target=target,
        heads=[TrainedHead(name="tap", head=tap), TrainedHead(name="last", head=last)],
        loss=DistillationLoss(terms={"kl": 0.5, "lk_alpha": 0.5}, chunk=64),
        target_weight=1.0 if joint else None,
    )


def train(folder, strategy, steps, *, joint, accumulate=1, until=None, skips=False, optimiser="adamw"):
    """Train with a trivial validation; returns the full weights by name."""
    config = LoopConfig.model_validate(
        {
            "schedule": {"steps": steps, "warmup": 2},
            "optimiser": {"kind": optimiser, "learning_rate": 3e-3},
            "checkpoints": {"every": 2},
            "precision": "fp32",
            "accumulate": accumulate,
            "ema": 0.5,
            "log_every": 1,
            "validate_every": steps,
        }
    )
    if until is not None:  # a run that ends before its schedule does
        config = config.model_copy(update={"validate_every": 1000})
    batches = Masked(Crops([(corpus(0), 1.0)], rows=ROWS, length=16, seed=1))
    trainer = Trainer(
        task=make_task(joint=joint, skips=skips),
        batches=batches if until is None else Ending(batches, until),
        config=config,
        folder=folder,
        validate=lambda task: Score(value=float(next(task.parameters()).sum())),
        strategy=strategy,
    )
    try:
        trainer.run()
    except Ended:
        pass
    whole = {name: strategy.full_tensor(tensor).detach().clone() for name, tensor in trainer.parameters.items()}
    mean = {f"mean.{name}": strategy.full_tensor(tensor).clone() for name, tensor in trainer.average.tensors.items()}
    return whole | mean


class Ended(Exception):
    """There are no more batches."""


class Ending:
    """Batches up to a step."""

    def __init__(self, batches, until):
        self.batches, self.until, self.rows = batches, until, batches.rows

    def batch(self, step, rows):
        if step == self.until:
            raise Ended
        return self.batches.batch(step, rows)


def run_rank(environment, folder, name, fields):
    """The entry point of a process; it exits at once, because gloo may abort an interpreter that shuts down."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        strategy = open_strategy(name, device="cpu")
        weights = train(folder, strategy, 6, **fields)
        if strategy.main:
            save_file(weights, folder / "weights.safetensors")
        strategy.close()
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)
