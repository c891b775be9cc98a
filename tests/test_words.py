"""The project names things in the field's words: identifiers and files use none of its former private ones."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "demo", "examples", "tests")

BANNED = {  # word -> what the field says
    "law": "distribution",
    "laws": "distributions",
    "lane": "HostConstraints; a noise key's node",
    "awaited": "pending step",
    "outbox": "AsyncReader",
    "gain": "StepOutput",
    "gains": "step outputs",
    "duel": "head-to-head, paired comparison",
    "duels": "paired comparisons",
    "honest": "goodness of fit",
    "honesty": "goodness of fit",
    "likeness": "two-sample test",
    "verdict": "result of a test",
    "verdicts": "results of tests",
    "entrance": "input projection",
    "stem": "shared layers",
    "guiding": "guided",
    "blame": "no-draft reason",
    "desk": "workspace",
    "team": "thread pool",
    "company": "batch",
    "parting": "divergence",
    "partings": "divergence points",
    "told": "reported",
}


def words_of(name):
    """The words of an identifier or a file name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def defined(tree):
    """Names that a module defines: functions, classes, parameters and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def files(pattern):
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob(pattern))]


def banned_in(names):
    return {f"{name}: say {BANNED[word]}" for name in names for word in words_of(name) if word in BANNED}


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_use_the_fields_words(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        assert not banned_in({*defined(ast.parse(path.read_text(encoding="utf-8")))}), path.relative_to(ROOT)


def test_file_names_use_the_fields_words():
    named = [path for pattern in ("*.py", "*.h", "*.cpp") for path in files(pattern)]
    assert len(named) > 400 and not banned_in(path.stem for path in named)


LANES = {"lane", "lanes"}  # of a vector register


def test_identifiers_of_the_kernel_use_the_fields_words():
    sources = [*files("*.h"), *files("*.cpp")]
    assert sources
    for path in sources:
        code = re.sub(r'//[^\n]*|"[^"\n]*"', "", path.read_text(encoding="utf-8"))
        names = {name for name in re.findall(r"[A-Za-z_]\w+", code) if not LANES & set(words_of(name))}
        assert not banned_in(names), path.relative_to(ROOT)


def test_the_check_sees_words_inside_names():
    assert banned_in(["target_law", "LawOf", "LAWS", "flawless", "told_apart"]) == {
        "target_law: say distribution",
        "LawOf: say distribution",
        "LAWS: say distributions",
        "told_apart: say reported",
    }
