"""What a mutant is, and how a table of them is read."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Mutant:
    """A mistake to plant: in the definition that ``anchor`` names, ``pattern`` becomes ``replacement``.

    The anchor is ``module.path:Class.function`` for Python and ``folder/file.h:Class::function`` for C++, relative to
    the package; without a colon it is the whole file. Patterns are those of ``match_python`` and ``match_cpp``, and
    match exactly once. ``tests`` are where to look first.
    """

    name: str
    anchor: str = ""
    pattern: str = ""
    replacement: str = ""
    tests: list[str] = field(default_factory=list)


def read(file: Path) -> list[Mutant]:
    """The mutants of a table: after its title, a block of lines for each, the blocks apart by an empty line.

    The first line is the name. Then ``@`` marks the anchor, ``?`` a test, ``-`` the pattern and ``+`` the replacement.
    """
    title, *blocks = file.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    assert "\n" not in title, f"{file} begins with a mutant, which would be taken for its title"
    return [_mutant(*block.split("\n")) for block in blocks]


def _mutant(name: str, *lines: str) -> Mutant:
    marked = {mark: [line[2:] for line in lines if line[:2] == f"{mark} "] for mark in "@?-+"}
    if len(marked["@"]) != 1 or not marked["?"] or not marked["-"] or sum(map(len, marked.values())) != len(lines):
        raise ValueError(f"mutant {name!r}: give one line with @, some with ?, some with - and any with +")
    pattern, replacement = "\n".join(marked["-"]), "\n".join(marked["+"])
    return Mutant(name, marked["@"][0], pattern, replacement, [f"tests/{test}" for test in marked["?"]])
