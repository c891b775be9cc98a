"""Heads alone, then the target with them: what each stage trains, at which rate, and what comes out."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from paceline.api import Engine, SamplingParams, load
from paceline.draft_heads.files import read_head_config
from paceline.models.fingerprint import fingerprint
from paceline.models.loading import load as load_native
from paceline.train.config_file import read_train_config
from paceline.train.loop.schedule import learning_rate_factor
from paceline.train.run import Run
from paceline.train.tasks.joint import Joint, JointSection
from tests import tiny
from tests.train.configs import log, recipe, train, write_target
from tests.train.trainers import Cut, assert_same, run_until, weights, without_speed

START, STEPS, WARMUP = 8, 20, 4
OWN = {"kind": "medusa", "config": {"depth": 3, "num_blocks": 2}, "weight": 0.2}
SHARED = {"kind": "medusa", "config": {"depth": 3, "lm_head": "shared"}, "weight": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


def configured(root, output, *, head=OWN, joint=(), target=(), **fields):
    stages = {"start": START, "learning_rate": 0.002, "warmup": WARMUP, **dict(joint)}
    whole = {
        "target": {"path": str(root / "target"), "trained": True, "joint": stages, **dict(target)},
        "heads": [head],
        "schedule": {"steps": STEPS, "warmup": 2},
        "optimiser": {"learning_rate": 0.02},
    }
    return recipe(root, output, **{**whole, **fields})


def built(path):
    return Run(config=read_train_config(path))


def trainer_of(run):
    run._begin()
    return run._trainer()


def copies(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def changed(module, before):
    return {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}


def steps(trainer, count, monkeypatch=None):
    from paceline.train.loop.progress import TrainProgress

    progress = TrainProgress(total=count, done=0, shown=False)
    for _ in range(count):
        trainer.advance(progress)


@pytest.mark.parametrize("head", [OWN, SHARED], ids=["own LM heads", "the target's LM head"])
def test_first_stage_leaves_the_target_and_the_second_trains_both(head, folder, tmp_path):
    run = built(configured(folder, tmp_path / "run", head=head))
    trainer, target = trainer_of(run), run.target.lm
    heads, whole = run.task.heads, copies(target)
    steps(trainer, START)
    assert not changed(target, whole)
    assert all(not state["step"] for state in target_states(trainer)), "the optimiser has seen none of its gradients"
    before = copies(heads)
    steps(trainer, 1)
    assert {name for name in whole if "attention" not in name} <= changed(target, whole), "its attention adds nothing"
    assert changed(heads, before)
    assert all(state["step"] == 1 for state in target_states(trainer))


def target_states(trainer):
    return [
        trainer.optimizers[0].state[parameter]
        for name, parameter in trainer.parameters.items()
        if name.startswith("trunk.")
    ]


def test_first_stage_is_training_on_a_frozen_target(folder, tmp_path):
    """Heads have the weights of a run whose target is frozen, bit for bit, also where the target has dropout."""
    rates = {"optimiser": {"learning_rate": 0.02, "dropout": 0.3}}
    joint = built(configured(folder, tmp_path / "joint", **rates))
    frozen = built(
        configured(folder, tmp_path / "frozen", target={"trained": False, "joint": None}, head={**OWN, "weight": 1.0})
    )
    joint.task.weighted_heads = tuple(dataclasses.replace(one, weight=1.0) for one in joint.task.weighted_heads)
    for run in (joint, frozen):
        steps(trainer_of(run), START)
    assert_same(dict(joint.task.heads.state_dict()), dict(frozen.task.heads.state_dict()))


def test_second_stage_has_the_gradients_of_both_losses_and_the_rates_of_both(folder, tmp_path):
    """In its third step: the target's loss, and the heads' by three quarters of their weight."""
    step = START + 2
    run = built(configured(folder, tmp_path / "run"))
    trainer = trainer_of(run)
    steps(trainer, step)
    batch = run.data.batches.batch(step, range(4))
    from paceline.train.tasks import DraftHeadTask, StepRandomness

    draws = StepRandomness(seed=0, step=step, first_row=0)
    found = run.task(batch, draws)
    plain = DraftHeadTask(
        target=run.target.lm,
        heads=[dataclasses.replace(one, weight=0.2 * 3 / 4) for one in run.task.trained_heads],
        loss=run.task.loss,
        target_weight=1.0,
    )
    wanted = plain(batch, draws)
    torch.testing.assert_close(found.loss, wanted.loss, rtol=0, atol=0)
    steps(trainer, 1)
    cosine = learning_rate_factor(run.config.schedule, step)
    rates = {group["part"]: group["lr"] for group in trainer.optimizers[0].param_groups}
    assert rates == pytest.approx({"trunk": 0.002 * cosine * 3 / 4, "heads": 0.02 * cosine}, rel=1e-12)


def test_ramp_rises_over_the_warm_up():
    joint = Joint(JointSection(start=3, learning_rate=0.1, warmup=4), rate=0.2, target=tiny.native(tiny.llama(1)))
    assert [joint.ramp(step) for step in range(9)] == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert [joint.head_weight(step) for step in (2, 3, 7)] == [1, 0.25, 1]
    assert [joint.target_rate(step) for step in (2, 3, 7)] == [0, 0.125, 0.5]
    sudden = Joint(JointSection(start=3, learning_rate=0.1, warmup=0), rate=0.1, target=tiny.native(tiny.llama(1)))
    assert [sudden.ramp(step) for step in (2, 3)] == [0, 1]


def test_only_the_last_layers_are_trained_where_asked(folder, tmp_path):
    run = built(configured(folder, tmp_path / "run", joint={"layers": 1}))
    trainer, whole = trainer_of(run), copies(run.target.lm)
    steps(trainer, START + 2)
    names = changed(run.target.lm, whole)
    assert names and all(name.startswith(("blocks.2.", "norm.")) for name in names)
    assert {name for name in whole if name.startswith(("blocks.2.", "norm."))} == names


@pytest.mark.one_in(6)
@pytest.mark.parametrize("at", [START - 1, START, START + 1, START + WARMUP])
def test_run_resumes_across_the_stages(at, folder, tmp_path):
    every = {"checkpoints": {"every": 1}}
    whole = tmp_path / "whole"
    assert train(configured(folder, whole, **every)) == 0
    trainer = trainer_of(built(configured(folder, tmp_path / "cut", **every)))
    run_until(trainer, at)
    assert max((tmp_path / "cut" / "checkpoints").iterdir()).name == f"{at:08d}"
    assert train(configured(folder, tmp_path / "cut", **every)) == 0
    assert_same(weights(tmp_path / "cut"), weights(whole))
    assert without_speed(tmp_path / "cut") == without_speed(whole)
    for part in ("target", "medusa"):
        assert_same(*(load_file(run / part / "model.safetensors") for run in (tmp_path / "cut", whole)))


@pytest.mark.slow
def test_tuned_target_loads_and_its_heads_are_of_it_alone(folder, tmp_path, capsys):
    output = tmp_path / "run"
    fields = {"schedule": {"steps": 100, "warmup": 4}, "optimiser": {"learning_rate": 0.01}}
    path = configured(folder, output, joint={"start": 30, "learning_rate": 0.01}, **fields)
    assert train(path) == 0
    target, original = load(output / "target"), load(folder / "target")
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    wanted = Engine(target, drafter=None).generate([[5, 9, 2]], params)[0].token_ids
    found = Engine(target, drafter=output / "medusa", num_draft_tokens=3).generate([[5, 9, 2]], params)[0]
    assert found.token_ids == wanted and found.stats.mean_acceptance_length > 1.5
    tuned = fingerprint(load_native(output / "target"))
    assert read_head_config(output / "medusa").fingerprint == tuned
    assert not tuned.matches(fingerprint(original.lm))
    with pytest.raises(ValueError, match="is a head of"):
        Engine(original, drafter=output / "medusa")
    origin = str(folder / "target")
    card = (output / "target" / "README.md").read_text()
    assert f"A language model of its own, trained on from `{origin}` together with its draft heads" in card
    assert f"Its text is not that of `{origin}`" in card
    assert f"Drafts for `{output / 'target'}`, and for no other model" in (output / "medusa" / "README.md").read_text()
    capsys.readouterr()
    from paceline.cli import run

    assert run(["inspect", str(output / "target"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"]["tuned_from"] == origin
    assert f"trained on from {origin} together with its draft heads" in facts["conclusion"]["says"]


def test_last_weights_are_written_and_the_log_has_both_rates_and_losses(folder, tmp_path):
    output = tmp_path / "run"
    assert (
        train(
            configured(folder, output, validation={"every": 4, "prompts": 8, "prompt_tokens": 4, "tokens": 16, "k": 3})
        )
        == 0
    )
    assert [path.name for path in (output / "best").iterdir()] == [f"{STEPS:08d}"]
    last = weights(output)
    saved = load_file(output / "best" / f"{STEPS:08d}" / "weights.safetensors")
    assert_same(
        saved, {name.removeprefix("model."): value for name, value in last.items() if name.startswith("model.")}
    )
    lines = log(output)
    first = [line["validation.loss"] for line in lines if "validation.loss" in line and line["step"] <= START]
    assert len(first) == 2 and first[0] == first[1], "the original target's, for comparison"
    rates = [(line["step"], line["learning_rate.target"]) for line in lines if "learning_rate.target" in line]
    assert all((rate == 0) == (step <= START) for step, rate in rates) and len(rates) == STEPS


@pytest.mark.slow
def test_two_processes_match_one(folder, tmp_path):
    path = configured(folder, tmp_path / "two", distributed="ddp", device="cpu")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "paceline", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert train(configured(folder, tmp_path / "one")) == 0
    found, wanted = weights(tmp_path / "two"), weights(tmp_path / "one")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": {"trained": False}}, "target.joint trains a target that exists with its heads: give target.path"),
        ({"target": {"path": None, "config": {}}}, "target.joint trains a target that exists with its heads"),
        ({"heads": []}, "target.joint trains a target that exists with its heads"),
        ({"joint": {"start": STEPS}}, f"target.joint.start={STEPS}: the second stage would begin after all {STEPS}"),
        ({"joint": {"layers": 4}}, "target.joint.layers=4: the target has 3; give at most as many"),
        ({"target": {"layer_skip": {}}}, "target.joint and target.layer_skip: a run has one of these recipes"),
        (
            {"distributed": "fsdp2"},
            "target.joint with distributed=fsdp2: in the first stage the target has no gradients",
        ),
    ],
    ids=["frozen", "from scratch", "no heads", "too late", "too many layers", "layer skip", "sharded"],
)
def test_what_does_not_fit_is_refused(fields, message, folder, tmp_path, capsys):
    assert train(configured(folder, tmp_path / "run", **fields)) != 0
    assert message in capsys.readouterr().err


def test_changed_stage_is_not_the_same_run(folder, tmp_path, capsys):
    trainer = trainer_of(built(configured(folder, tmp_path / "run")))
    with pytest.raises(Cut):
        _cut(trainer)
    assert train(configured(folder, tmp_path / "run", joint={"start": START + 1})) != 0
    assert f"began with target.joint.start={START} and now has {START + 1}" in capsys.readouterr().err


def _cut(trainer):
    run_until(trainer, 5)
    raise Cut
