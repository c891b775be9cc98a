"""Two processes learn what one does; judged by what they write, for ranks on gloo may abort when they exit."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.train.checkpoints import whole_folders
from paceline.train.distributed import Single, open_strategy
from tests.train import ranks

ROOT = Path(__file__).parents[2]


def launch(folder, name, *, joint, processes=2, accumulate=1, until=0):
    """Run ``ranks`` under torchrun's environment and return the weights and log that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind = "joint" if joint else "frozen"
    words = ["-m", "tests.train.ranks", str(folder), name, kind, str(accumulate), str(until)]
    started = []
    for rank in range(processes):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
        own |= {"MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        environment = os.environ | {key: str(value) for key, value in own.items()}
        command = [sys.executable, *words]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert (folder / "weights.safetensors").exists(), "\n".join(errors)
    return load_file(folder / "weights.safetensors")


def alone(folder, *, joint, accumulate=1):
    return ranks.train(folder, Single(device=torch.device("cpu")), 6, joint=joint, accumulate=accumulate)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.parametrize(("joint", "accumulate"), [(True, 1), (False, 2)], ids=["joint", "frozen-accumulated"])
def test_two_processes_learn_what_one_does(name, joint, accumulate, tmp_path):
    wanted = alone(tmp_path / "one", joint=joint)
    found = launch(tmp_path / "two", name, joint=joint, accumulate=accumulate)
    assert_close(found, wanted)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_a_run_goes_on_with_another_number_of_processes(name, tmp_path):
    wanted = alone(tmp_path / "one", joint=True)
    launch(tmp_path / "two", name, joint=True, processes=2, until=4)
    assert [path.name for path in whole_folders(tmp_path / "two" / "checkpoints")][-1:] == ["00000004"]
    found = launch(tmp_path / "two", name, joint=True, processes=1)
    assert_close(found, wanted)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def test_processes_that_do_not_fit_the_strategy_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="distributed=ddp in a single process: start it by `torchrun"):
        open_strategy("ddp", device="cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="distributed=single under torchrun with 2 processes: set distributed"):
        open_strategy("single", device="cpu")
