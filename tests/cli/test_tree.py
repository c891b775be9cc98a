"""The command that finds a draft tree."""

import json

import pytest

from paceline.api.speculative_config import read_speculative_config
from paceline.cli import run
from tests.api.checkpoints import pair
from tests.cli import snapshots


@pytest.fixture
def command(tmp_path):
    """The command's words with few and short prompts."""
    (tmp_path / "prompts.txt").write_text("def add(first,\nfor item in\nx =\n")
    options = ["--num-nodes", 6, "--depth", 3, "--width", 3, "--num-prompts", 2, "--max-tokens", 12]
    words = ["tree", "--model", str(pair().target), "--draft", str(pair().draft), *map(str, options)]
    return [*words, "--prompt-file", str(tmp_path / "prompts.txt")]


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_tree_found_is_valid_and_expects_at_least_the_tokens_of_a_chain(command, capsys, temperature):
    assert run([*command, "--json", "--temperature", str(temperature)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["acceptance_by_rank"]) == 3 and 0 <= sum(found["acceptance_by_rank"]) <= 1 + 1e-9
    tree, chain = found["tree"], found["chain"]
    assert tree["expected_tokens_per_step"] >= chain["expected_tokens_per_step"]
    assert tree["num_draft_tokens"] <= 6 and tree["depth"] <= 3 and chain["num_draft_tokens"] == 3
    assert tree["tokens_per_step"] >= 1
    config = {"model": "a/b", "speculative_token_tree": tree["speculative_token_tree"]}
    assert read_speculative_config(config).tree.num_drafted == tree["num_draft_tokens"]


def test_tables(command, capsys):
    assert run(command) == 0
    snapshots.check("tree", capsys.readouterr().out)


@pytest.mark.parametrize("option", ["--num-nodes", "--depth", "--width", "--max-tokens", "--num-prompts"])
def test_counts_of_nothing_are_refused_before_loading(capsys, option):
    assert run(["tree", "--model", "no/where", "--draft", "no/where", option, "0"]) == 2
    assert f"paceline: {option} 0: give at least 1" in capsys.readouterr().err
