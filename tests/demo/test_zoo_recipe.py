"""The recipe of the zoo: every head that it names can be trained, and its steps are chosen once."""

from pathlib import Path

import pytest
import torch
import yaml

from demo.recipes import zoo
from paceline.api import embedded_pair, load
from paceline.draft_heads import DRAFT_HEADS
from paceline.train.config import TrainConfig
from paceline.train.setup import build_head

ZOO = yaml.safe_load(Path("demo/recipes/zoo.yaml").read_text(encoding="utf-8"))
LARGEST = 2_000_000  # bytes in bfloat16, of a head that the package may hold
LARGER = {"hydra", "mlp_speculator"}  # a residual matrix per depth; an embedding of its own


@pytest.mark.parametrize("name", ZOO["heads"])
def test_every_head_fits_the_embedded_target(name, tmp_path):
    config = TrainConfig.model_validate(zoo.recipe(ZOO, name, tmp_path, steps=7))
    assert config.schedule.steps == 7 and config.output == tmp_path / name
    assert config.data.sources[0].paths == (str(tmp_path / "own.npy"),)
    target = load(embedded_pair()[0], dtype="bfloat16", device="cpu").lm
    [section] = config.heads
    head = build_head(section, target, seed=0, index=0)
    assert config.hidden_states is not None and set(head.taps) <= set(config.hidden_states.taps)
    trained = sum(tensor.numel() for tensor in head.own_state().values() if tensor.dtype == torch.float32)
    assert section.directory == name and (2 * trained < LARGEST) == (name not in LARGER)


def test_a_recipe_leaves_what_all_share_as_it_was(tmp_path):
    before = yaml.safe_dump(ZOO)
    for name in ZOO["heads"]:
        zoo.recipe(ZOO, name, tmp_path, steps=7)
    assert yaml.safe_dump(ZOO) == before
    known = {one["head"]["kind"] for one in ZOO["heads"].values()}
    assert known <= set(DRAFT_HEADS)


def test_a_budget_holds_all_steps_and_validations():
    assert zoo.steps_within(600, 1.0, 30.0, 1000) == 570, "one validation, after the last step"
    assert zoo.steps_within(600, 1.0, 30.0, 100) == 450, "five, the last after these steps"
    for step, validation, every in ((0.37, 12.0, 90), (1.9, 0.0, 7), (0.02, 300.0, 10)):
        steps = zoo.steps_within(900, step, validation, every)
        spent = [count * step + -(-count // every) * validation for count in (steps, steps + 1)]
        assert spent[0] <= 900 < spent[1]
    with pytest.raises(SystemExit, match="--minutes 1: a step and a validation take 61 s; give more"):
        zoo.steps_within(60, 1.0, 60.0, 100)


def test_outputs_of_another_number_of_prompts_are_not_taken(tmp_path):
    (tmp_path / zoo.OWN).touch()
    (tmp_path / zoo.WRITTEN).write_text("{}\n{}\n", encoding="utf-8")
    zoo.generate_outputs(tmp_path, 2)
    with pytest.raises(SystemExit, match=f"--num-prompts 3: {tmp_path} has outputs for 2; give that"):
        zoo.generate_outputs(tmp_path, 3)


def test_steps_are_chosen_once_and_for_one_budget(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "medusa"
    folder.mkdir()
    raw = zoo.recipe(ZOO, "medusa", tmp_path, steps=7)
    every = raw["validation"]["every"]
    monkeypatch.setattr(zoo, "measure", lambda config: (0.5, every * 0.1))
    assert zoo.choose_steps(folder, raw, minutes=40.0) == 4000, "40 minutes of 0.5 s and a share of 0.1 s of validation"
    monkeypatch.setattr(zoo, "measure", lambda config: pytest.fail("it was measured before"))
    assert zoo.choose_steps(folder, raw, minutes=40.0) == 4000
    with pytest.raises(SystemExit, match="was chosen for 40"):
        zoo.choose_steps(folder, raw, minutes=10.0)
    assert "medusa: 4000 steps of 0.500 s" in capsys.readouterr().out
