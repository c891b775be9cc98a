"""The command: a whole run from a file, what it says of mistakes, and that a killed one goes on."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from paceline.cli.app import read_options
from paceline.cli.commands.generate import Generate
from paceline.core.sampling import Sampling
from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.files import load_head
from paceline.drafters import DRAFTERS
from paceline.models.loading import load
from paceline.train.acceptance import measure_acceptance
from paceline.train.loop.config import ScheduleSection
from paceline.train.loop.schedule import learning_rate_factor
from tests import tiny
from tests.train.configs import log, recipe, train, write_target
from tests.train.heads import LastConfig, LastDrafter, LastHead
from tests.train.synthetic import corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


@pytest.fixture(autouse=True)
def last_head(monkeypatch):
    monkeypatch.setitem(DRAFT_HEADS.entries, "last", "tests.train.heads:LastHead")
    monkeypatch.setitem(DRAFTERS.entries, "last", "tests.train.heads:LastDrafter")


def scratch(root, output, **fields):
    """A target alone, small and quick."""
    raw = tiny.llama(num_hidden_layers=1).config.to_dict()
    target = {"config": {name: raw[name] for name in raw if name not in ("dtype", "transformers_version")}}
    return recipe(root, output, target=target, heads=[], **fields)


def test_a_head_learns_to_draft_and_is_written_with_its_card(folder, tmp_path, capsys):
    output = tmp_path / "run"
    path = recipe(folder, output, schedule={"steps": 60, "warmup": 2}, card={"license": "mit", "note": "Made up."})
    assert train(path) == 0
    said = capsys.readouterr().out
    assert f"trained into {output}" in said and "validation.last.greedy.tokens_per_step" in said
    command = said.splitlines()[-1].removeprefix("next: ")
    parsed = read_options(shlex.split(command)[1:])
    assert isinstance(parsed, Generate)
    assert (parsed.model.model, parsed.drafting.draft) == (str(folder / "target"), str(output / "last"))
    head = load_head(output / "last", load(folder / "target"))
    assert head.kind == "last" and head.config.depth == 2
    card = (output / "last" / "README.md").read_text()
    assert "tokens per step, greedy, k = 3 (95 % interval)" in card and "held_out.npy" in card
    opening, figures, data = (card.index(text) for text in (f"$ {command}", "## Figures", "## Data"))
    assert opening < card.index(f"drafter={str(output / 'last')!r}") < figures < data
    assert re.search(r"no other model: [\d.]+ tokens per step, greedy, at validation", card[:opening])
    assert "learning_rate: 0.3" in card and "license: mit" in card and "## Data\n\nMade up.\n\n" in card
    target = load(folder / "target")
    ideal = LastHead(LastConfig(), tiny.VOCAB)
    ideal.table.weight.data = target.causal(torch.arange(tiny.VOCAB)[:, None]).logits[:, 0]
    prompts = np.arange(8)[:, None] + np.arange(4)
    lengths = [
        measure_acceptance(
            target, LastDrafter(head=one), prompts, num_tokens=16, num_draft_tokens=3, sampling=Sampling()
        ).summary.mean_acceptance_length
        for one in (ideal, head)
    ]
    assert lengths[0] == 4.0 and lengths[1] > 2.5, "the target's own law of the last token is always right"
    losses = [line["last.loss.1"] for line in log(output) if "last.loss.1" in line]
    assert losses[-1] < 0.5 * losses[0]


def test_a_target_from_scratch_is_written_as_a_model(folder, tmp_path):
    output = tmp_path / "run"
    assert train(scratch(folder, output, optimiser={"learning_rate": 0.02})) == 0
    model = load(output / "target")
    assert model.num_layers == 1 and model.vocab_size == tiny.VOCAB
    best = max((output / "best").iterdir())
    kept = load_file(best / "weights.safetensors")
    assert torch.equal(model.embed.weight, kept["model.embed.weight"])
    losses = [line["loss"] for line in log(output) if "loss" in line]
    assert losses[-1] < losses[0]


def test_a_draft_model_learns_from_the_target(folder, tmp_path):
    output = tmp_path / "run"
    raw = {**yaml.safe_load((folder / "target" / "config.json").read_text()), "num_hidden_layers": 1}
    fields = {"heads": [], "draft": {"config": raw}, "schedule": {"steps": 40}, "optimiser": {"learning_rate": 0.005}}
    assert train(recipe(folder, output, **fields)) == 0
    assert load(output / "draft").num_layers == 1
    assert (output / "draft" / "tokenizer.json").read_text() == (folder / "target" / "tokenizer.json").read_text()
    accepted = [line["draft.acceptance"] for line in log(output) if "draft.acceptance" in line]
    assert accepted[-1] > accepted[0]


def test_a_target_and_a_head_learn_together(folder, tmp_path):
    output = tmp_path / "run"
    target = {"path": str(folder / "target"), "trained": True}
    assert train(recipe(folder, output, target=target, optimiser={"learning_rate": 0.01})) == 0
    load_head(output / "last", load(output / "target"))
    with pytest.raises(ValueError, match="is a head of"):
        load_head(output / "last", load(folder / "target"))


def test_dry_run_prints_the_requirements_and_writes_nothing(folder, tmp_path, capsys):
    output = tmp_path / "run"
    assert train(recipe(folder, output), "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"trained parameters  {tiny.VOCAB**2:,}" in said and "tokens per step     96 over 1" in said
    assert "first loss" in said and "validation.last.greedy" in said and "nothing was written" in said
    assert not output.exists()


def test_the_dumped_configuration_is_the_same_run(folder, tmp_path, capsys):
    path = recipe(folder, tmp_path / "run")
    assert train(path, "--set", "schedule.steps=7", "--set", "heads.0.weight=2", "--dump-config") == 0
    dumped = capsys.readouterr().out
    again = tmp_path / "again.yaml"
    again.write_text(dumped)
    assert train(again, "--dump-config") == 0
    assert capsys.readouterr().out == dumped
    values = yaml.safe_load(dumped)
    assert values["schedule"]["steps"] == 7 and values["heads"][0]["weight"] == 2.0
    assert values["optimiser"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "schedule.steps=0"], ["schedule.steps=0: Input should be greater than 0"]),
        (["--set", "shedule.steps=5"], ["shedule: Extra inputs are not permitted"]),
        (["--set", "loss.terms={l2: 1}"], ["loss: unknown terms ['l2']; give some of text, argmax"]),
        (["--set", "schedule.steps=0", "--set", "seed=-1"], ["schedule.steps=0:", "seed=-1:"]),
        (["--set", "steps"], ["--set steps: write it as section.field=value"]),
        (["--set", "heads.3.weight=1"], ["--set heads.3.weight=1: 3 is no entry of a list of 1"]),
        (["--set", "heads=[]"], ["nothing to train: give heads, a draft, or target.trained: true"]),
        (["--set", "heads.0.config.deep=2"], ["heads.0.config.deep=2: Extra inputs are not permitted"]),
        (["--set", "heads.0.kind=oracle"], ["unknown head 'oracle'; known:"]),
        (["--set", "target.path=/nowhere"], ["no such model directory: /nowhere"]),
        (["--set", "batch.rows=5", "--set", "batch.accumulate=2"], ["batch.rows 5 is no multiple of 2"]),
        (["--set", "precision=fp32", "--set", "target.dtype=bfloat16"], ["precision fp32 and target.dtype bfloat16"]),
        (["--set", "batch.length=1000"], ["batch.length=1000: the target reads 128 tokens at most"]),
        (["--set", "distributed=ddp"], ["distributed=ddp in a single process: start it by `torchrun"]),
        (["--set", "loggers=[wandb]"], ["loggers: wandb is not installed", "pip install 'paceline[train-loggers]'"]),
        (["--resume"], ["holds no checkpoint"]),
    ],
)
def test_mistakes_are_named_before_any_training(options, said, folder, tmp_path, capsys):
    output = tmp_path / "run"
    assert train(recipe(folder, output), *options) == 2
    error = capsys.readouterr().err
    for part in said:
        assert part in error
    assert "Traceback" not in error and not (output / "log.jsonl").exists()


@pytest.mark.parametrize("text", ["target: [", "- a", ""])
def test_a_file_that_is_no_mapping_is_refused(text, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert train(path) == 2 and "recipe.yaml" in capsys.readouterr().err


def test_previous_run_of_another_kind_is_not_resumed(folder, tmp_path, capsys):
    output = tmp_path / "run"
    path = recipe(folder, output)
    assert train(path) == 0
    assert train(path, "--set", "optimiser.learning_rate=0.1") == 2
    assert "began with optimiser.learning_rate=0.3 and now has 0.1" in capsys.readouterr().err
    before = log(output)
    assert train(path, "--resume", "--set", "log_every=3") == 0, "how often something is logged is free"
    assert log(output) == before
    assert train(path, "--fresh", "--set", "optimiser.learning_rate=0.1") == 0
    assert (output / "former-1" / "checkpoints").is_dir()
    assert len(log(output)) == len(before) and log(output) != before


def test_finished_run_says_how_to_be_lengthened_and_is(folder, tmp_path, capsys, caplog):
    output = tmp_path / "run"
    path = recipe(folder, output)
    assert train(path) == 0 and "to lengthen the run" not in capsys.readouterr().out
    before = log(output)
    listed = (output / "data_documents.jsonl").read_text()
    assert listed.count("\n") == 2
    with (output / "log.jsonl").open("a") as file:
        file.write('{"step": 2')  # torn
    assert train(path) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        said[-2] == f"all 20 steps were done before; to lengthen the run: paceline train {path} --set schedule.steps=40"
    )
    assert train(*shlex.split(said[-2])[-3:]) == 0
    assert "to lengthen the run" not in capsys.readouterr().out
    (note,) = [record.getMessage() for record in caplog.records if "lengthened" in record.getMessage()]
    assert "from 20 to 40 steps: it goes on after step 20" in note
    lines = log(output)
    assert lines[: len(before)] == before and lines[-1]["step"] == 40
    assert lines[len(before)] == {"step": 20, "schedule.steps": 40}
    rates = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    schedule = ScheduleSection(steps=40, warmup=2)
    assert rates[21] == pytest.approx(0.3 * learning_rate_factor(schedule, 20)) and rates[21] > rates[20]
    assert "was lengthened after step 20" in (output / "last" / "README.md").read_text()
    assert (output / "data_documents.jsonl").read_text() == listed
    assert train(path) == 2
    assert "began with schedule.steps=40 and now has 20" in capsys.readouterr().err


def test_run_with_changed_data_is_not_resumed(folder, tmp_path, capsys):
    output = tmp_path / "run"
    own = tmp_path / "train.npy"
    np.save(own, corpus(0))
    path = recipe(folder, output)
    words = ["--set", f"data.sources.0.paths=[{own}]"]
    assert train(path, *words) == 0
    np.save(own, corpus(5))
    assert train(path, *words) == 2
    assert "is not what" in capsys.readouterr().err


def start(path):
    command = [sys.executable, "-m", "paceline", "train", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def without_speed(output):
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in log(output)]


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([(signal.SIGKILL, 30)], id="killed"),
        pytest.param([(signal.SIGKILL, 3), (signal.SIGKILL, 75)], id="killed twice", marks=pytest.mark.slow),
        pytest.param([(signal.SIGTERM, 50)], id="stopped", marks=pytest.mark.slow),
    ],
)
def test_killed_run_has_the_losses_of_an_uninterrupted_one(cuts, folder, tmp_path):
    fields = {"schedule": {"steps": 120}, "optimiser": {"learning_rate": 0.01, "dropout": 0.1}}
    whole, output = tmp_path / "whole", tmp_path / "cut"
    assert train(scratch(folder, whole, **fields)) == 0
    path = scratch(folder, output, **fields)
    for ending, least in cuts:
        process = start(path)
        limit = time.monotonic() + 90
        while process.poll() is None and not (Path(output / "log.jsonl").exists() and len(log_safe(output)) >= least):
            assert time.monotonic() < limit, "it never got there"
            time.sleep(0.02)
        process.send_signal(ending)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == (130 if ending == signal.SIGTERM else -signal.SIGKILL), said
        assert len(log_safe(output)) < len(log(whole)), "stopped in the middle"
        if ending == signal.SIGTERM:
            assert "stopped after step" in said and "the same command resumes from it" in said
    assert train(path) == 0
    assert without_speed(output) == without_speed(whole)
    ends = [load_file(max((run / "checkpoints").iterdir()) / "state.safetensors") for run in (whole, output)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def log_safe(output):
    return (output / "log.jsonl").read_bytes().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_torchrun_shares_a_run(name, folder, tmp_path):
    """Judged by what was written: ranks on gloo may abort when they exit."""
    fields = {"schedule": {"steps": 6}, "optimiser": {"learning_rate": 0.01}}
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(scratch(folder, one, **fields)) == 0
    path = scratch(folder, two, **fields, distributed=name, device="cpu")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launcher, "-m", "paceline", "train", str(path)], capture_output=True)
    losses = [[line["loss"] for line in log(output) if "loss" in line] for output in (one, two)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5), done.stderr[-2000:]
    models = [load(output / "target") for output in (one, two)]
    for name, parameter in models[0].named_parameters():
        torch.testing.assert_close(models[1].get_parameter(name), parameter, rtol=0, atol=1e-5)
