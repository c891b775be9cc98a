"""Two processes match one. Their files are compared, because gloo may abort processes at exit."""

import json
import multiprocessing
import socket

import pytest
import torch
from safetensors.torch import load_file

from paceline.train.loop.checkpoints import complete_folders
from paceline.train.loop.distributed import Single, open_strategy
from tests.train import worker

PROCESSES = multiprocessing.get_context("forkserver")  # which imports torch once, and has no threads of this one
PROCESSES.set_forkserver_preload(["tests.train.worker"])


def launch(folder, name, *, processes=2, **fields):
    """Run the worker in the environment that torchrun sets; returns the weights that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(processes):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
        own = {key: str(value) for key, value in {**own, "MASTER_PORT": port}.items()}
        process = PROCESSES.Process(target=worker.run_rank, args=(own, folder, name, fields))
        process.start()
        started.append(process)
    for process in started:
        process.join(120)
    return load_file(folder / "weights.safetensors")


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def assert_matches_one_process(tmp_path, found, **fields):
    """Weights and losses of the run in ``two``."""
    wanted = worker.train(tmp_path / "one", Single(device=torch.device("cpu")), 6, **fields)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5, msg=name)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.parametrize(
    ("fields", "accumulate"),
    [({"joint": True}, 1), ({"joint": False}, 2), ({"joint": True, "skips": True}, 1)],
    ids=["joint", "frozen-accumulated", "skipped layers"],
)
def test_two_processes_match_one(name, fields, accumulate, tmp_path):
    found = launch(tmp_path / "two", name, **fields, accumulate=accumulate)
    assert_matches_one_process(tmp_path, found, **fields)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_run_resumes_with_another_number_of_processes(name, tmp_path):
    launch(tmp_path / "two", name, joint=True, processes=2, until=4)
    assert max(complete_folders(tmp_path / "two" / "checkpoints")).name == "00000004"
    found = launch(tmp_path / "two", name, joint=True, processes=1)
    assert_matches_one_process(tmp_path, found, joint=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_muon_orthogonalises_whole_matrices_in_two_processes(name, tmp_path):
    """Up to the rounding of bfloat16, which grows where a gradient has small singular values; not shard by shard."""
    fields = {"joint": True, "optimiser": "muon"}
    found = launch(tmp_path / "two", name, **fields)
    wanted = worker.train(tmp_path / "one", Single(device=torch.device("cpu")), 6, **fields)
    for part, before in worker.make_task(joint=True, skips=False).trained().items():
        change = wanted[part] - before.detach()
        assert (found[part] - wanted[part]).norm() <= 0.1 * change.norm(), part
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)


def test_processes_that_do_not_fit_the_strategy_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="distributed=ddp in a single process: start it by `torchrun"):
        open_strategy("ddp", device="cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="distributed=single under torchrun with 2 processes: set distributed"):
        open_strategy("single", device="cpu")
