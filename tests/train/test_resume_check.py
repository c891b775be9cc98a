"""A run is resumed if the settings that decide its weights are those it began with."""

import subprocess
import sys

import pytest
import yaml
from filelock import FileLock

from paceline.train.config import TrainConfig
from paceline.train.data import Manifest
from paceline.train.resume_check import LOCK_FILE, check_same_run, claim

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


def test_a_folder_that_another_process_trains_into_is_refused(tmp_path):
    """The lock ends with the process that holds it, however that ends."""
    program = "import sys, time, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
    program += "print(flush=True); time.sleep(99)"
    command = [sys.executable, "-c", program, str(tmp_path / LOCK_FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None and one.stdout.readline()  # it prints once it holds the lock
        with pytest.raises(ValueError, match=f"output={tmp_path}: another process trains into it; wait for it, or"):
            claim(FileLock(tmp_path / LOCK_FILE))
        one.kill()
    claim(lock := FileLock(tmp_path / LOCK_FILE))
    lock.release()


def test_more_steps_lengthen_the_run_and_fewer_are_refused(folder):
    found = check_same_run(folder, changed(schedule={"steps": 12}), Manifest(files=(), settings=()), required=True)
    assert found is not None and (found.done, found.schedule.steps) == (2, 8)
    with pytest.raises(ValueError, match=r"began with schedule\.steps=8 and now has 6"):
        check_same_run(folder, changed(schedule={"steps": 6}), Manifest(files=(), settings=()), required=True)


@pytest.mark.parametrize("section", [{"ramp": True}, {"curriculum": "gradual"}])
def test_run_whose_layers_depend_on_all_steps_cannot_be_lengthened(folder, section):
    target = {"path": "model", "trained": True, "layer_skip": section}
    (folder / "config.yaml").write_text(yaml.safe_dump(changed(target=target).model_dump(mode="json")))
    with pytest.raises(ValueError, match=r"cannot be lengthened; train on in a new run, .*target\.path=.*target"):
        longer = changed(target=target, schedule={"steps": 12})
        check_same_run(folder, longer, Manifest(files=(), settings=()), required=True)


def changed(**fields):
    return TrainConfig.model_validate({**RAW, **fields})
