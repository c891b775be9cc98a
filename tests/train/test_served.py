"""The acceptance that a run reports matches serving, for every kind of head."""

import json

import pytest
import yaml

from paceline.api import Engine, SamplingParams, load, total
from paceline.text.loops import is_looping
from paceline.train.config_file import read_train_config
from paceline.train.run import Run
from tests.train.configs import recipe, train, write_target

pytestmark = pytest.mark.one_in(12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


SERVED = {
    "draft": {},
    "early_exit": {"exit_layer": 1},
    "prophet": {"width": 16, "depth": 3},
    "linear_prophet": {"depth": 3},
    "medusa": {"depth": 3, "num_blocks": 2},
    "hydra": {"depth": 3, "prefix": True},
    "mlp_speculator": {"depth": 3, "tied": True},
    "block": {"block_size": 4, "num_layers": 1},
    "eagle": {"depth": 3, "draft_vocab_size": 50},
    "eagle3": {"depth": 3, "draft_vocab_size": 40},
    "mtp": {"depth": 3},
}


@pytest.mark.parametrize("kind", SERVED)
def test_reported_acceptance_matches_serving(kind, folder, tmp_path):
    output = tmp_path / "run"
    raw = {**yaml.safe_load((folder / "target" / "config.json").read_text()), "num_hidden_layers": 1}
    trained = {"draft": {"config": raw}, "heads": []} if kind == "draft" else {}
    trained = trained or {"heads": [{"kind": kind, "config": SERVED[kind]}]}
    fields = {**trained, "schedule": {"steps": 40}, "optimiser": {"learning_rate": 0.005}}
    path = recipe(folder, output, **fields)
    assert train(path) == 0
    prompts = Run(config=read_train_config(path)).data.prompts(8, 4).tolist()
    engine = Engine(load(folder / "target"), drafter=output / kind, num_draft_tokens=3, batch_size=8)
    results = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
    sound = [result for result in results if not is_looping(result.tokens)]
    served = total(sound).mean_acceptance_length
    name = f"validation.{kind}.greedy"
    saved = json.loads((max((output / "best").iterdir()) / "meta.json").read_text())["measures"]
    assert saved[f"{name}.num_texts"] == len(sound) > 0
    assert saved[f"{name}.low"] <= served <= saved[f"{name}.high"]
    assert served == pytest.approx(saved[f"{name}.tokens_per_step"], rel=0.05)


def test_heads_trained_with_their_target_draft_for_the_new_one(folder, tmp_path):
    """The joint recipe of Medusa-2: the target changes, and the written heads are its own."""
    output = tmp_path / "run"
    fields = {
        "target": {"path": str(folder / "target"), "trained": True, "weight": 1.0},
        "heads": [{"kind": "medusa", "config": {"depth": 3}, "weight": 0.2}],
        "schedule": {"steps": 60, "warmup": 4},
        "optimiser": {"learning_rate": 0.01},
    }
    assert train(recipe(folder, output, **fields)) == 0
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    target = load(output / "target")
    plain, drafted = Engine(target, drafter=None), Engine(target, drafter=output / "medusa", num_draft_tokens=3)
    wanted = plain.generate([[5, 9, 2]], params)[0].token_ids
    found = drafted.generate([[5, 9, 2]], params)[0]
    assert found.token_ids == wanted and found.stats.mean_acceptance_length > 1.5
    with pytest.raises(ValueError, match="is a head of"):
        Engine(load(folder / "target"), drafter=output / "medusa")
