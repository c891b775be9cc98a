"""Draft models trained to draft some tokens: which, that validations know it, what is written, and refusals."""

import json

import numpy as np
import pytest
import torch
import yaml

from paceline.api import Engine, SamplingParams, load, total
from paceline.draft_heads.files import load_head
from paceline.models.draft_vocab import FILE, IDS
from paceline.models.from_transformers import from_transformers
from paceline.text.loops import is_looping
from paceline.train.config import DraftSection
from paceline.train.config_file import read_train_config
from paceline.train.run import Run
from paceline.train.setup import LoadedModel, build_draft
from paceline.train.validation import draft_model_of
from tests import tiny
from tests.models.encoder_decoders import transformers_model
from tests.train.configs import recipe, train, write_target
from tests.train.pairs import recipe as paired_recipe
from tests.train.pairs import teacher

SIZE = 40


@pytest.fixture
def folder(tmp_path):
    return write_target(tmp_path)


def distillation(folder, output, size=SIZE, **fields):
    raw = {**yaml.safe_load((folder / "target" / "config.json").read_text()), "num_hidden_layers": 1}
    chosen = {"draft": {"config": raw, "vocab_size": size}, "heads": []}
    return recipe(folder, output, **chosen, optimiser={"learning_rate": 0.005}, **fields)


def test_the_most_frequent_tokens_are_drafted_and_validations_know_it(folder, tmp_path):
    path = distillation(folder, tmp_path / "run", schedule={"steps": 40})
    assert train(path) == 0
    draft = tmp_path / "run" / "draft"
    counts = np.bincount(np.load(folder / "train.npy").ravel(), minlength=tiny.VOCAB)
    wanted = sorted(sorted(range(tiny.VOCAB), key=lambda token: (-counts[token], token))[:SIZE])
    assert json.loads((draft / FILE).read_text())[IDS] == wanted
    assert load(draft).lm.vocab_size == tiny.VOCAB, "the checkpoint is whole"
    run = Run(config=read_train_config(path))
    assert draft_model_of(run.task).lm.vocab_size == SIZE
    engine = Engine(load(folder / "target"), drafter=draft, num_draft_tokens=3, batch_size=8)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    results = [one for one in engine.generate(run.data.prompts(8, 4).tolist(), params) if not is_looping(one.tokens)]
    saved = json.loads((max((tmp_path / "run" / "best").iterdir()) / "meta.json").read_text())["measures"]
    length = total(results).mean_acceptance_length
    assert length == pytest.approx(saved["validation.draft.greedy.tokens_per_step"], rel=0.05) and length > 1.2


@pytest.mark.parametrize("kind", ["eagle", "mtp", "prophet", "early_exit"])
def test_heads_draft_the_tokens_that_are_most_frequent(kind, folder, tmp_path):
    sizes = {"exit_layer": 1} if kind == "early_exit" else {"depth": 2}
    head = {"kind": kind, "config": {**sizes, "draft_vocab_size": SIZE}}
    path = recipe(folder, tmp_path / "run", heads=[head], schedule={"steps": 2, "warmup": 0})
    counts = np.bincount(np.load(folder / "train.npy").ravel(), minlength=tiny.VOCAB)
    wanted = sorted(sorted(range(tiny.VOCAB), key=lambda token: (-counts[token], token))[:SIZE])
    assert train(path) == 0
    written = load_head(tmp_path / "run" / kind, load(folder / "target").lm)
    assert written.draft_ids.tolist() == wanted


def test_heads_of_a_target_that_is_trained_too_read_its_rows_as_they_are(folder, tmp_path):
    target = {"path": str(folder / "target"), "trained": True, "weight": 1.0}
    head = {"kind": "mtp", "config": {"depth": 2, "draft_vocab_size": 50}, "weight": 0.5}
    steps, rate = {"steps": 40, "warmup": 4}, {"learning_rate": 0.01}
    path = recipe(folder, tmp_path / "run", target=target, heads=[head], schedule=steps, optimiser=rate)
    assert train(path) == 0
    target = load(tmp_path / "run" / "target")
    written = load_head(tmp_path / "run" / "mtp", target.lm)
    own = (target.lm.embed if target.lm.head is None else target.lm.head).weight
    assert torch.equal(written.drafting_decoder.head.weight, own[written.draft_ids])
    engine = Engine(target, drafter=tmp_path / "run" / "mtp", num_draft_tokens=3)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    assert engine.generate([[5, 9, 2]], params)[0].stats.mean_acceptance_length > 1.2


@pytest.mark.slow
def test_a_draft_that_shares_the_encoder_has_one_too(tmp_path):
    validation = {"every": 2, "prompts": 2, "tokens": 8, "k": 2}
    fields = {"draft": {"layers": [0, -1], "vocab_size": 56}, "schedule": {"steps": 2, "warmup": 0}}
    assert train(paired_recipe(tmp_path, validation=validation, **fields)) == 0
    target, draft = load(teacher("bart")), load(tmp_path / "run" / "draft")
    assert draft.draft_ids is not None and len(draft.draft_ids) == 56
    assert set(target.eos) <= set(draft.draft_ids.tolist()), "every output has its end"
    params = SamplingParams(temperature=0.0, max_tokens=12)
    plain, drafted = (
        Engine(target, drafter=drafter, num_draft_tokens=count).generate(["one two three"], params)
        for drafter, count in ((None, "auto"), (draft, 3))
    )
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert total(drafted).mean_acceptance_length > 1


def test_more_tokens_than_there_are_and_another_number_on_resuming_are_refused(folder, tmp_path, capsys):
    assert train(distillation(folder, tmp_path / "run", size=tiny.VOCAB + 1)) == 2
    assert f"draft.vocab_size={tiny.VOCAB + 1}: the target has {tiny.VOCAB} tokens" in capsys.readouterr().err
    ended = {"schedule": {"steps": 2, "warmup": 0}, "checkpoints": {"every": 1}}
    assert train(distillation(folder, tmp_path / "other", **ended)) == 0
    assert train(distillation(folder, tmp_path / "other", size=SIZE + 1, **ended)) == 2
    assert "draft.vocab_size" in capsys.readouterr().err


def test_all_tokens_are_drafted_without_a_size(folder, tmp_path):
    run = Run(config=read_train_config(distillation(folder, tmp_path / "run", size=None)))
    assert draft_model_of(run.task).lm is run.task.draft and torch.is_tensor(run.task.draft.embed.weight)


def test_a_target_that_never_generates_some_tokens_is_refused_before_any_work():
    target = from_transformers(transformers_model("bart"))
    target.num_generated = 30
    section, found = DraftSection(layers=(0, -1), vocab_size=12), LoadedModel(lm=target, raw={}, folder=None)
    with pytest.raises(ValueError, match="vocab_size=12: the target never generates all of its"):
        build_draft(section, found, seed=0, device=torch.device("cpu"))
