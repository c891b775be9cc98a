"""The head that is chosen for a budget: the rule, by hand-made measurements, and the command."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from paceline.bench.raw import read_records
from paceline.cli import run
from paceline.train import choice, step_costs
from paceline.train.choice import Candidate, Probe, acceptance_rate, choose, estimate, expected_length
from paceline.train.config_file import read_train_config
from paceline.train.init_weights import random_model
from tests import tiny
from tests.train import pairs
from tests.train.configs import recipe, train, write_target

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("train"))


def judged(kind, *, step=1.0, validation=10.0, share=0.1, budget=1000.0, parameters=100, tokens=choice.PRIOR_TOKENS):
    costs = [1 + share * k for k in range(1, 9)]
    probe = Probe(step=step, validation=validation, num_parameters=parameters, costs=costs)
    return estimate(Candidate(name=kind, kind=kind, config={}), probe, budget=budget, every=100, tokens_per_step=tokens)


def test_steps_are_those_that_fit_with_their_validations():
    assert judged("prophet").steps == int((1000 - 10) / 1.1)
    with pytest.raises(ValueError, match=r"--budget 5 s: a step of prophet takes 1.00 s and a validation 10.00 s"):
        judged("prophet", budget=5)


def test_expected_length_follows_the_measured_curve():
    tokens = choice.PRIOR_TOKENS
    for kind, curve in choice.PRIORS.items():
        (_, first), (start, low), (end, high), *_ = curve
        assert expected_length(kind, 0) == first == 1.0
        assert expected_length(kind, start * tokens) == low
        assert expected_length(kind, (start + end) // 2 * tokens) == pytest.approx((low + high) / 2)
        assert expected_length(kind, 99_999 * tokens) == curve[-1][1], "nothing is known beyond the last point"


def test_steps_of_more_tokens_teach_more():
    once, twice = (judged("prophet", tokens=count * choice.PRIOR_TOKENS) for count in (1, 2))
    assert twice.steps == once.steps and twice.tokens_per_step > once.tokens_per_step
    assert twice.tokens_per_step == expected_length("prophet", 2 * once.steps * choice.PRIOR_TOKENS)


def test_priors_are_what_the_zoo_measured():
    files = ("zoo-validation.jsonl", "zoo-later-validation.jsonl")
    records = [one for name in files for one in read_records(ROOT / "docs/benchmarks" / name)]
    cells = [one for one in records if one["kind"] == "validation"]
    found = {one["cell"]["head"]: one for one in cells if one["cell"]["temperature"] == 0}
    for kind, curve in choice.PRIORS.items():
        record = found[kind]
        assert record["tokens_per_training_step"] == choice.PRIOR_TOKENS and record["depth"] == choice.PRIOR_K
        steps, lengths = zip(*curve[1:], strict=True)
        assert list(steps) == record["curve"]["steps"]
        assert lengths == pytest.approx(record["curve"]["validated"], abs=0.005)


def test_acceptance_rate_gives_the_length_again():
    for length in (1.2, 2.5, 5.9):
        rate = acceptance_rate(length, 5)
        assert sum(rate**at for at in range(6)) == pytest.approx(length, rel=1e-9)


def test_speed_up_is_that_of_the_best_length():
    found = judged("early_exit", share=0.1)
    rate = acceptance_rate(found.tokens_per_step, choice.PRIOR_K)
    by_hand = {k: sum(rate**at for at in range(k + 1)) / (1 + 0.1 * k) for k in range(1, 9)}
    assert found.num_draft_tokens == max(by_hand, key=by_hand.__getitem__)
    assert found.speed_up == pytest.approx(max(by_hand.values()), rel=1e-6)


def test_choice_weighs_acceptance_against_the_cost_of_drafts(monkeypatch):
    curves = {"early_exit": ((0, 1.0), (400, 3.1)), "prophet": ((0, 1.0), (400, 2.7))}
    monkeypatch.setattr(choice, "PRIORS", curves)
    exit_head, prophet = judged("early_exit", share=0.2), judged("prophet", share=0.02)
    assert exit_head.tokens_per_step > prophet.tokens_per_step and choose([exit_head, prophet]) is prophet
    cheap = judged("early_exit", share=0.02)
    assert choose([prophet, cheap]) is cheap and choose([cheap, prophet]) is cheap
    slow = judged("early_exit", share=0.02, step=100.0)
    assert choose([slow, prophet]) is prophet, "few steps fit its budget"
    smaller = judged("prophet", share=0.02, parameters=50)
    assert choose([prophet, smaller]) is smaller and choose([smaller, prophet]) is smaller


def native(layers):
    return tiny.native(tiny.llama(1, dtype=torch.float32, num_hidden_layers=layers))


def test_candidates_have_the_proportions_of_the_prior():
    """On few layers early exits of two sizes are one, and on a single one there is none. Muon does not train EAGLE."""
    by_layers = {
        layers: {one.name: one.config for one in choice.candidates(native(layers), optimiser="adamw")}
        for layers in (1, 2, 8, 24)
    }
    exits = {"early_exit", "early_exit_quarter"}
    missing = {layers: set(choice.PRIORS) - set(found) for layers, found in by_layers.items()}
    assert missing == {1: exits, 2: {"early_exit_quarter"}, 8: set(), 24: set()}
    assert [by_layers[24][name]["exit_layer"] for name in sorted(exits)] == [3, 6]
    assert {one.name for one in choice.candidates(native(8), optimiser="muon")} == set(choice.PRIORS) - {"eagle"}
    found = by_layers[8]
    assert found["prophet"]["width"] == 16 and found["eagle3"]["taps"] == [2, 5, 8]
    assert found["eagle3"]["draft_vocab_size"] == found["medusa"]["draft_vocab_size"] == tiny.VOCAB // 2


def test_heads_have_a_draft_vocabulary_where_the_rows_of_the_target_s_lm_head_can_be_read_alone():
    target = native(8)
    sizes = []
    for generated in (None, tiny.VOCAB - 1):
        target.num_generated = generated
        found = {one.name: one.config for one in choice.candidates(target, optimiser="adamw")}
        sizes.append([found[name].get("draft_vocab_size") for name in ("mtp", "eagle", "eagle3")])
    assert sizes == [[tiny.VOCAB // 2] * 3, [None, None, tiny.VOCAB // 2]]


def test_candidates_for_the_embedded_target_are_those_of_the_zoo():
    folder = ROOT / "demo/src/paceline_demo/target"
    target = random_model(json.loads((folder / "config.json").read_text(encoding="utf-8")), 0)
    zoo = yaml.safe_load((ROOT / "demo/recipes/zoo.yaml").read_text(encoding="utf-8"))["heads"]
    for one in choice.candidates(target, optimiser="adamw"):
        assert {"kind": one.kind, "config": one.config} == zoo[one.name]["head"]


def base(root, output, **fields):
    path = recipe(root, output, **fields)
    raw = yaml.safe_load(path.read_text())
    del raw["heads"], raw["schedule"]["steps"]
    path.write_text(yaml.safe_dump({**raw, **fields}))
    return path


@pytest.fixture
def few(monkeypatch):
    """Two candidates, and as few rounds as may be."""
    monkeypatch.setattr(choice, "PRIORS", {name: choice.PRIORS[name] for name in ("early_exit", "prophet")})
    monkeypatch.setattr(step_costs, "SECONDS", 0.0)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("stored", [False, True])
def test_command_writes_a_configuration_that_trains(stored, folder, tmp_path, capsys):
    """Also where steps are timed that read stored hidden states."""
    chosen = tmp_path / "chosen.yaml"
    states = {"hidden_states": {"folder": str(tmp_path / "states")}} if stored else {}
    path = base(folder, tmp_path / "run", **states)
    assert run(["train", "auto", str(path), "--budget", "20s", "--output", str(chosen)]) == 0
    shown = capsys.readouterr().out
    assert all(title in shown for title in ("step cost", "expected", "early_exit", "prophet", "chosen: "))
    assert "on the embedded target (docs/zoo.md)" in shown and f"next: paceline train {chosen}" in shown
    assert chosen.read_text().startswith("# paceline train auto, budget 20s:\n# head ")
    config = read_train_config(chosen)
    assert config.heads[0].kind in ("early_exit", "prophet") and config.schedule.steps >= 1
    assert not (tmp_path / "run").exists(), "nothing was trained"
    assert not list(tmp_path.glob("*states*")), "each candidate reads other states, in a folder that is gone"
    assert train(chosen, "--set", "schedule.steps=2") == 0
    assert (tmp_path / "run" / config.heads[0].kind / "config.json").exists()
    assert (tmp_path / "states" / "manifest.json").exists() == stored


@pytest.mark.usefixtures("few")
def test_heads_of_an_encoder_decoder_are_chosen_too(tmp_path, capsys):
    """Its steps are timed after a source."""
    path, chosen = pairs.recipe(tmp_path), tmp_path / "chosen.yaml"
    raw = yaml.safe_load(path.read_text())
    del raw["draft"], raw["schedule"]["steps"]
    path.write_text(yaml.safe_dump(raw))
    assert run(["train", "auto", str(path), "--budget", "60s", "--output", str(chosen)]) == 0
    assert "chosen: " in capsys.readouterr().out and len(read_train_config(chosen).heads) == 1


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, ["--budget", "soon"], "--budget soon: give seconds, minutes or hours above 0, such as 90s, 40m or 8h"),
        ({"heads": [{"kind": "medusa"}]}, [], "heads: it is what `paceline train auto` chooses; leave it out"),
        ({"schedule": {"steps": 5}}, [], "schedule.steps: it is what `paceline train auto` chooses"),
        ({"target": {"config": {}}}, [], "target: heads are chosen for a frozen target; give its path"),
    ],
    ids=["budget", "heads", "steps", "target"],
)
def test_what_does_not_fit_is_refused(fields, options, message, folder, tmp_path, capsys):
    path = base(folder, tmp_path / "run", **fields)
    options = [*(options or ["--budget", "1m"]), "--output", str(tmp_path / "chosen.yaml")]
    assert run(["train", "auto", str(path), *options]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "chosen.yaml").exists()
