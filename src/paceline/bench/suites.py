"""Prompts to measure on. Knows nothing of models or of how they are run."""

import ast
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Protocol, TypeVar

from paceline.bench.corrections import LENGTHS, with_mistakes
from paceline.bench.editing import TASKS, Edit, Piece, docstrings_of, make_edit, pieces_of, prose_pieces

T = TypeVar("T")


class Suite(Protocol):
    """Chooses prompts."""

    def __call__(self, count: int, *, seed: int) -> list[str]: ...


# Written for this project, in the style of the library code that the embedded pair knows.
PYTHON_PROMPTS = (
    '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self, items=()):
        self._items = list(items)

    def push(self, item):
''',
    '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a file without their line ends."""
    with open(path, encoding=encoding) as stream:
''',
    """class Version:
    def __init__(self, major, minor, patch):
        self.major = major
        self.minor = minor
        self.patch = patch

    def __eq__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
""",
    '''import os
import sys

def find_files(root, suffix):
    """Yield the paths of all files below root that end with suffix."""
    for folder, names, files in os.walk(root):
''',
    '''def parse_pair(text, separator="="):
    """Split text into a key and a value.

    Raises ValueError if the separator is missing.
    """
    if separator not in text:
''',
    '''class Timer:
    """Measures the time between start and stop."""

    def start(self):
        if self._started is not None:
            raise RuntimeError("timer is already running")
''',
)

# Written for this project too.
PROSE_PROMPTS = (
    "The harbour woke before the town did. Long before the first lamp was put out in the market street, men were "
    "walking along the quay with their collars turned up, and",
    "A library is judged by what it lets you forget. If you have to remember in which order its functions are called, "
    "it has left a part of its work to you. A good one",
    "Measure twice, says the carpenter, because wood cannot be lengthened. Programs can be changed at any time, and so "
    "we measure once, or not at all, and then wonder why",
    "In the autumn of that year the river rose higher than anyone could remember. The bridge held, but the road "
    "behind it was gone, so that the village could be reached only",
    "There are two ways to explain a proof. The first follows the order of its steps, and never says where it is "
    "going. The second begins with the picture that its author had in mind, and",
    "She kept a notebook in which she wrote down every mistake that had cost her more than an hour. After ten years it "
    "had three hundred entries, and she had noticed that",
    "Bread needs four things, and patience is the one that people leave out. Flour, water and salt can be bought, but "
    "the dough takes as long as it takes. When it has risen,",
    "The clock in the tower was always four minutes slow. Visitors laughed about it; the people of the town had their "
    "trains, their school and their dinner by it, and saw no reason",
)

# Questions, written for this project; each is asked as the first turn of a conversation.
QUESTIONS = (
    "How do I read a large file line by line without loading it whole?",
    "Why is my bread dense although it rose for three hours?",
    "Explain in two sentences what a hash table is.",
    "My train leaves at 7:40 and the way to the station takes 25 minutes. When must I go?",
    "What is the difference between a list and a tuple in Python?",
    "Write a short birthday message for a colleague who likes mountains.",
    "Which planets can be seen without a telescope?",
    "How can I tell whether an egg is still good?",
    "Rewrite politely: send me the report today.",
    "Give me three names for a small bookshop by the sea.",
    "What does the error 'list index out of range' mean?",
    "Is it cheaper to heat one room all day or to heat it again every evening?",
    "Translate 'good morning' into five languages.",
    "How do I undo my last commit in git but keep the changes?",
    "Summarise the rules of chess for a child of eight.",
    "What should I pack for two days of hiking in October?",
)

# Modules of the standard library that the embedded pair was not trained on.
LIBRARY = (
    "argparse",
    "asyncio.queues",
    "bisect",
    "calendar",
    "collections",
    "csv",
    "dataclasses",
    "email.message",
    "fractions",
    "heapq",
    "http.cookies",
    "json.decoder",
    "logging.handlers",
    "queue",
    "shlex",
    "statistics",
    "textwrap",
    "zipfile",
)
CODE_LINES, COPY_LINES, BEGUN_LINES = 14, 12, 2
LONGEST_COPIED_LINE = 70


def code(count: int, *, seed: int) -> list[str]:
    """Beginnings of functions of the standard library, to be continued."""
    pieces = _functions(CODE_LINES)
    return choose([*PYTHON_PROMPTS, *pieces], count, seed=seed)


def prose(count: int, *, seed: int) -> list[str]:
    """English: paragraphs of our own, and the first halves of long docstrings of the standard library."""
    return choose([*PROSE_PROMPTS, *_paragraphs()], count, seed=seed)


def copy(count: int, *, seed: int) -> list[str]:
    """A piece of code, then the beginning of the same piece with one name changed: what editing looks like."""
    pieces = [piece for piece in _functions(COPY_LINES) if len(max(piece.split("\n"), key=len)) <= LONGEST_COPIED_LINE]
    return [_edited(piece) for piece in choose(pieces, count, seed=seed)]


def edit(count: int, *, seed: int) -> list[str]:
    """Code, a text and JSON in turn, each with an instruction what to change: the answer repeats most of the prompt."""
    return [made.prompt for made in edits(count, seed=seed)]


