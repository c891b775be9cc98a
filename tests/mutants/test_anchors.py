"""Every planted mistake still fits the source: what it is anchored on exists, and what it refers to is defined."""

import ast
import builtins
import re
from pathlib import Path

import torch

from tests.mutants import MUTANTS
from tests.mutants.apply import PACKAGES, ROOT, patched, source_of
from tests.mutants.mutant import Mutant

FOREIGN = {*dir(builtins), *dir(torch), *dir(torch.Tensor), "hexdigest"}


def test_every_mutant_changes_its_source_at_one_place():
    assert not [error for mutant in MUTANTS if (error := mistake(mutant))]


def test_every_test_of_a_mutant_exists():
    names = {name for mutant in MUTANTS for name in mutant.tests}
    assert not [name for name in sorted(names) if not exists(name)]


def test_every_name_that_a_mutant_introduces_is_defined():
    sources = [file.read_text(encoding="utf-8") for root in PACKAGES.values() for file in root.rglob("*.py")]
    known = FOREIGN.union(*map(words, sources))
    unknown = {mutant.name: names_of(mutant) - known for mutant in MUTANTS if ".h:" not in mutant.anchor}
    assert not {name: names for name, names in unknown.items() if names}
    headers = [file.read_text(encoding="utf-8") for root in PACKAGES.values() for file in root.rglob("*.h")]
    known = set().union(*map(words, headers))
    unknown = {mutant.name: words(mutant.replacement) - known for mutant in MUTANTS if ".h:" in mutant.anchor}
    assert not {name: names for name, names in unknown.items() if names}


def mistake(mutant: Mutant) -> str | None:
    try:
        text, _ = patched(mutant)
        if ".h:" not in mutant.anchor:
            ast.parse(text)
    except (LookupError, SyntaxError) as error:
        return f"{mutant.name}: {error}"
    return f"{mutant.name} changes nothing" if text == source_of(mutant) else None


def exists(name: str) -> bool:
    path, _, function = name.partition("::")
    file = Path(ROOT / path)
    return file.is_file() and f"def {function.partition('[')[0]}" in file.read_text(encoding="utf-8")


def names_of(mutant: Mutant) -> set[str]:
    """Names and attributes that the replacement reads and does not itself assign."""
    nodes = list(ast.walk(ast.parse(re.sub(r"\$\w+", "_", mutant.replacement))))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id for node in names} | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return used - {node.id for node in names if isinstance(node.ctx, ast.Store)} - {"_"}


def words(source: str) -> set[str]:
    return set(re.findall(r"(?<![$\w])[A-Za-z_]\w*", source))
