"""The recipe of the target that corrects: what it begins with, what it learns from, and a run of two steps."""

import json

import pytest
import torch
from tokenizers import Tokenizer

from paceline.api import generate, load, total
from paceline.api.prompts import EncoderDecoderPrompt
from paceline.bench.suites import corrections
from paceline.train.data import standard_library
from paceline.train.loop.trainer import Trainer

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
    import correcting

    monkeypatch.setattr(correcting, "NUM_EDITS", 30)
    monkeypatch.setattr(correcting, "NUM_HELD_OUT", 3)
    monkeypatch.setattr(correcting, "ROWS", 2)
    schedule = correcting.RUN.schedule.model_copy(update={"steps": 2, "warmup": 0})
    slow = correcting.RUN.optimiser.model_copy(update={"learning_rate": 1e-5})  # so that the aligner still copies
    changed = {"schedule": schedule, "optimiser": slow}
    monkeypatch.setattr(correcting, "RUN", correcting.RUN.model_copy(update=changed))
    monkeypatch.setattr(correcting, "standard_library", lambda: files)
    return correcting


def test_the_aligner_copies_its_source_before_it_is_trained(recipe, tmp_path):
    recipe.prepare(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rows = recipe.Edits(recipe.paired(corrections(6, seed=0), tokenizer, recipe.SIZE), rows=2, seed=0)
    task = recipe.SourceToAnswer(
        model=recipe.aligner(recipe.LAYOUT, 0, begin=tokenizer.token_to_id(recipe.BEGIN)), size=recipe.SIZE
    )
    assert recipe.right_tokens(task, rows) > 0.8  # a model with random weights has none
    rows.tokens[:, : recipe.SIZE] = 7
    assert recipe.right_tokens(task, rows) < 0.1, "it does not read its source"


@pytest.mark.parametrize(
    "change", [{"num_decoder_layers": 3}, {"num_heads": 4}, {"d_kv": 16}, {"relative_attention_num_buckets": 32}]
)
def test_a_layout_without_room_for_an_aligner_is_refused(recipe, change):
    with pytest.raises(ValueError, match="an aligner needs 2 layers on both sides"):
        recipe.aligner(recipe.LAYOUT | change, 0, begin=1)


def test_rows_hold_a_source_and_its_answer_which_alone_is_learned(recipe, tmp_path):
    recipe.prepare(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    edits = corrections(12, seed=2)
    sizes = [max(len(tokenizer.encode(text).ids) for text in (edit.prompt, edit.answer)) for edit in edits]
    size = sorted(sizes)[6]
    made = recipe.paired(edits, tokenizer, size)
    fitting = [edit for edit, needed in zip(edits, sizes, strict=True) if needed <= size]
    assert 0 < len(made.tokens) == len(fitting) < len(edits) and made.tokens.shape[1] == 2 * size + 1
    batches = recipe.Edits(made, rows=2, seed=5)
    for edit, row, learned in zip(fitting, batches.tokens, batches.learned, strict=True):
        assert tokenizer.decode(row[:size].tolist()) == edit.prompt
        assert tokenizer.decode(row[learned].tolist(), skip_special_tokens=False) == (
            f"{recipe.BEGIN}{edit.answer}<|endoftext|>"
        )
        assert row[size] == 0, "the answer has its start before it"


def test_the_loss_is_that_of_answers_given_their_own_sources(recipe, tmp_path):
    """Rows of sources of different lengths, alone and together."""
    recipe.prepare(tmp_path)
    batches = recipe.Edits(recipe.EditTokens.read(tmp_path / "train.npz"), rows=2, seed=5)
    task = recipe.SourceToAnswer(model=recipe.aligner(recipe.LAYOUT, 0, begin=1).double(), size=recipe.SIZE)
    both = task(batches.batch(0, range(2)), None)
    alone = [float(task(batches.batch(0, range(row, row + 1)), None).loss.detach()) for row in range(2)]
    assert both.rows.tolist() == pytest.approx(alone) and float(both.loss.detach()) == pytest.approx(sum(alone))


def test_the_recipe_trains_on_the_training_split_and_resumes(recipe, files, tmp_path, monkeypatch):
    recipe.prepare(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = {split: recipe.texts_of(file for file in files if file.held_out is split) for split in (False, True)}
    assert texts[False] and texts[True] and not set(texts[False]) & set(texts[True])
    for name, split in (("train", False), ("held_out", True)):
        found = recipe.EditTokens.read(tmp_path / f"{name}.npz")
        assert {tokenizer.decode(row[recipe.SIZE :].tolist()) for row in found.tokens} <= set(texts[split])
    recipe.train(tmp_path)
    weights = (tmp_path / "export" / "model.safetensors").read_bytes()
    assert len(weights) < 3_000_000
    monkeypatch.setattr(Trainer, "advance", lambda *_: pytest.fail("a run that is done trains no further"))
    recipe.train(tmp_path)
    assert (tmp_path / "export" / "model.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "export" / "config.json").read_text())["model_type"] == "t5"


def test_what_the_recipe_makes_is_drafted_for_from_its_source(recipe, tmp_path):
    recipe.prepare(tmp_path)
    recipe.train(tmp_path)
    target = load(tmp_path / "export", dtype=torch.float64)
    assert target.eos == (0,) and target.start == (0,)
    # How an answer begins is learned; here its first tokens are given.
    encoded = [(edit.prompt, target.tokenizer.encode(edit.answer)[:6]) for edit in corrections(3, seed=0)]
    prompts = [EncoderDecoderPrompt(inputs=text, prompt=[0, *begun]) for text, begun in encoded]
    plain = generate(target, prompts, max_tokens=40, temperature=0)
    copied = generate(target, prompts, drafter="copy", num_draft_tokens=8, max_tokens=40, temperature=0)
    assert [one.token_ids for one in copied] == [one.token_ids for one in plain]
    assert total(copied).mean_acceptance_length > 3
