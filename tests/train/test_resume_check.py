"""A run is resumed if the settings that decide its weights are those it began with."""

import pytest
import yaml

from paceline.train.config import TrainConfig
from paceline.train.data import Manifest
from paceline.train.resume_check import check_same_run

RAW = {
    "target": {"path": "model"},
    "heads": [{"kind": "early_exit"}],
    "data": {"sources": [{"kind": "datasets", "name": "owner/set"}]},
    "optimiser": {"learning_rate": 1e-3},
    "schedule": {"steps": 8},
    "output": "run",
}


@pytest.fixture
def folder(tmp_path):
    """A run of a version that had no ``streaming``."""
    checkpoint = tmp_path / "checkpoints" / "00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text("{}")
    former = TrainConfig.model_validate(RAW).model_dump(mode="json")
    del former["data"]["sources"][0]["streaming"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(former))
    Manifest(files=(), settings=()).write(tmp_path)
    return tmp_path


def test_fields_newer_than_the_run_have_their_defaults(folder):
    check_same_run(folder, TrainConfig.model_validate(RAW), Manifest(files=(), settings=()), required=True)


def test_changed_setting_is_named(folder):
    config = TrainConfig.model_validate({**RAW, "seed": 4})
    with pytest.raises(ValueError, match="began with seed=0 and now has 4: restore its former value, give another"):
        check_same_run(folder, config, Manifest(files=(), settings=()), required=True)
