"""Copies the package, breaks the copy, and runs ordinary tests against it in a process of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import paceline
from tests.mutants.mutant import Mutant

SOURCE = Path(paceline.__file__).parent
ROOT = Path(__file__).parents[2]


def line_of(mutant: Mutant) -> int:
    """Line of the patched text. Raises ValueError unless it stands exactly once."""
    text = (SOURCE / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.name}: the text to patch stands {text.count(mutant.before)} times in {mutant.file}")
    return text[: text.index(mutant.before)].count("\n") + 1


def kill(mutant: Mutant, folder: Path) -> str | None:
    """The first ordinary test that fails on the mutant, or None if it survives."""
    line_of(mutant)
    package = folder / "paceline"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    broken = package / mutant.file
    broken.write_text(broken.read_text(encoding="utf-8").replace(mutant.before, mutant.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    if broken.suffix != ".py":  # a broken kernel is not kept with the good ones
        environment["PACELINE_CACHE"] = str(folder / "cache")
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    dead = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode not in (0, 1) or (run.returncode == 1 and dead is None):
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return dead.group(1) if dead else None
