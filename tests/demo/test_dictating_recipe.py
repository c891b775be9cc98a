"""The recipe of dictation: its made-up speech, what its model begins with, and a run of two steps of each training."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks.speech_cells import windows_of
from paceline.api import generate, load, total
from paceline.speech.model import speech_model
from paceline.train.config_file import read_train_config
from paceline.train.loop.trainer import Trainer
from paceline.train.run import Run


@pytest.fixture
def recipe(monkeypatch):
    """The recipe, made small, whose target is taken to write down what is said."""
    monkeypatch.syspath_prepend("demo/recipes")
    import dictating

    for name, value in {"ROWS": 2, "NUM_SOUNDS": 24, "NUM_MEASURED": 2}.items():
        monkeypatch.setattr(dictating, name, value)
    schedule = dictating.RUN.schedule.model_copy(update={"steps": 2, "warmup": 0})
    monkeypatch.setattr(dictating, "RUN", dictating.RUN.model_copy(update={"schedule": schedule}))
    few = {
        "schedule": {"steps": 2, "warmup": 0},
        "validation": dictating.DISTIL["validation"] | {"every": 2, "prompts": 1, "tokens": 8},
    }
    monkeypatch.setattr(dictating, "DISTIL", dictating.DISTIL | few)

    def command(*words):
        if words[0] == "data":
            said = Path(yaml.safe_load(Path(words[2]).read_text())["sources"][0]["paths"][0])
            lines = [json.loads(line) for line in said.read_text().splitlines()]
            rows = dictating.Speech(dictating.tokenizer().get_vocab(), rows=24, seed=dictating.SEED + 11).batch(
                0, range(24)
            )
            lines = [
                line
                | {"audio": str(said.parent / line["audio"])}
                | {"input_ids": row.tolist(), "loss_mask": learned.int().tolist(), "finish_reason": "stop"}
                for line, row, learned in zip(lines, rows.tokens, rows.learned, strict=True)
            ]
            Path(words[-1]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            assert words[0] == "train"
            Run(config=read_train_config(Path(words[1]))).train()

    monkeypatch.setattr(dictating, "_paceline", command)
    return dictating


def test_a_window_is_written_down_as_syllables_in_words_of_two(recipe):
    made = recipe.tokenizer()
    ids = made.get_vocab()
    tokens = recipe.lesson([0, 1, 2], ids)
    assert made.decode(tokens, skip_special_tokens=True) == " kake ki"
    assert made(" kake ki", add_special_tokens=False).input_ids == tokens[recipe.PROMPT : -1]
    sound = recipe.sound_of([0, 1, 2], noise=0.0, seed=0)
    assert len(sound) == 3 * recipe.SHARE * recipe.RATE
    wide = recipe.tokenizer(7)
    assert len(wide) == len(made) + 7 and wide(" kake ki", add_special_tokens=False).input_ids == tokens[4:-1]


def test_what_is_heard_stands_out_among_the_waves_of_positions(recipe):
    """Else its training learns nothing for hundreds of steps."""
    model = recipe.beginning(recipe.tokenizer().get_vocab())
    task = recipe.SoundToText(model)
    heard: list[torch.Tensor] = []
    model.encoder.register_forward_hook(lambda _, inputs, states: heard.append(states))
    rows = recipe.Speech(recipe.tokenizer().get_vocab(), rows=4, seed=0).batch(0, range(4)).tokens
    with torch.no_grad():
        task.logits(rows, [0, 1, 2, 3])
    heard_parts = heard[0][:, : recipe.LONGEST // 2 * 6]  # all windows have sound there
    assert heard_parts.std(0).mean() > 0.15 * heard_parts.std(), "of windows, beside that of places"


def test_a_row_learns_its_syllables_and_its_end(recipe):
    ids = recipe.tokenizer().get_vocab()
    batch = recipe.Speech(ids, rows=3, seed=1).batch(5, range(3))
    for row, learned in zip(batch.tokens, batch.learned, strict=True):
        own = row[learned].tolist()
        assert own[-1] == ids[recipe.END] and recipe.LONGEST // 2 < len(own) <= recipe.LONGEST + 1
        assert recipe.lesson([(one - recipe.FIRST) % 20 for one in own[:-1]], ids)[recipe.PROMPT :] == own
    again = recipe.Speech(ids, rows=3, seed=1).batch(5, range(1, 2))
    assert torch.equal(again.tokens[0], batch.tokens[1]), "a function of seed, step and row"


@pytest.mark.slow
def test_the_recipe_trains_distils_and_widens_and_resumes(recipe, tmp_path, monkeypatch):
    for phase in recipe.PHASES.values():
        phase(tmp_path)
    narrow, wide = (load(tmp_path / name, dtype=torch.float32) for name in ("target", f"target-{recipe.VOCAB}"))
    draft = load(tmp_path / f"draft-{recipe.VOCAB}", dtype=torch.float32)
    assert wide.lm.vocab_size == draft.lm.vocab_size == recipe.VOCAB and draft.lm.num_layers == 2
    found = {}
    for name, target, drafter in (("narrow", narrow, None), ("wide", wide, None), ("drafted", wide, draft)):
        windows = windows_of(speech_model(target), sorted((tmp_path / "measured").glob("*.wav")))
        found[name] = generate(
            target, windows.prompts(slice(2)), drafter=drafter, max_tokens=12, temperature=0, ignore_eos=True
        )
    text = {name: [one.token_ids for one in results] for name, results in found.items()}
    assert text["drafted"] == text["wide"], "a draft changes nothing"
    assert total(found["drafted"]).mean_acceptance_length > 1
    said = {name: [one.text for one in results] for name, results in found.items()}
    assert said["wide"] == said["narrow"], "its function is kept"
    monkeypatch.setattr(Trainer, "advance", lambda *_: pytest.fail("a run that is done trains no further"))
    shutil.rmtree(tmp_path / "target")
    recipe.train(tmp_path)
    assert (tmp_path / "target" / "model.safetensors").exists()
