"""Stored hidden states give the weights of runs that compute them, and are never of something else, nor half there."""

import json
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
import yaml
from safetensors.torch import load_file

from paceline.models.loading import load, save
from paceline.train.config_file import read_train_config
from paceline.train.loop.trainer import Trainer
from paceline.train.run import Run
from paceline.train.states import making, store
from tests.train.configs import LENGTH, recipe, train, write_target
from tests.train.trainers import assert_same, weights, without_speed

STEPS = 20
EAGLE3 = {"kind": "eagle3", "config": {"taps": [1, 2, 3], "depth": 2, "draft_vocab_size": 40, "anchors": 6}}
MEDUSA = {"kind": "medusa", "config": {"depth": 2}}
EXIT = {"kind": "early_exit", "config": {"exit_layer": 1, "num_blocks": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


def configured(root, output, head, *, states=None, **fields):
    whole = {"optimiser": {"learning_rate": 0.003}, "schedule": {"steps": STEPS, "warmup": 2}, "heads": [head]}
    if states is not None:
        whole["hidden_states"] = states if isinstance(states, dict) else {"folder": str(states)}
    return recipe(root, output, **{**whole, **fields})


def built(path, **options):
    return Run(config=read_train_config(path), **options)


def shards(states):
    return sorted((states / "shards").glob("*.safetensors"))


def trains(root, output, head, capsys, **fields):
    code = train(configured(root, output, head, **fields))
    assert code == 0, capsys.readouterr().err


def refusal(root, output, capsys, head=EAGLE3, **fields):
    """The message of a run that is refused."""
    assert train(configured(root, output, head, **fields)) != 0
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        (EAGLE3, {}),
        (MEDUSA, {"precision": "bf16"}),
        (EXIT, {"target": {"dtype": "bfloat16"}, "precision": "bf16", "batch": {"rows": 4, "accumulate": 2}}),
    ],
    ids=["eagle3", "medusa under autocast", "early exit of a bfloat16 target, accumulated"],
)
@pytest.mark.one_in(5)
def test_weights_and_log_are_those_of_computed_states(head, fields, folder, tmp_path, capsys):
    target = {"target": {"path": str(folder / "target"), **fields.get("target", {})}}
    batch = {"batch": {"rows": 4, "length": LENGTH, **fields.get("batch", {})}}
    fields = {**fields, **target, **batch}
    trains(folder, tmp_path / "computed", head, capsys, **fields)
    trains(folder, tmp_path / "stored", head, capsys, states=tmp_path / "states", **fields)
    assert_same(weights(tmp_path / "stored"), weights(tmp_path / "computed"))
    assert without_speed(tmp_path / "stored") == without_speed(tmp_path / "computed")
    written = [load_file(tmp_path / run / head["kind"] / "model.safetensors") for run in ("stored", "computed")]
    assert_same(*written)


def test_draft_model_is_distilled_from_stored_states(folder, tmp_path, capsys):
    raw = {**yaml.safe_load((folder / "target" / "config.json").read_text()), "num_hidden_layers": 1}
    for name, more in (("computed", {}), ("stored", {"hidden_states": {"folder": str(tmp_path / "states")}})):
        path = configured(folder, tmp_path / name, MEDUSA, **{"heads": [], "draft": {"config": raw}}, **more)
        assert train(path) == 0, capsys.readouterr().err
    assert_same(weights(tmp_path / "stored"), weights(tmp_path / "computed"))
    assert len(shards(tmp_path / "states")) > 0


def test_no_step_runs_a_layer_of_the_target_and_none_is_in_memory(folder, tmp_path, monkeypatch):
    states = tmp_path / "states"
    built(configured(folder, tmp_path / "first", EAGLE3, states=states)).train()
    before = [path.stat().st_mtime_ns for path in shards(states)]
    run, calls, inside = built(configured(folder, tmp_path / "second", MEDUSA, states=states)), [], []
    blocks = run.target.lm.blocks
    for block in blocks:
        block.register_forward_hook(lambda *_: calls.append(bool(inside)))
    advance = Trainer.advance

    def counted(self, *arguments, **options):
        inside.append(sum(parameter.numel() for parameter in blocks.parameters()))
        try:
            return advance(self, *arguments, **options)
        finally:
            seen.append(inside.pop())

    seen = []
    monkeypatch.setattr(Trainer, "advance", counted)
    run.train()
    assert seen == [0] * STEPS, "parameters of layers in memory in each step"
    assert calls and not any(calls), "validations run them, and steps do not"
    assert [path.stat().st_mtime_ns for path in shards(states)] == before, "a head of fewer taps stores nothing more"


