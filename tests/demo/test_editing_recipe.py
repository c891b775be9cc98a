"""The recipe of the target that edits: what it begins with, what it learns from, and a run of two steps."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from demo.recipes.copier import copier
from demo.recipes.edit_batches import Edits, EditTokens, draw_edits, pieces_by_task, tokenized
from paceline.api import embedded_pair, load
from paceline.bench.editing import FULL, TASKS
from paceline.bench.suites import edits as suite_edits
from paceline.train.data import HELD_OUT, standard_library
from paceline.train.loop.trainer import Trainer

EMBEDDED = embedded_pair()[0]
TOKENIZER = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
TOKENS = [TOKENIZER.id_to_token(at) for at in range(TOKENIZER.get_vocab_size())]
LAYOUT = json.loads((EMBEDDED / "config.json").read_text()) | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "rope_theta": 1e6,
}
CHOSEN = {"heapq.py", "queue.py", "ast.py", "inspect.py", "tarfile.py", "pydoc/typesmapping"}


@pytest.fixture(scope="module")
def files():
    found = [file for file in standard_library() if file.name in CHOSEN]
    assert len(found) == len(CHOSEN)
    return found


@pytest.fixture
def recipe(monkeypatch, files):
    """The recipe, made small, on a few files."""
    monkeypatch.syspath_prepend("demo/recipes")
    import editing

    short, full = editing.STAGES
    stages = (replace(short, steps=1, rows=2, num_edits=6), replace(full, steps=1, rows=1, num_edits=3))
    monkeypatch.setattr(editing, "STAGES", stages)
    monkeypatch.setattr(editing, "NUM_HELD_OUT", 1)
    schedule = editing.RUN.schedule.model_copy(update={"steps": 2, "warmup": 0})
    monkeypatch.setattr(editing, "RUN", editing.RUN.model_copy(update={"schedule": schedule}))
    monkeypatch.setattr(editing, "standard_library", lambda: files)
    return editing


def test_the_copier_copies_before_it_is_trained():
    model = copier(LAYOUT, TOKENS, 0)
    edits = Edits(tokenized(suite_edits(6, seed=0), TOKENIZER, 700), rows=1, seed=0)
    with torch.no_grad():
        right = (model.causal(edits.tokens[:, :-1]).logits.argmax(-1) == edits.tokens[:, 1:])[edits.learned[:, 1:]]
    assert float(right.float().mean()) > 0.5  # a model with random weights has none


def test_a_layout_without_room_for_a_copier_is_refused():
    with pytest.raises(ValueError, match="a copier needs 2 layers"):
        copier(LAYOUT | {"num_key_value_heads": 2}, TOKENS, 0)


def test_only_answers_and_their_end_are_learned():
    edits = suite_edits(3, seed=2)
    batches = Edits(tokenized(edits, TOKENIZER, 700), rows=2, seed=5)
    batch = batches.batch(3, range(2))
    for tokens, learned in zip(batch.tokens, batch.learned, strict=True):
        text = TOKENIZER.decode(tokens[learned].tolist(), skip_special_tokens=False)
        assert text in [f"{edit.answer}<|endoftext|>" for edit in edits]
    assert torch.equal(batches.batch(3, range(1, 2)).tokens, batch.tokens[1:])


def test_rows_are_cut_at_their_length(tmp_path):
    made = tokenized(suite_edits(3, seed=2), TOKENIZER, 300)
    assert made.tokens.shape == (3, 301) and (made.ends == 301).all()
    made.write(tmp_path / "edits.npz")
    assert np.array_equal(EditTokens.read(tmp_path / "edits.npz").tokens, made.tokens)


def test_edits_to_train_on_take_the_tasks_in_turn(files):
    pieces = pieces_by_task(files, FULL)
    assert [edit.task for edit in draw_edits(pieces, 6, seed=1)] == [*TASKS] * 2
    assert draw_edits(pieces, 6, seed=1) == draw_edits(pieces, 6, seed=1)


def test_the_recipe_trains_on_the_training_split_and_resumes(recipe, files, tmp_path, monkeypatch):
    recipe.prepare(EMBEDDED, tmp_path)
    for name, split in (("short", False), ("full", False), ("held_out", True)):
        texts = [file.text for file in files if file.held_out is split]
        found = EditTokens.read(tmp_path / f"{name}.npz")
        documents = [TOKENIZER.decode(row[:end].tolist()) for row, end in zip(found.tokens, found.ends, strict=True)]
        modules = {document.split('{"module": "')[1].split('"')[0] for document in documents if '"module"' in document}
        names = {file.name.removesuffix(".py") for file in files if file.held_out is split}
        assert texts and modules and modules <= names
    assert {file.name for file in files if file.held_out} <= HELD_OUT
    recipe.train(EMBEDDED, tmp_path)
    weights = (tmp_path / "export" / "model.safetensors").read_bytes()
    monkeypatch.setattr(Trainer, "advance", lambda *_: pytest.fail("a run that is done trains no further"))
    recipe.train(EMBEDDED, tmp_path)
    assert (tmp_path / "export" / "model.safetensors").read_bytes() == weights
    target = load(tmp_path / "export")
    assert target.tokenizer is not None and target.eos == (0,)
