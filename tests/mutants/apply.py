"""Copies the package, breaks the copy, and runs ordinary tests against it in a process of their own."""

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import paceline
from tests.mutants import match_cpp, match_python
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
PACKAGES = {"paceline": Path(paceline.__file__).parent, "benchmarks": ROOT / "benchmarks"}


def file_of(mutant: Mutant) -> Path:
    """The anchor's file, below the folder that holds its package. Raises LookupError if there is none."""
    module = mutant.anchor.partition(":")[0]
    path = Path(module if module.endswith(".h") else module.replace(".", "/"))
    if path.parts[0] not in PACKAGES:
        path = "paceline" / path
    candidates = (path,) if path.suffix == ".h" else (path.with_suffix(".py"), path / "__init__.py")
    for file in candidates:
        if _path(file).is_file():
            return file
    raise LookupError(f"{mutant.name}: there is no {candidates[0]}{_elsewhere(mutant)}")


def source_of(mutant: Mutant) -> str:
    return _path(file_of(mutant)).read_text(encoding="utf-8")


def patched(mutant: Mutant) -> tuple[str, int]:
    """The source of the anchor's file with the mistake, and its line. Raises LookupError unless it matches once."""
    file, source, path = file_of(mutant), source_of(mutant), mutant.anchor.partition(":")[2]
    python = file.suffix == ".py"
    known = (match_python if python else match_cpp).definitions(source)
    if path and path not in known:
        near = ", ".join(difflib.get_close_matches(path, known, cutoff=0.5)) or "nothing like it"
        raise LookupError(f"{mutant.name}: {file} has no {path}, but {near}{_elsewhere(mutant)}")
    replace = match_python.replace_python if python else match_cpp.replace_cpp
    try:
        return replace(source, path, mutant.pattern, mutant.replacement)
    except LookupError as error:
        raise LookupError(f"{mutant.name}: {file}: {error}") from None


def line_of(mutant: Mutant) -> int:
    """Line of the mistake. Raises LookupError unless its pattern matches exactly once."""
    return patched(mutant)[1]


def kill(mutant: Mutant, folder: Path) -> str | None:
    """The first ordinary test that fails on the mutant, or None if it survives."""
    text, _ = patched(mutant)
    broken = folder / file_of(mutant)
    package = broken.relative_to(folder).parts[0]
    shutil.copytree(PACKAGES[package], folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    broken.write_text(text, encoding="utf-8")
    # -P and append: the copy comes before what lies in the working directory
    command = [sys.executable, "-P", "-m", "pytest", "--import-mode=append", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    if broken.suffix != ".py":  # a broken kernel is not kept with the good ones
        environment["PACELINE_CACHE"] = str(folder / "cache")
    run = subprocess.run(
        [*command, *mutant.tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    dead = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode not in (0, 1) or (run.returncode == 1 and dead is None):
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return dead.group(1) if dead else None


def _path(file: Path) -> Path:
    return PACKAGES[file.parts[0]].parent / file


def _elsewhere(mutant: Mutant) -> str:
    """Files in which something has the name that the anchor ends with."""
    name = re.split(r"[.:]", mutant.anchor.removesuffix(".h"))[-1]
    defined = re.compile(rf"\b(?:def|class|struct) {name}\b|^\S.*\b{name}\(.*\{{$", re.MULTILINE)
    found = [
        str(file.relative_to(root.parent))
        for root in PACKAGES.values()
        for file in root.rglob("*")
        if file.suffix in (".py", ".h") and defined.search(file.read_text(encoding="utf-8"))
    ]
    return f"; {name} is defined in {', '.join(sorted(found))}" if found else ""