def test_computed_steps_run_every_layer(folder, tmp_path):
    run, calls = built(configured(folder, tmp_path / "run", EAGLE3)), []
    run.target.lm.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    run.dry_run()
    assert calls


@pytest.mark.slow
def test_run_that_computed_them_goes_on_with_stored_ones(folder, tmp_path, capsys):
    trains(folder, tmp_path / "whole", EAGLE3, capsys)
    path = configured(folder, tmp_path / "cut", EAGLE3)
    assert train(path, "--set", "schedule.steps=20") == 0
    folder_of_last = max((tmp_path / "cut" / "checkpoints").iterdir())
    for file in folder_of_last.iterdir():
        file.unlink()
    folder_of_last.rmdir()
    trains(folder, tmp_path / "cut", EAGLE3, capsys, states=tmp_path / "states")
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_killed_while_storing_goes_on_and_reads_no_half_shard(folder, tmp_path, monkeypatch, capsys):
    states, real = tmp_path / "states", store.save_file
    monkeypatch.setattr(making, "SHARD_BYTES", 1)

    def dying(tensors, path):
        real(tensors, path)
        if len(shards(states)) == 2:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            raise KeyboardInterrupt  # which nothing cleans up after, as after SIGKILL

    monkeypatch.setattr(store, "save_file", dying)
    with pytest.raises(KeyboardInterrupt):
        built(configured(folder, tmp_path / "stored", EAGLE3, states=states)).train()
    monkeypatch.setattr(store, "save_file", real)
    whole = shards(states)
    assert len(whole) == 2 and list((states / "shards").glob("*.part-*"))
    before = [path.stat().st_mtime_ns for path in whole]
    run = built(configured(folder, tmp_path / "stored", EAGLE3, states=states))
    assert run.states.folder.num_rows == 8
    run.train()
    assert [path.stat().st_mtime_ns for path in whole] == before
    trains(folder, tmp_path / "computed", EAGLE3, capsys)
    assert_same(weights(tmp_path / "stored"), weights(tmp_path / "computed"))


def test_longer_run_stores_only_the_rows_that_it_adds(folder, tmp_path):
    def run(steps):
        schedule = {"schedule": {"steps": steps, "warmup": 2}}
        return built(configured(folder, tmp_path / "run", EAGLE3, states=tmp_path / "states", **schedule))

    run(4).train()
    longer = run(8)
    assert longer.states.folder.num_rows == 16
    assert longer.states.missing_bytes == 16 * longer.states.folder.shape.row_bytes
    longer.train()
    assert run(8).states.missing_bytes == 0


@pytest.mark.slow
def test_broken_shard_is_named(folder, tmp_path, capsys):
    states = tmp_path / "states"
    trains(folder, tmp_path / "first", EAGLE3, capsys, states=states)
    shard = shards(states)[0]
    shard.write_bytes(shard.read_bytes()[:-7])
    message = refusal(folder, tmp_path / "second", capsys, states=states)
    assert str(shard) in message and f"delete {shard.name}, and its rows are computed again" in message
    shard.unlink()
    trains(folder, tmp_path / "second", EAGLE3, capsys, states=states)


def test_states_of_something_else_are_refused(folder, tmp_path, capsys):
    states = tmp_path / "states"
    trains(folder, tmp_path / "first", MEDUSA, capsys, states=states)
    other = tmp_path / "target"
    lm = load(folder / "target", dtype=torch.float32)
    with torch.no_grad():
        lm.blocks[1].attention.output.weight.mul_(1.5).add_(0.01)
    save(lm, json.loads((folder / "target" / "config.json").read_text()), other, dtype=torch.float32)
    (other / "tokenizer.json").write_bytes((folder / "target" / "tokenizer.json").read_bytes())
    path = str(folder / "target")
    for fields, what in (
        ({"target": {"path": str(other)}}, "states with target"),
        (
            {"target": {"path": path, "dtype": "bfloat16"}, "precision": "bf16"},
            "states with dtype 'float32', and this run has 'bfloat16'",
        ),
        ({"precision": "bf16"}, "states with precision 'fp32', and this run has 'bf16'"),
        ({"batch": {"rows": 4, "length": 16}}, "states with data"),
    ):
        message = refusal(folder, tmp_path / "second", capsys, MEDUSA, states=states, **fields)
        assert what in message and "give another folder, or delete this one" in message, message
    message = refusal(folder, tmp_path / "second", capsys, EAGLE3, states=states)
    assert "it holds the taps [3], and this run reads [1, 2, 3]" in message
    assert "hidden_states.taps" in message
    message = refusal(folder, tmp_path / "second", capsys, states=folder)
    assert f"{folder}: it is not empty and holds no manifest.json" in message
    message = refusal(folder, tmp_path / "second", capsys, states={"folder": str(tmp_path / "new"), "taps": [9]})
    assert "hidden_states.taps: 9, and the target has 3 layers" in message


