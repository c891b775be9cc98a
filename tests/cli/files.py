"""Prompt files, the command that works through them, and what it wrote."""

import json

from paceline.cli import run
from tests.api.checkpoints import pair

PROMPTS = [f"def f{number}(first{', second' * (number % 4)}," for number in range(8)]
MAX_TOKENS = 20


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def command(prompts, output, *options, model=None, max_tokens=MAX_TOKENS):
    words = ["generate", "--model", model or pair().target, "--prompt-file", prompts, "--output", output]
    return [str(word) for word in (*words, "--max-tokens", max_tokens, *options)]


def generate_file(prompts, output, *options, **settings):
    return run(command(prompts, output, *options, **settings))


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def journal_of(path):
    return path.with_name(f"{path.name}.waiting")
