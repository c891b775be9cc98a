"""The options that say what a text must look like."""

import json
import re

import pytest

from paceline.cli import EXIT_BAD_INPUT, run
from tests.api.checkpoints import pair

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 22]}},
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def generated(capsys, *options, prompt="import"):
    words = ["generate", "--model", pair().target, "--draft", pair().draft, "--temperature", 1, "--max-tokens", 40]
    code = run([str(word) for word in (*words, *options, prompt)])
    return code, capsys.readouterr()


def test_every_option_shapes_the_text(capsys, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    grammar.write_text('start: "x" ("y" | "z")', encoding="utf-8")
    for options, pattern in (
        (("--json-schema", schema), r'\{"a":(1|22)\}'),
        (("--regex", "[ab]{3}"), "[ab]{3}"),
        (("--grammar", grammar), "x[yz]"),
        (("--choice", "first", "--choice", "for item"), "first|for item"),
    ):
        code, said = generated(capsys, *options)
        assert code == 0 and re.fullmatch(pattern, said.out.strip()), (options, said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--regex", "a", "--choice", "b"), "--regex and --choice: give one of them"),
        (("--json-schema", "missing.json"), "--json-schema missing.json: cannot be read as text"),
        (("--regex", "a("), "structured_outputs: regex: .*unclosed group"),
    ],
)
def test_what_cannot_be_followed_is_one_line(capsys, options, message):
    code, said = generated(capsys, *options)
    assert code == EXIT_BAD_INPUT and re.search(message, said.err) and said.err.count("\n") == 1


def test_a_file_of_prompts_takes_them_too(capsys, tmp_path):
    prompts, output = tmp_path / "prompts.txt", tmp_path / "texts.jsonl"
    prompts.write_text("import\nfor item\n", encoding="utf-8")
    words = ["generate", "--model", pair().target, "--prompt-file", prompts, "--output", output, "--choice", "first"]
    assert run([str(word) for word in words]) == 0
    assert [json.loads(line)["samples"][0]["text"] for line in output.read_text(encoding="utf-8").splitlines()] == [
        "first"
    ] * 2