@pytest.mark.slow
def test_folder_made_for_several_heads_serves_each(folder, tmp_path, capsys):
    states = {"folder": str(tmp_path / "states"), "taps": [1, 2]}
    trains(folder, tmp_path / "medusa", MEDUSA, capsys, states=states)
    run = built(configured(folder, tmp_path / "eagle3", EAGLE3, states=tmp_path / "states"))
    assert run.states.missing_bytes == 0
    run.train()
    trains(folder, tmp_path / "computed", EAGLE3, capsys)
    assert_same(weights(tmp_path / "eagle3"), weights(tmp_path / "computed"))


def test_states_of_other_tokens_are_refused(folder, tmp_path, capsys):
    states = tmp_path / "states"
    trains(folder, tmp_path / "first", MEDUSA, capsys, states=states)
    shard = shards(states)[0]
    tensors = load_file(shard)
    store.save_file({**tensors, "tokens": tensors["tokens"].roll(1)}, shard)
    assert f"{shard}: states of other tokens than row" in refusal(
        folder, tmp_path / "second", capsys, states=states, head=MEDUSA
    )


def test_too_little_room_is_found_before_any_work(folder, tmp_path, capsys, monkeypatch):
    states = tmp_path / "states"
    run = built(configured(folder, tmp_path / "run", EAGLE3, states=states))
    needed, rows = run.states.missing_bytes, STEPS * 4
    assert needed == rows * (3 * LENGTH * run.target.lm.config.hidden_size * 4 + (LENGTH + 1) * 4 + 8)
    limited = {"folder": str(states), "max_bytes": needed - 1}
    message = refusal(folder, tmp_path / "run", capsys, states=limited)
    assert f"hidden_states.max_bytes={needed - 1}: the states of {rows} rows need {needed} bytes" in message
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(making.shutil, "disk_usage", lambda path: usage(9, 9, needed - 5))
    message = refusal(folder, tmp_path / "run", capsys, states=states)
    assert f"rows need {needed} bytes" in message and f"and {needed - 5} are free there; make room" in message
    assert not states.exists() and not (tmp_path / "run").exists()


def test_disk_that_fills_while_storing_leaves_whole_shards(folder, tmp_path, capsys, monkeypatch):
    states, real = tmp_path / "states", store.save_file
    monkeypatch.setattr(making, "SHARD_BYTES", 1)

    def full(tensors, path):
        if len(shards(states)) == 1:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(store, "save_file", full)
    message = refusal(folder, tmp_path / "run", capsys, states=states)
    assert "cannot be written" in message and "make room" in message
    assert [path.suffix for path in (states / "shards").iterdir()] == [".safetensors"]


def test_dry_run_says_what_would_be_stored_and_stores_nothing(folder, tmp_path, capsys):
    path = configured(folder, tmp_path / "run", EAGLE3, states=tmp_path / "states")
    assert train(path, "--dry-run") == 0
    assert "hidden states       1 MiB to store" in capsys.readouterr().out
    assert not (tmp_path / "states").exists()


def test_what_cannot_be_stored_is_refused(folder, tmp_path, capsys):
    target = {"target": {"path": str(folder / "target"), "trained": True}}
    message = refusal(folder, tmp_path / "run", capsys, states=tmp_path / "states", **target)
    assert "hidden_states: the target is trained, so its hidden states change in every step" in message
    sources = {"data": {"sources": [{"kind": "features", "path": str(tmp_path)}]}}
    message = refusal(folder, tmp_path / "run", capsys, states=tmp_path / "states", **sources)
    assert "a source of kind features brings hidden states already" in message


@pytest.mark.slow
def test_two_processes_store_their_shares_and_match_one(folder, tmp_path, capsys):
    states = tmp_path / "states"
    path = configured(folder, tmp_path / "two", EAGLE3, states=states, distributed="ddp", device="cpu")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "paceline", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    trains(folder, tmp_path / "one", EAGLE3, capsys)
    found, wanted = weights(tmp_path / "two"), weights(tmp_path / "one")
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5, msg=name)
    run = built(configured(folder, tmp_path / "again", EAGLE3, states=states))
    assert run.states.missing_bytes == 0 and run.states.folder.num_rows == STEPS * 4
