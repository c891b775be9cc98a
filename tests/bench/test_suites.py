import json

import pytest

from paceline.bench.suites import LIBRARY, SUITES, categories_of, prompts_of, read_questions
from paceline.train.data import HELD_OUT


@pytest.mark.parametrize("suite", SUITES)
def test_suites_follow_their_seed(suite):
    prompts = prompts_of(suite, 10, seed=1)
    assert prompts == prompts_of(suite, 10, seed=1) != prompts_of(suite, 10, seed=2)
    assert len(set(prompts)) == 10 and all(len(prompt) > 60 for prompt in prompts)


def test_copying_begins_a_second_time():
    for prompt in prompts_of("copy", 5, seed=0):
        first, again = prompt.split("\n\n\n# The same function under another name\n")
        assert again.split("\n")[0] != first.split("\n")[0]
        assert again.replace("_again", "").split("\n")[:2] == first.split("\n")[:2]


def test_mixed_holds_a_third_of_each():
    prompts, categories = prompts_of("mixed", 6, seed=4), categories_of("mixed", 6)
    for category in ("code", "prose", "copy"):
        own = [prompt for prompt, found in zip(prompts, categories, strict=True) if found == category]
        assert own == prompts_of(category, 2, seed=4)


def test_suites_of_one_kind_have_no_categories():
    assert [suite for suite in SUITES if categories_of(suite, 5) is not None] == ["edit", "mixed"]


@pytest.mark.parametrize(
    ("suite", "count", "message"),
    [("novel", 1, "unknown suite 'novel'"), ("code", 0, "at least 1"), ("code", 10**6, "ask for fewer")],
)
def test_prompts_that_are_not_there_are_refused(suite, count, message):
    with pytest.raises(ValueError, match=message):
        prompts_of(suite, count, seed=0)


def test_questions_give_their_first_turn(tmp_path):
    path = tmp_path / "question.jsonl"
    line = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}
    path.write_text(json.dumps(line) + "\n")
    assert read_questions(path) == [("writing", "Write.")]


@pytest.mark.parametrize(
    "text", ["", "{}\n", "no json\n", '{"category": "a", "turns": []}\n', '{"category": 1, "turns": ["a"]}']
)
def test_bad_questions_are_refused(tmp_path, text):
    path = tmp_path / "question.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"question\.jsonl"):
        read_questions(path)


def test_the_embedded_pair_has_seen_no_prompt():
    files = {f"{name.replace('.', '/')}{end}" for name in LIBRARY for end in (".py", "/__init__.py")}
    assert HELD_OUT < files
