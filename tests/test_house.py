"""House rules that no other tool checks."""

import ast
import re
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import grimp
import pytest

import paceline
from paceline.drafters import DRAFTERS
from paceline.verifiers import VERIFIERS

SOURCE = Path(paceline.__file__).parent
REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"


def imports(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("registry", [DRAFTERS, VERIFIERS], ids=lambda registry: registry.kind)
def test_registered_parts_never_import_each_other(registry):
    modules = {entry.partition(":")[0] for entry in registry.entries.values()}
    for module in modules:
        path = SOURCE.parent / (module.replace(".", "/") + ".py")
        assert not imports(path) & (modules - {module}), module


def test_no_modules_import_each_other_in_a_circle():
    """Imports in functions and for types included. The package itself, which names what lies in it, is left out."""
    graph = grimp.build_graph("paceline", exclude_type_checking_imports=False, cache_dir=None)
    modules = graph.modules - {"paceline"}
    assert len(modules) > 500
    imported = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    TopologicalSorter(imported).prepare()  # raises CycleError with the circle


def test_every_registered_part_has_a_test_file_of_its_own():
    for name in DRAFTERS.builtin:
        assert (Path(__file__).parent / "drafters" / f"test_{name}.py").is_file(), name


def test_files_stay_within_their_size():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 320, path


def test_nothing_unpickles_weights_but_one_file_that_reads_tensors_alone():
    reader = SOURCE / "draft_heads" / "formats" / "head_files.py"
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        loads = re.findall(r"torch\.load\(.*", text)
        assert loads == (['torch.load(file, map_location="cpu", weights_only=True)'] if path == reader else []), path
        assert "trust_remote_code=True" not in text and "import pickle" not in text, path


def test_reference_names_modules_that_exist():
    names = re.findall(r"automodule:: (\S+)", REFERENCE.read_text(encoding="utf-8"))
    assert names and not [name for name in names if find_spec(name) is None]