def edits(count: int, *, seed: int) -> list[Edit]:
    """The prompts of ``edit`` with their answers."""
    share = -(-count // len(TASKS))
    random = Random(seed)
    made = [found for piece in _pieces() if (found := make_edit(piece, random)) is not None]
    groups = [choose([one for one in made if one.task == task], share, seed=seed) for task in TASKS]
    return [one for group in zip(*groups, strict=True) for one in group][:count]


def correct(count: int, *, seed: int) -> list[str]:
    """English with mistakes, and nothing said about it: for an encoder-decoder that corrects."""
    return [made.prompt for made in corrections(count, seed=seed)]


def corrections(count: int, *, seed: int) -> list[Edit]:
    """The texts of ``correct`` with their answers."""
    random = Random(seed)
    made = [with_mistakes(text, random) for text in _texts()]
    return choose([one for one in made if one is not None], count, seed=seed)


def chat(count: int, *, seed: int) -> list[str]:
    """The beginning of a conversation."""
    return [f"User: {question}\n\nAssistant:" for question in choose(QUESTIONS, count, seed=seed)]


def mixed(count: int, *, seed: int) -> list[str]:
    """Code, prose and copying in turn."""
    share = -(-count // 3)
    groups = zip(code(share, seed=seed), prose(share, seed=seed), copy(share, seed=seed), strict=True)
    return [prompt for group in groups for prompt in group][:count]


MIXED = ("code", "prose", "copy")  # what mixed takes in turn
CATEGORIES = {"mixed": MIXED, "edit": TASKS}
SUITES: dict[str, Suite] = {
    "code": code,
    "prose": prose,
    "copy": copy,
    "edit": edit,
    "correct": correct,
    "chat": chat,
    "mixed": mixed,
}


def prompts_of(suite: str, count: int, *, seed: int) -> list[str]:
    """``count`` prompts of a suite; the same for the same seed and the same Python.

    Raises ValueError for an unknown suite and for more prompts than it has.
    """
    if suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; known: {', '.join(SUITES)}")
    if count < 1:
        raise ValueError(f"num_prompts={count}: give at least 1")
    return SUITES[suite](count, seed=seed)


def categories_of(suite: str, count: int) -> list[str] | None:
    """The category of each of ``count`` prompts of a suite; None for one that has no categories."""
    categories = CATEGORIES.get(suite)
    return None if categories is None else [categories[at % len(categories)] for at in range(count)]


def read_questions(path: Path) -> list[tuple[str, str]]:
    """Category and first turn of every question in the format of MT-Bench and Spec-Bench.

    Its lines are objects with question_id, category and turns. Raises ValueError for any that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}; give a file of questions that can be read") from error
    found: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
            category, turn = value["category"], value["turns"][0]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: no question: give question_id, category and turns") from error
        if not isinstance(category, str) or not isinstance(turn, str) or not turn:
            raise ValueError(f"{path}, line {number}: category and turns hold no text: give strings")
        found.append((category, turn))
    if not found:
        raise ValueError(f"{path}: no questions in it; give one per line")
    return found


def choose(items: Sequence[T], count: int, *, seed: int) -> list[T]:
    """``count`` of ``items``, chosen by the seed. Raises ValueError where there are fewer."""
    if count > len(items):
        raise ValueError(f"{count} prompts: there are {len(items)}; ask for fewer")
    return Random(seed).sample(items, count)


@cache
def _functions(num_lines: int) -> tuple[str, ...]:
    """The first lines of every longer function of LIBRARY."""
    pieces: list[str] = []
    for name in LIBRARY:
        source = _source(name)
        lines = source.split("\n")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno > 2 * num_lines:
                piece = "\n".join(lines[node.lineno - 1 : node.lineno - 1 + num_lines])
                pieces.append(dedent(piece) + "\n")
    return tuple(pieces)


@cache
def _pieces() -> tuple[Piece, ...]:
    """What can be edited in LIBRARY."""
    return tuple(piece for name in LIBRARY for piece in pieces_of(_source(name), name))


@cache
def _texts() -> tuple[str, ...]:
    """What can be corrected in LIBRARY."""
    docstrings = (text for name in LIBRARY for text in docstrings_of(ast.parse(_source(name))))
    return tuple(prose_pieces(docstrings, LENGTHS))


@cache
def _paragraphs() -> tuple[str, ...]:
    """First halves of the longer paragraphs of LIBRARY's docstrings, on one line."""
    found: list[str] = []
    for name in LIBRARY:
        for docstring in docstrings_of(ast.parse(_source(name))):
            for paragraph in docstring.split("\n\n"):
                words = paragraph.split()
                if len(words) >= 45 and all(word.isascii() for word in words) and ">>>" not in words:
                    found.append(" ".join(words[: len(words) // 2]))
    return tuple(dict.fromkeys(found))


def _edited(piece: str) -> str:
    """A piece, its end, and how it begins again under a new name."""
    name = re.match(r"\s*(?:async )?def (\w+)", piece)
    assert name is not None
    again = re.sub(rf"\b{name[1]}\b", f"{name[1]}_again", piece)
    begun = "\n".join(again.split("\n")[:BEGUN_LINES])
    return f"{piece.rstrip()}\n\n\n# The same function under another name\n{begun}\n"


def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"this Python has no source of its module {module!r}; give prompts of your own")
    return Path(spec.origin).read_text(encoding="utf-8")
