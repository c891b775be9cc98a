"""Heads that begin with the weights of one that exists, in its own format and in others'."""

import re

import pytest
import torch
from safetensors.torch import load_file

from paceline.api import load
from paceline.api.export import export_head
from paceline.models.loading import save
from paceline.train.config_file import read_train_config
from paceline.train.run import Run
from tests import tiny
from tests.train.configs import log, recipe, train, write_target

PROPHET = {"kind": "prophet", "config": {"depth": 2, "width": 16, "num_heads": 2, "num_kv_heads": 2}}
EAGLE3 = {"kind": "eagle3", "config": {"taps": [1, 2, 1], "draft_vocab_size": 40, "depth": 2}}
FAST = {"schedule": {"steps": 24, "warmup": 2}, "optimiser": {"learning_rate": 0.01, "weight_decay": 0.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target, and a head of each kind that was trained for it."""
    folder = write_target(tmp_path_factory.mktemp("trained-on"))
    assert train(recipe(folder, folder / "first", heads=[PROPHET, EAGLE3], **FAST)) == 0
    return folder


def head_of(path):
    """The only head of a run that is about to begin, and whether it is new."""
    (trained,) = Run(config=read_train_config(path)).task.trained_heads
    return trained.head, trained.is_new


def first_loss(output, name):
    return log(output)[0][f"{name}.loss.1"]


@pytest.mark.parametrize("kind", ["prophet", "eagle3"])
def test_a_head_goes_on_from_its_weights(kind, folder, tmp_path):
    """What it has learned is there in the first step, and its draft vocabulary stays, whatever the data are."""
    path = folder / "first" / kind
    config = recipe(folder, tmp_path / "more", heads=[{"path": str(path)}], **FAST)
    head, is_new = head_of(config)
    assert head.kind == kind and not is_new
    saved, own = load_file(path / "model.safetensors"), head.own_state()
    assert saved.keys() == own.keys()
    for name, tensor in saved.items():
        assert torch.equal(own[name].to(tensor.dtype), tensor), name
    assert all(p.dtype == torch.float32 and p.requires_grad for part in head.own.values() for p in part.parameters())
    assert train(config) == 0
    assert str(path) in (tmp_path / "more" / kind / "README.md").read_text(encoding="utf-8"), "what it began with"
    assert first_loss(tmp_path / "more", kind) < 0.7 * first_loss(folder / "first", kind)


@pytest.mark.parametrize("format", ["speculators_eagle3", "paceline"])
def test_heads_of_other_formats_are_trained_on(format, folder, tmp_path):
    target = load(folder / "target", enforce_eager=True)
    export_head(folder / "first" / "eagle3", tmp_path / "theirs", target=target, format=format)
    mine, _ = head_of(recipe(folder, tmp_path / "a", heads=[{"path": str(folder / "first" / "eagle3")}]))
    theirs, _ = head_of(recipe(folder, tmp_path / "b", heads=[{"path": str(tmp_path / "theirs"), "name": "more"}]))
    for name, tensor in mine.own_state().items():
        assert torch.equal(theirs.own_state()[name], tensor), name
    assert torch.equal(theirs.draft_ids, mine.draft_ids)


def test_options_are_those_of_the_head_unless_others_are_given(folder, tmp_path):
    given = {"path": str(folder / "first" / "prophet"), "config": {"num_states": 3, "anchors": 4}}
    head, _ = head_of(recipe(folder, tmp_path / "run", heads=[given]))
    assert (head.config.num_states, head.config.anchors, head.config.width) == (3, 4, 16)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": {"width": 8}}, r"heads\.0\.config does not fit the weights of .*prophet"),
        ({"config": {"widths": 8}}, r"heads\.0\.config\.widths"),
        ({"kind": "prophet"}, r"heads\.0: give either kind, of a new head, or path, a directory of one"),
        ({"path": None}, r"heads\.0: give either kind, of a new head, or path, a directory of one that is trained on"),
        ({"path": "nowhere"}, "nowhere is no head"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given, said, folder, tmp_path, capsys):
    section = {"path": str(folder / "first" / "prophet")} | given
    assert train(recipe(folder, tmp_path / "run", heads=[section])) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_head_of_another_target_is_refused(folder, tmp_path, capsys):
    model, native = tiny.looping_target(seed=3)
    save(native, {**model.config.to_dict(), "eos_token_id": None}, tmp_path / "other", dtype=torch.float32)
    section = {"path": str(folder / "first" / "prophet")}
    assert train(recipe(folder, tmp_path / "run", heads=[section], target={"path": str(tmp_path / "other")})) == 2
    assert "whose weights are others" in capsys.readouterr().err


def test_a_run_that_would_write_over_what_it_begins_with_is_refused(folder, capsys):
    config = recipe(folder, folder / "first", heads=[{"path": str(folder / "first" / "prophet")}])
    assert train(config, "--fresh") == 2
    assert "heads.0.path" in (error := capsys.readouterr().err) and "give another output" in error
    assert (folder / "first" / "prophet" / "model.safetensors").is_file()
