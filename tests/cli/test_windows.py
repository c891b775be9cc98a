"""The commands on a checkpoint whose attention window is shorter than its context."""

import json

import pytest

from paceline.cli import run
from paceline.engine.knowledge import MAX_DRAFT_TOKENS
from tests import tiny
from tests.api.checkpoints import CONTEXT, VOCAB, make_tokenizer
from tests.cli.files import generate_file, lines_of, write

WINDOW = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windowed") / "phi"
    model = tiny.causal("phi3", vocab_size=VOCAB, max_position_embeddings=CONTEXT, sliding_window=WINDOW)
    model.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("options", "room"), [([], WINDOW - 1), (["--drafter", "ngram"], WINDOW - 1 - MAX_DRAFT_TOKENS)]
)
def test_prompts_that_fit_into_the_window_are_continued_and_others_fail_alone(folder, tmp_path, options, room):
    objects = [{"tokens": [7] * 10}, {"tokens": [7] * (room - 4)}, {"tokens": [7] * (room - 3)}]
    prompts, output = write(tmp_path / "p.jsonl", map(json.dumps, objects)), tmp_path / "out.jsonl"
    assert generate_file(prompts, output, *options, "--ignore-eos", model=folder, max_tokens=4) == 1
    lines = lines_of(output)
    assert [len(line["samples"][0]["tokens"]) for line in lines[:2]] == [4, 4]
    assert f"prompt of {room - 3} tokens and --max-tokens 4 exceed the context of {room} tokens" in lines[2]["error"]


def test_a_prompt_of_the_command_line_beyond_the_window_is_refused_with_the_way_out(folder, capsys):
    words = ["generate", "--model", str(folder), "--max-tokens", "200", "def add("]
    assert run(words) == 2
    assert f"exceeds the sliding window of {WINDOW} tokens of this model" in capsys.readouterr().err


def test_a_long_text_is_scored(folder, tmp_path, capsys):
    text = tmp_path / "long.txt"
    text.write_text("def add(first, second):\n" * 20)
    assert run(["score", "--model", str(folder), "--text", str(text), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_tokens"] > 2 * WINDOW and found["perplexity"] > 1
