"""The example configurations of draft heads run, and say what their papers publish."""

from pathlib import Path

import pytest

from paceline.train.config_file import read_train_config
from tests.train.configs import recipe, train, write_target
from tests.train.pairs import recipe as paired_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


def dry_run(example, folder, tmp_path, monkeypatch, *more):
    """The example with the tiny target and its data."""
    monkeypatch.chdir(tmp_path)
    whole = read_train_config(recipe(folder, tmp_path / "run"))
    settings = [
        f"target.path={folder / 'target'}",
        f"data={whole.data.model_dump_json()}",
        f"batch={whole.batch.model_dump_json()}",
        f"validation={whole.validation.model_dump_json()}",
        *more,
    ]
    status = train(EXAMPLES / example, "--dry-run", *(word for one in settings for word in ("--set", one)))
    assert not Path("runs").exists()
    return status


def test_hass_has_the_published_weights(folder, tmp_path, monkeypatch, capsys):
    assert dry_run("hass.yaml", folder, tmp_path, monkeypatch) == 0
    assert "validation.eagle.greedy" in capsys.readouterr().out
    config = read_train_config(EXAMPLES / "hass.yaml")
    assert config.loss.terms == {"kl": 0.1, "top_k": 1.0}
    (head,) = config.heads
    published = {"depth": 3, "depth_decay": 1.0, "detach_steps": True, "feature_weight": 1.0, "noise": 0.2}
    assert head.kind == "eagle" and published.items() <= head.config.items()
    options = config.optimiser
    assert (options.learning_rate, options.betas, options.clip) == (3e-5, (0.9, 0.95), 0.5)


def test_stored_states_say_what_they_need_and_store_nothing_in_a_dry_run(folder, tmp_path, monkeypatch, capsys):
    head = (
        "heads.0.config.taps=[1, 2, 3]",
        "heads.0.config.draft_vocab_size=40",
        "loss.rows=1",
        "target.dtype=float32",
    )
    assert dry_run("stored_states.yaml", folder, tmp_path, monkeypatch, *head) == 0
    assert "MiB to store" in capsys.readouterr().out


def test_medusa_2_has_two_stages_and_a_slower_target(folder, tmp_path, monkeypatch, capsys):
    assert dry_run("medusa2.yaml", folder, tmp_path, monkeypatch, "target.joint.layers=1") == 0
    assert "validation.medusa.greedy" in capsys.readouterr().out
    config = read_train_config(EXAMPLES / "medusa2.yaml")
    joint = config.target.joint
    assert joint is not None and joint.start < config.schedule.steps
    assert joint.learning_rate < config.optimiser.learning_rate


def test_shared_encoder_has_the_published_weights(tmp_path, monkeypatch, capsys):
    whole = read_train_config(paired_recipe(tmp_path))
    monkeypatch.chdir(tmp_path)
    sections = ("target", "data", "batch", "validation")
    settings = [f"{name}={getattr(whole, name).model_dump_json()}" for name in sections]
    words = [word for one in settings for word in ("--set", one)]
    assert train(EXAMPLES / "shared_encoder.yaml", "--dry-run", *words) == 0
    assert "validation.draft.greedy" in capsys.readouterr().out and not Path("runs").exists()
    config = read_train_config(EXAMPLES / "shared_encoder.yaml")
    assert config.draft is not None and config.draft.layers == (0, -1)
    assert config.loss.terms == {"text": 1.0, "kl": 0.8}
