"""Finds a pattern in C++ source by its tokens and replaces it, leaving the rest of the file byte for byte.

Space and comments do not count. The metavariable ``$name`` matches any one identifier, the same one wherever it occurs.
"""

import re
from functools import lru_cache
from typing import NamedTuple

TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|\\\n|
    (?P<token>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'|\$?[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*
    |<<=|>>=|\.\.\.|->|::|\+\+|--|&&|\|\||[-+*/%&|^=<>!]=|<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)
OPENING, CLOSING = "([{", ")]}"
CONTROL = {"if", "for", "while", "switch", "catch", "return", "sizeof"}
SCOPES = {"struct", "class", "union", "namespace", "enum"}


class Token(NamedTuple):
    text: str
    start: int
    end: int


class Body(NamedTuple):
    """The tokens of a definition, from its name to its closing brace."""

    name: str
    first: int
    last: int


def tokens_of(source: str) -> list[Token]:
    found = TOKEN.finditer(source)
    return [Token(match["token"], *match.span("token")) for match in found if match["token"] is not None]


def replace_cpp(source: str, path: str, pattern: str, replacement: str) -> tuple[str, int]:
    """The patched source and the line of the match. Raises LookupError unless ``path`` holds exactly one match."""
    tokens, wanted = tokens_of(source), [token.text for token in tokens_of(pattern)]
    ranges = [(body.first, body.last) for body in definitions(source)[path]] if path else [(0, len(tokens) - 1)]
    starts = {at for first, last in ranges for at in range(first, last + 2 - len(wanted))}
    found = [(at, bound) for at in sorted(starts) if (bound := _match(wanted, tokens[at:])) is not None]
    if len(found) != 1:
        raise LookupError(f"{len(found)} matches in {path or 'the file'}: {pattern}")
    at, bound = found[0]
    new = re.sub(r"\$\w+", lambda match: bound[match[0]], replacement)
    start, end = tokens[at].start, tokens[at + len(wanted) - 1].end
    return source[:start] + new + source[end:], source[:start].count("\n") + 1


@lru_cache(maxsize=64)  # several mutants are of one file
def definitions(source: str) -> dict[str, list[Body]]:
    """Functions and classes by name, and by name qualified with the definitions around them (``Outer::inner``)."""
    tokens = tokens_of(source)
    bodies = [body for at in range(len(tokens)) if (body := _body(tokens, at)) is not None]
    found: dict[str, list[Body]] = {}
    for body in bodies:
        around = [other.name for other in bodies if other.first < body.first and body.last < other.last]
        for count in range(len(around) + 1):
            name = "::".join((*around[len(around) - count :], body.name))
            found.setdefault(name, []).append(body)
    return found


def _match(wanted: list[str], tokens: list[Token]) -> dict[str, str] | None:
    bound: dict[str, str] = {}
    for text, token in zip(wanted, tokens, strict=False):
        if text.startswith("$"):
            if not re.match(r"[A-Za-z_]", token.text) or bound.setdefault(text, token.text) != token.text:
                return None
        elif text != token.text:
            return None
    return bound


def _body(tokens: list[Token], at: int) -> Body | None:
    """The definition that is named by the token ``at``, if there is one."""
    text = [token.text for token in tokens[at : at + 2]]
    if len(text) < 2 or not re.match(r"[A-Za-z_]", text[0]) or text[0] in CONTROL:
        return None
    end = at + 1
    if at and tokens[at - 1].text in SCOPES:
        while end < len(tokens) and tokens[end].text not in "{;(=":
            end += 1
    elif text[1] == "(":
        end = _after_parameters(tokens, _closing(tokens, end) + 1)
    else:
        return None
    return Body(text[0], at, _closing(tokens, end)) if end < len(tokens) and tokens[end].text == "{" else None


def _after_parameters(tokens: list[Token], at: int) -> int:
    """Where a body begins after ``const``, a return type or the initialisers of a constructor."""
    initialisers = False
    while at < len(tokens):
        text = tokens[at].text
        if text == ":":
            initialisers = True
        elif initialisers and text in "({" and re.match(r"\w", tokens[at - 1].text):
            at = _closing(tokens, at)
        elif text == "(" and tokens[at - 1].text in ("noexcept", "__attribute__"):
            at = _closing(tokens, at)
        elif not re.match(r"\w|->|::|,", text) or (text == "," and not initialisers):
            return at
        at += 1
    return at


def _closing(tokens: list[Token], at: int) -> int:
    depth = 0
    for end in range(at, len(tokens)):
        depth += (tokens[end].text in OPENING) - (tokens[end].text in CLOSING)
        if depth == 0:
            return end
    return len(tokens) - 1
