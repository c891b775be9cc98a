"""Finds a pattern in Python source by its syntax tree and replaces it, leaving the rest of the file byte for byte.

A pattern is Python with metavariables. ``$name`` matches any expression, any statement where it stands alone on a
line, or any identifier where the grammar asks for one (an attribute, a keyword, a parameter). ``*$name`` matches a run
of arguments, elements or statements of any length. A metavariable that occurs twice matches the same code twice.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

PREFIX = "metavariable_"
IGNORED = ("ctx", "kind", "type_comment")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Bound = dict[str, list]


def replace_python(source: str, path: str, pattern: str, replacement: str) -> tuple[str, int]:
    """The patched source and the line of the match. Raises LookupError unless ``path`` holds exactly one match."""
    found = _find(source, path, pattern, replacement)
    if len(found) != 1:
        raise LookupError(f"{len(found)} matches in {path or 'the module'}: {pattern}")
    nodes, bound = found[0]
    new = ast.fix_missing_locations(ast.Module(_fill(_statements(replacement), bound), []))
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[: node.lineno - 1])) + node.col_offset for node in nodes]
    last = nodes[-1]
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    if isinstance(last, ast.expr):
        text = f"({ast.unparse(new)})"
    else:
        text = ast.unparse(new).replace("\n", "\n" + " " * nodes[0].col_offset)
    return (source.encode()[: starts[0]] + text.encode() + source.encode()[end:]).decode(), nodes[0].lineno


@lru_cache(maxsize=256)  # several mutants are of one file
def definitions(source: str) -> dict[str, list[Definition]]:
    """Functions and classes by qualified name; one name has several where a property has a setter."""
    found: dict[str, list[Definition]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                found.setdefault(prefix + child.name, []).append(child)
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(_parsed(source), "")
    return found


@lru_cache(maxsize=256)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _find(source: str, path: str, pattern: str, replacement: str) -> list[tuple[list, Bound]]:
    """All matches. If pattern and replacement are expressions, any expression may match, and otherwise statements."""
    wanted = _statements(pattern)
    scopes = definitions(source)[path] if path else [_parsed(source)]
    nodes = [node for scope in scopes for node in _walk(scope)]
    if _is_expression(wanted) and _is_expression(_statements(replacement)):
        expressions = [node for node in nodes if isinstance(node, ast.expr)]
        return [([node], bound) for node in expressions for bound in _first(wanted[0].value, node)]
    bodies = [body for node in nodes for _, body in ast.iter_fields(node) if _is_body(body)]
    runs = [body[at : at + len(wanted)] for body in bodies for at in range(len(body) - len(wanted) + 1)]
    return [(run, bound) for run in runs for bound in _first(wanted, run)]


def _is_body(value) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt)


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(re.sub(r"\$(?=\w)", PREFIX, text)).body


def _is_expression(statements: list[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """As ast.walk, without the inside of f-strings: Python 3.11 does not know where in the file that is."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _first(pattern, node) -> list[Bound]:
    return [bound for bound, _ in zip(_match(pattern, node, {}), range(1), strict=False)]


def _match(pattern, node, bound: Bound) -> Iterator[Bound]:
    name = _metavariable(pattern)
    if isinstance(pattern, list):
        if isinstance(node, list):
            yield from _match_list(pattern, node, bound)
    elif name is not None:
        if isinstance(
            node, str if isinstance(pattern, str) else ast.stmt if isinstance(pattern, ast.stmt) else ast.expr
        ):
            yield from _bind(name, [node], bound)
    elif isinstance(pattern, ast.AST):
        if type(pattern) is type(node):
            fields = [field for field in pattern._fields if field not in IGNORED]
            values = ([getattr(side, field) for field in fields] for side in (pattern, node))
            yield from _match_each(*values, bound)
    elif pattern == node and type(pattern) is type(node):
        yield bound


def _match_each(patterns: list, nodes: list, bound: Bound) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for longer in _match(patterns[0], nodes[0], bound):
        yield from _match_each(patterns[1:], nodes[1:], longer)


def _match_list(patterns: list, nodes: list, bound: Bound) -> Iterator[Bound]:
    if not patterns:
        if not nodes:
            yield bound
        return
    run = _run(patterns[0])
    for size in range(len(nodes) + 1) if run is not None else (1,) if nodes else ():
        heads = _bind(run, nodes[:size], bound) if run is not None else _match(patterns[0], nodes[0], bound)
        for longer in heads:
            yield from _match_list(patterns[1:], nodes[size:], longer)


def _bind(name: str, nodes: list, bound: Bound) -> Iterator[Bound]:
    if name not in bound:
        yield {**bound, name: nodes}
    elif [_code(node) for node in bound[name]] == [_code(node) for node in nodes]:
        yield bound


def _code(node: ast.AST | str) -> str:
    return node if isinstance(node, str) else ast.unparse(node)


def _metavariable(pattern) -> str | None:
    """The name of a metavariable that stands for one identifier, expression or statement."""
    if isinstance(pattern, ast.Expr):
        pattern = pattern.value
    if isinstance(pattern, ast.Name):
        pattern = pattern.id
    return pattern.removeprefix(PREFIX) if isinstance(pattern, str) and pattern.startswith(PREFIX) else None


def _run(pattern) -> str | None:
    """The name of a metavariable that stands for a run: ``*$name``, and ``**$name`` among keywords."""
    if isinstance(pattern, ast.Expr):
        pattern = pattern.value
    starred = isinstance(pattern, ast.Starred) or (isinstance(pattern, ast.keyword) and pattern.arg is None)
    return _metavariable(pattern.value) if starred else None


def _fill(pattern, bound: Bound):
    """The pattern with what its metavariables are bound to."""
    name = _metavariable(pattern)
    if isinstance(pattern, list):
        items = [bound[_run(item)] if _run(item) is not None else [_fill(item, bound)] for item in pattern]
        return [item for run in items for item in run]
    if name is not None:
        (node,) = bound[name]
        if isinstance(pattern, str):
            return _code(node)
        if isinstance(pattern, ast.Expr) and isinstance(node, ast.expr):
            return ast.Expr(node)
        return ast.Name(node) if isinstance(node, str) else node
    if isinstance(pattern, ast.AST):
        return type(pattern)(**{field: _fill(value, bound) for field, value in ast.iter_fields(pattern)})
    return pattern
