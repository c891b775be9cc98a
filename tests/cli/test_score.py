import json
import math

import pytest

from paceline.api import load, perplexity, score
from paceline.cli import run
from tests.api.checkpoints import CONTEXT, pair
from tests.cli import snapshots


def command(*words):
    return ["score", "--model", str(pair().target), *map(str, words)]


def objects(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_pair_of_arguments_is_scored_as_by_the_interface(capsys):
    assert run(command("def add(", "first")) == 0
    (found,) = objects(capsys)
    (expected,) = score(load(pair().target), "def add(", "first")
    assert found["logprob"] == pytest.approx(expected.total) and found["tokens"] == list(expected.tokens)
    assert found["perplexity"] == pytest.approx(math.exp(-found["logprob"] / found["num_tokens"]))
    assert found["greedy"] is expected.greedy and len(found["logprobs"]) == found["num_tokens"]


def test_bad_lines_fail_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.cli.commands.score.AT_ONCE", 3)
    lines = [
        '{"prompt": "def add(", "continuation": "first", "id": "a"}',
        "{",
        '{"prompt": "x"}',
        '{"prompt": "x", "continuation": ""}',
        '{"prompt": [5, 6], "continuation": [7, 99999]}',
        '{"prompt": "x", "continuation": "y", "weight": 2}',
        '{"prompt": [5, 6], "continuation": [7, 8]}',
        "[]",
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    assert run(command("--file", tmp_path / "pairs.jsonl")) == 1
    captured = capsys.readouterr()
    found = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["index"] for line in found] == list(range(8)) and found[0]["id"] == "a"
    reasons = {line["index"]: line["error"] for line in found if "error" in line}
    expected = {
        1: "not JSON",
        2: "no continuation",
        3: "empty continuation",
        4: "token id 99999 is outside",
        5: "unknown key 'weight'",
        7: "no JSON object",
    }
    assert reasons.keys() == expected.keys()
    assert all(reasons[index].startswith(f"line {index + 1}: {reason}") for index, reason in expected.items())
    assert "paceline: 6 of 8 lines failed; line 2: not JSON" in captured.err
    (alone,) = score(load(pair().target), [[5, 6]], [[7, 8]])
    assert found[6]["logprob"] == pytest.approx(alone.total)


def test_lines_are_scored_each_after_its_own_prompt(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.cli.commands.score.AT_ONCE", 2)
    pairs = [("def add(", "first"), ("for", " item in"), ([5, 6], [7])]
    lines = [json.dumps({"prompt": prompt, "continuation": continuation}) for prompt, continuation in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    assert run(command("--file", tmp_path / "pairs.jsonl")) == 0
    target = load(pair().target)
    expected = [score(target, [prompt], [continuation])[0].total for prompt, continuation in pairs]
    assert [line["logprob"] for line in objects(capsys)] == pytest.approx(expected)


def test_texts_have_a_perplexity_each_and_together(tmp_path, capsys):
    texts = ["def add(first, second):\n" * 90, "for item in items:\n"]
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / name).write_text(text)
    words = ["--text", tmp_path / "a", "--text", tmp_path / "b", "--stride", 100]
    assert run(command(*words)) == 0
    (found,) = objects(capsys)
    expected = perplexity(load(pair().target), texts, stride=100)
    assert found["perplexity"] == pytest.approx(expected.perplexity) and found["num_tokens"] > CONTEXT
    assert [text["file"] for text in found["texts"]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [text["logprob"] for text in found["texts"]] == pytest.approx([text.total for text in expected.texts])


def test_terminal_shows_tables_unless_asked_for_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "x", "continuation": "yes"}\n{\n')
    assert run(command("--file", "pairs.jsonl")) == 1
    assert run(command("--text", "pairs.jsonl")) == 0
    snapshots.check("score", capsys.readouterr().out)
    assert run(command("--json", "x", "yes")) == 0
    assert objects(capsys)[0]["index"] == 0


def test_interruption_prints_what_was_scored(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.cli.commands.score.AT_ONCE", 1)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "x", "continuation": "yes"}\n' * 3)
    calls = []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return score(*arguments, **options)

    monkeypatch.setattr("paceline.api.score", interrupted)
    assert run(command("--file", tmp_path / "pairs.jsonl")) == 130
    assert [line["index"] for line in objects(capsys)] == [0]
