"""Runs with the LayerSkip recipe: resuming, micro-batches, acceptance of the exits, serving."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from demo.recipes.crops import Crops
from paceline.api import Engine, SamplingParams, load, total
from paceline.cli import run
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.draft_heads.files import load_head
from paceline.text.loops import is_looping
from paceline.train.acceptance import requests_of
from paceline.train.config import ValidationSection
from paceline.train.config_file import read_train_config
from paceline.train.init_weights import random_model
from paceline.train.loop.trainer import Trainer
from paceline.train.run import Run
from paceline.train.tasks import DraftHeadTask, TrainedHead
from paceline.train.tasks.layer_skip import LayerSkip, LayerSkipSection
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.validation import Validation
from tests import tiny
from tests.train.configs import log, recipe, train, write_target
from tests.train.trainers import options

EXIT = {"kind": "early_exit", "name": "exit", "config": {"exit_layer": 2, "num_blocks": 0, "own_norm": False}}
SILENT = {**EXIT, "weight": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


def target_of(num_layers, **fields):
    raw = tiny.llama(num_hidden_layers=num_layers).config.to_dict()
    return {"config": {name: raw[name] for name in raw if name not in ("dtype", "transformers_version")}, **fields}


NUM_WORDS, LENGTH, STEPS = 16, 32, 150


def pairs(seed, count=20000):
    """Tokens determined by the two before them, by a fixed table; one in ten is random."""
    table = np.random.default_rng(99).integers(NUM_WORDS, size=(NUM_WORDS, NUM_WORDS))
    generator = np.random.default_rng(seed)
    tokens = [1, 2]
    while len(tokens) < count:
        surprise = generator.random() < 0.1
        tokens.append(int(generator.integers(NUM_WORDS) if surprise else table[tokens[-1], tokens[-2]]))
    return np.asarray(tokens, dtype=np.uint16)


def learned(folder, section):
    """The metrics of a target of six layers with an exit after the third, trained with ``section``."""
    raw = {**target_of(6)["config"], "vocab_size": NUM_WORDS, "intermediate_size": 64}
    target = random_model(raw, 0)
    config = EarlyExitConfig(exit_layer=3, num_blocks=0, own_norm=False)
    head = EarlyExitHead.make(config, target, generator=torch.Generator())
    task = DraftHeadTask(
        target=target,
        heads=[TrainedHead(name="exit", head=head, weight=0)],
        loss=DistillationLoss(terms={"kl": 1.0}),
        target_weight=1.0,
        layer_skip=section and LayerSkip(section, num_layers=6, num_steps=STEPS),
    )
    validation = Validation(
        section=ValidationSection(prompts=16, prompt_tokens=6, tokens=24, k=3),
        requests=requests_of(pairs(7)[:800].reshape(16, 50)[:, :6].astype(np.int64), 24),
        held_out=Crops([(pairs(1), 1.0)], rows=8, length=LENGTH, seed=2),
        seed=4,
    )
    crops = Crops([(pairs(0), 1.0)], rows=8, length=LENGTH, seed=1)
    loop = options(STEPS, warmup=5, validate_every=STEPS, checkpoint_every=STEPS, precision="fp32")
    return Trainer(task=task, batches=crops, config=loop, folder=folder, validate=validation).run().metrics


@pytest.mark.slow
def test_recipe_raises_acceptance_of_exits_at_equal_target_loss(tmp_path):
    plain = learned(tmp_path / "plain", None)
    found = learned(tmp_path / "skip", LayerSkipSection(exit_scale=1.0, every=2))
    name = "validation.exit.{}.tokens_per_step".format
    assert found[name("greedy")] > plain[name("greedy")] + 0.5
    assert found[name("t1")] > plain[name("t1")] + 0.3
    assert found["validation.exit.greedy.num_texts"] > 8 and plain["validation.exit.greedy.num_texts"] > 8
    assert found["validation.loss"] == pytest.approx(plain["validation.loss"], abs=0.05)


def test_exit_without_weights_is_measured_written_and_served(folder, tmp_path, capsys):
    output = tmp_path / "run"
    target = {"path": str(folder / "target"), "trained": True, "layer_skip": {"every": 2, "exit_scale": 1.0}}
    fields = {"heads": [SILENT], "schedule": {"steps": 40}, "optimiser": {"learning_rate": 0.005}}
    path = recipe(folder, output, target=target, **fields)
    assert train(path) == 0
    assert "validation.exit.greedy.tokens_per_step" in capsys.readouterr().out
    assert "tokens per step, greedy, k = 3" in (output / "exit" / "README.md").read_text()
    losses = [line for line in log(output) if "loss" in line]
    assert losses[-1]["loss"] < losses[0]["loss"] and any("target.exits" in line for line in losses)
    model = load(output / "target")
    assert load_head(output / "exit", model.lm).own_state() == {}
    prompts = Run(config=read_train_config(path)).data.prompts(8, 4).tolist()
    engine = Engine(model, drafter=output / "exit", num_draft_tokens=3, batch_size=8)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    results = engine.generate(prompts, params)
    plain = Engine(model, drafter="none", batch_size=8).generate(prompts, params)
    assert [one.tokens for one in results] == [one.tokens for one in plain]
    sound = [result for result in results if not is_looping(result.tokens)]
    served = total(sound).mean_acceptance_length
    saved = json.loads((max((output / "best").iterdir()) / "meta.json").read_text())["measures"]
    assert served == pytest.approx(saved["validation.exit.greedy.tokens_per_step"], rel=0.05)
    words = ["--model", str(output / "target"), "--drafter", str(output / "exit"), "--max-tokens", "8", "abc"]
    assert run(["generate", *words]) == 0
    with pytest.raises(ValueError, match="is a head of"):
        load_head(output / "exit", load(folder / "target").lm)


def test_exit_without_weights_is_measured_beside_trained_heads(folder, tmp_path):
    """With a frozen target."""
    output = tmp_path / "run"
    heads = [{"kind": "early_exit", "config": {"exit_layer": 1}}, SILENT]
    assert train(recipe(folder, output, heads=heads, schedule={"steps": 4})) == 0
    target = load(folder / "target").lm
    assert load_head(output / "exit", target).own_state() == {} != load_head(output / "early_exit", target).own_state()
    lines = log(output)
    assert any("validation.exit.greedy.num_texts" in line for line in lines)
    assert not any("exit.loss.1" in line or "exit.loss" in line for line in lines)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": {"path": "target", "layer_skip": {}}}, "target: layer_skip is for a target that is trained, and"),
        ({"target": target_of(1, layer_skip={})}, "target.layer_skip: the target has 1 layer, and an early exit needs"),
        ({"target": target_of(3, layer_skip={"dropout": 1})}, "target.layer_skip.dropout=1: Input should be less"),
        ({"target": target_of(3, layer_skip={"curriculum": "steep"})}, "target.layer_skip.curriculum='steep': Input"),
        ({"target": target_of(3, layer_skip={"rate": 1})}, "target.layer_skip.rate=1: Extra inputs are not permitted"),
        ({"heads": [EXIT]}, "nothing to train: no head has weights of its own, and the target is frozen; train"),
        ({"heads": [{"kind": "early_exit", "config": {"exit_layer": 2}, "weight": 0}]}, "heads.0.weight=0: this head"),
        ({"heads": [{**EXIT, "weight": -1}]}, "heads.0.weight=-1: Input should be greater than or equal to 0"),
    ],
)
def test_wrong_fields_are_named_before_training(fields, message, folder, tmp_path, capsys):
    if fields.get("target", {}).get("path"):
        fields = {"target": {**fields["target"], "path": str(folder / "target")}}
    elif "target" in fields:
        fields = {**fields, "heads": []}
    assert train(recipe(folder, tmp_path / "run", **fields)) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_recipe_is_dumped_and_a_changed_one_is_not_resumed(folder, tmp_path, capsys):
    output = tmp_path / "run"
    path = recipe(folder, output, target=target_of(2, layer_skip={"dropout": 0.2}), heads=[], schedule={"steps": 4})
    assert train(path, "--set", "target.layer_skip.every=3", "--dump-config") == 0
    dumped = yaml.safe_load(capsys.readouterr().out)["target"]["layer_skip"]
    whole = {"dropout": 0.2, "ramp": False, "exit_scale": 0.2, "curriculum": "rotational", "every": 3}
    assert dumped == whole
    assert train(path) == 0 and train(path, "--set", "target.layer_skip.every=3") == 2
    assert "began with target.layer_skip.every=8 and now has 3" in capsys.readouterr().err


def test_example_trains_an_exit_without_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[2] / "examples" / "layerskip.yaml"
    (tmp_path / "text").write_bytes(np.random.default_rng(0).bytes(4000))
    settings = [
        "data.sources=[{kind: bytes, path: text, train: 3000, validation: 1000, test: 0}]",
        "data.cache=cache",
        "batch={rows: 2, length: 16}",
        "validation={prompts: 2, prompt_tokens: 8, tokens: 4, k: 2}",
    ]
    assert train(example, "--dry-run", *(word for one in settings for word in ("--set", one))) == 0
    message = capsys.readouterr().out
    assert "trained parameters  1,738,880" in message and "validation.loss" in message and not Path("runs").exists()
    config = read_train_config(example)
    assert config.target.layer_skip == LayerSkipSection(dropout=0.1, exit_scale=1.0, every=4)
    assert [(head.kind, head.weight) for head in config.heads] == [("early_exit", 0.0)]


def test_documented_code_writes_an_exit_for_a_model_trained_elsewhere(folder, tmp_path):
    """The code is in docs/training.md."""
    page = Path(__file__).parents[2] / "docs" / "training.md"
    text = page.read_text(encoding="utf-8").partition("## Early exits without a head")[2]
    code = text.partition("```python\n")[2].partition("```")[0].replace("exit_layer=8", "exit_layer=2")
    code = code.replace("models/mine-exit", str(tmp_path / "exit")).replace("models/mine", str(folder / "target"))
    exec(code, {})
    prompts = [[5, 9, 2, 7], [1, 1, 4]]
    params = SamplingParams(temperature=1.0, max_tokens=12, seed=3)
    model = load(folder / "target")
    results = Engine(model, drafter=tmp_path / "exit", num_draft_tokens=3).generate(prompts, params)
    plain = Engine(model, drafter="none").generate(prompts, params)
    assert [one.tokens for one in results] == [one.tokens for one in plain]
    assert total(results).mean_acceptance_length > 1
