import json
import re
from itertools import zip_longest
from random import Random

import pytest
from tokenizers import Tokenizer

import paceline_demo
from paceline.bench.editing import FULL, MISSPELT, NAMES, TASKS, Piece, make_edit, pieces_of, prose_pieces, size_of
from paceline.bench.suites import LIBRARY, categories_of, edits, prompts_of
from paceline.train.data import HELD_OUT

EDITS = edits(90, seed=3)
SOURCES = {"edit-code": "\nEdited:\n", "edit-text": "\nCorrected:\n", "edit-json": "\nChanged:\n"}


def parts(edit):
    """Instruction and source."""
    instruction, rest = edit.prompt.split("\n", 1)
    assert rest.endswith(SOURCES[edit.task])
    return instruction, rest.removesuffix(SOURCES[edit.task])


def of_task(task):
    return [edit for edit in EDITS if edit.task == task]


def test_the_suite_is_these_prompts_and_follows_its_seed():
    assert [edit.prompt for edit in EDITS] == prompts_of("edit", 90, seed=3)
    assert [edit.task for edit in EDITS] == categories_of("edit", 90) == [*TASKS] * 30
    assert edits(6, seed=1) == edits(6, seed=1) != edits(6, seed=2)


def test_prompts_fit_and_answers_outlast_a_measurement():
    """128 tokens are measured, so that no answer ends before them, and a context of 1024 holds twice the source."""
    tokenizer = Tokenizer.from_file(str(paceline_demo.target() / "tokenizer.json"))
    for edit in edits(150, seed=0):
        prompt, answer = len(tokenizer.encode(edit.prompt).ids), len(tokenizer.encode(edit.answer).ids)
        assert answer >= 170 and prompt + answer <= 640


def test_the_prompt_says_what_changes_and_all_else_stays():
    for edit in EDITS:
        source = parts(edit)[1]
        assert source != edit.answer
        pairs = zip_longest(re.findall(r"\w+|\s+|[^\w\s]", source), re.findall(r"\w+|\s+|[^\w\s]", edit.answer))
        changed = {(before, after) for before, after in pairs if before != after}
        assert 1 <= len(changed) <= 5


def test_every_occurrence_of_a_name_is_renamed():
    for edit in of_task("edit-code"):
        instruction, source = parts(edit)
        found = re.fullmatch(r"Edit this file: rename (\w+) to (\w+)\.", instruction)
        before, after = found.groups()
        assert not re.search(rf"\b{after}\b", source) and len(re.findall(rf"\b{before}\b", source)) > 1
        assert re.sub(rf"\b{before}\b", after, source) == edit.answer


def test_corrected_text_has_no_mistakes_left():
    right = {misspelt: word for word, misspelt in MISSPELT.items()}
    assert len(right) == len(MISSPELT) and right.keys().isdisjoint(MISSPELT)
    for edit in of_task("edit-text"):
        instruction, source = parts(edit)
        assert instruction == "Correct this text."
        assert 2 <= sum(word in right for word in source.split(" ")) <= 5
        assert " ".join(right.get(word, word) for word in source.split(" ")) == edit.answer


def test_one_field_of_a_document_is_changed():
    for edit in of_task("edit-json"):
        instruction, source = parts(edit)
        wanted = json.loads(instruction.removeprefix("Change this JSON: "))
        before, after = json.loads(source), json.loads(edit.answer)
        record = next(record for record in before["functions"] if record["name"] == wanted["name"])
        assert record["line"] != wanted["line"]
        record["line"] = wanted["line"]
        assert before == after


def test_prompts_come_from_files_that_the_models_were_not_trained_on():
    files = {f"{name.replace('.', '/')}{end}" for name in LIBRARY for end in (".py", "/__init__.py")}
    assert HELD_OUT < files
    assert {json.loads(edit.answer)["module"] for edit in of_task("edit-json")} <= {*LIBRARY}


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("edit-code", "def f(a):\n    return a"),  # no frequent name
        ("edit-code", "def f(path):\n    return 1"),  # only once
        ("edit-code", " ".join(NAMES) * 2),  # no name is left
        ("edit-text", "The form of this is not that of the other."),  # "form" is what "from" is misspelt as
        ("edit-text", "Nothing here can change."),
    ],
)
def test_what_cannot_be_edited_gives_no_edit(task, text):
    assert make_edit(Piece(task, text), Random(0)) is None


def test_pieces_have_the_lengths_of_their_task():
    source = "def f(path):\n    return path\n"
    assert pieces_of(source, "short") == []
    lines = "\n".join(f"    path_{at} = path + {at}" for at in range(100))
    (piece,) = pieces_of(f"def join(path):\n{lines}\n", "long")
    assert piece.text.startswith("def join") and FULL["edit-code"].least <= size_of(piece.text) <= 178


def test_paragraphs_are_joined_to_a_piece():
    paragraph = "Every word of this paragraph counts, and " + "so does the next one, " * 12 + "to the end."
    (piece,) = prose_pieces([f"{paragraph}\n\n>>> example\n\n{paragraph}", paragraph], FULL["edit-text"])
    assert piece.startswith(paragraph) and ">>>" not in piece
