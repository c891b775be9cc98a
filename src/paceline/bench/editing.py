"""Edits of Python source, English and JSON, each with its answer: what copies most of its prompt.

A *piece* is what is edited: lines of a function, paragraphs of docstrings, or a JSON document about a module's
functions. An edit says what is to be changed in a piece; its answer is the whole piece with that change. The suite
``edit`` of the benchmark and the training of targets on such edits share this module, which knows nothing of models.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from textwrap import dedent

TASKS = ("edit-code", "edit-text", "edit-json")
# Identifiers to be renamed, and what they are renamed to: frequent in Python's library.
NAMES = (
    "args", "body", "buffer", "cache", "callback", "child", "code", "context", "count", "data", "default", "encoding",
    "entry", "error", "field", "file", "filename", "flags", "handler", "header", "index", "info", "instance", "item",
    "items", "key", "label", "level", "limit", "line", "lines", "list", "match", "message", "method", "mode",
    "module", "name", "names", "node", "number", "object", "offset", "option", "other", "output", "parent", "parser",
    "parts", "path", "pattern", "position", "prefix", "queue", "reader", "request", "response", "result", "root",
    "section", "size", "source", "start", "state", "stream", "string", "table", "target", "task", "text", "timeout",
    "token", "type", "url", "value", "values", "version", "width", "word",
)  # fmt: skip
# Words as they should be, and as they are often misspelt.
MISSPELT = {
    "and": "adn", "are": "aer", "because": "becuase", "before": "befor", "been": "bene", "can": "cna",
    "different": "diffrent", "each": "eahc", "first": "frist", "for": "fro", "from": "form", "function": "fucntion",
    "has": "hsa", "have": "ahve", "is": "si", "name": "nmae", "not": "nto", "of": "fo", "only": "olny",
    "other": "ohter", "return": "retrun", "returns": "retruns", "should": "shoud", "string": "stirng", "that": "taht",
    "the": "teh", "their": "thier", "this": "thsi", "used": "uesd", "value": "vlaue", "when": "wehn", "which": "wich",
    "with": "wiht", "will": "wil", "without": "witout", "you": "yuo",
}  # fmt: skip
MOST_MISTAKES = 5
LARGEST_LINE = 999


@dataclass(frozen=True, slots=True)
class Piece:
    """What is to be edited, and the task it is for."""

    task: str
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A prompt, which ends with a line end, and the answer to it: an edited piece without a line end."""

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The size of a piece, at least and at most; see ``size_of``."""

    least: int
    most: int


# By task: at least 170 tokens of the embedded models, and at most 640 for prompt and answer.
FULL = {
    "edit-code": Lengths(least=153, most=178),
    "edit-text": Lengths(least=158, most=195),
    "edit-json": Lengths(least=132, most=190),
}


def pieces_of(source: str, name: str, lengths: Mapping[str, Lengths] = FULL) -> list[Piece]:
    """All pieces of the module ``name`` with this ``source``: code, text and JSON."""
    tree = ast.parse(source)
    return [
        *(Piece("edit-code", text) for text in _code(source, tree, lengths["edit-code"])),
        *(Piece("edit-text", text) for text in prose_pieces(docstrings_of(tree), lengths["edit-text"])),
        *(Piece("edit-json", text) for text in _documents(tree, name, lengths["edit-json"])),
    ]


def size_of(text: str) -> int:
    """How many words, numbers and runs of signs are in ``text``: somewhat fewer than its tokens."""
    return len(re.findall(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]+", text))


def make_edit(piece: Piece, random: Random) -> Edit | None:
    """An edit of ``piece`` that ``random`` chooses; None where there is nothing to change."""
    return _MAKERS[piece.task](piece.text, random)


def rename(text: str, random: Random) -> Edit | None:
    """A name that occurs at least twice is renamed to one that does not occur."""
    words = re.findall(r"\b[a-z]+\b", text)
    old = [name for name in NAMES if words.count(name) > 1]
    new = [name for name in NAMES if name not in words]
    if not old or not new:
        return None
    before, after = random.choice(old), random.choice(new)
    prompt = f"Edit this file: rename {before} to {after}.\n{text}\nEdited:\n"
    return Edit("edit-code", prompt, re.sub(rf"\b{before}\b", after, text))


def correct(text: str, random: Random) -> Edit | None:
    """Some words are misspelt in the prompt; the answer is the text as it was."""
    words = text.split(" ")
    places = [at for at, word in enumerate(words) if word in MISSPELT]
    # A misspelling that stands in the text as a word of its own ("form") could not be told from a mistake.
    if len(places) < 2 or not set(words).isdisjoint(MISSPELT.values()):
        return None
    for at in random.sample(places, min(random.randint(2, MOST_MISTAKES), len(places))):
        words[at] = MISSPELT[words[at]]
    return Edit("edit-text", f"Correct this text.\n{' '.join(words)}\nCorrected:\n", text)


def change(text: str, random: Random) -> Edit | None:
    """The line of one function in a JSON document becomes another number."""
    document = json.loads(text)
    record = random.choice(document["functions"])
    line = random.choice([number for number in range(100, LARGEST_LINE + 1) if number != record["line"]])
    wanted = json.dumps({"name": record["name"], "line": line})
    record["line"] = line
    return Edit("edit-json", f"Change this JSON: {wanted}\n{text}\nChanged:\n", _as_json(document))


_MAKERS: dict[str, Callable[[str, Random], Edit | None]] = {
    "edit-code": rename,
    "edit-text": correct,
    "edit-json": change,
}


def prose_pieces(texts: Iterable[str], lengths: Lengths) -> list[str]:
    """Paragraphs of ``texts``, in one line, joined until a piece has ``lengths``."""
    found: list[str] = []
    joined = ""
    for text in texts:
        for paragraph in text.split("\n\n"):
            flat = " ".join(paragraph.split())
            if len(flat) < 60 or not flat.isascii() or not flat[0].isupper() or flat[-1] != "." or ">>>" in flat:
                continue
            joined = f"{joined} {flat}".strip()
            if size_of(joined) > lengths.most:
                joined = flat
            if lengths.least <= size_of(joined) <= lengths.most:
                found.append(joined)
                joined = ""
    return list(dict.fromkeys(found))


def _code(source: str, tree: ast.Module, lengths: Lengths) -> list[str]:
    """The first lines of every function and class, as many as ``lengths`` has room for."""
    lines = source.split("\n")
    found: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        own = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).split("\n")
        sizes = accumulate(size_of(line) for line in own)
        text = "\n".join(own[: sum(size <= lengths.most for size in sizes)]).strip()
        if size_of(text) >= lengths.least and text.isascii():
            found.append(text)
    return list(dict.fromkeys(found))


def docstrings_of(tree: ast.Module) -> list[str]:
    """Of a module, its classes and its functions; empty where there is none."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    return [ast.get_docstring(node) or "" for node in nodes]


def _documents(tree: ast.Module, name: str, lengths: Lengths) -> list[str]:
    """Records of the functions of a module, each name once, as many in a document as reach ``lengths``."""
    found: list[str] = []
    records: dict[str, object] = {}
    size = size_of(_as_json({"module": name, "functions": []}))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name in records:
            continue
        arguments = ", ".join(argument.arg for argument in node.args.args)
        records[node.name] = {"name": node.name, "line": node.lineno, "arguments": arguments}
        size += size_of(json.dumps(records[node.name])) + 1
        if size >= lengths.least:
            text = _as_json({"module": name, "functions": list(records.values())})
            if size_of(text) <= lengths.most:
                found.append(text)
            records, size = {}, size_of(_as_json({"module": name, "functions": []}))
    return found


def _as_json(document: Mapping[str, object]) -> str:
    """One record a line."""
    functions = document["functions"]
    assert isinstance(functions, list)
    records = ",\n".join(f"  {json.dumps(record)}" for record in functions)
    return f'{{"module": {json.dumps(document["module"])}, "functions": [\n{records}\n]}}'
