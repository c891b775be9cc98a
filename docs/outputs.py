"""Puts real output into the pages: ``python docs/outputs.py [--check | --stale] [PAGE.md ...]``, all pages by default.

A fenced ``console`` block after a comment ``<!-- output: COMMAND -->`` becomes the command and what it prints, standard
error too if the command says ``2>&1``. The commands of a page run in a shell, one after another, in one temporary
directory, and find the embedded pair in $TARGET and $DRAFT, and raw figures of studies in $EXPERIMENTS. One that fails
leaves its page as it is; a command that is meant to fail ends in ``; echo "exit code $?"``. With ``--check`` nothing is
written: what would change is printed, and makes the exit code 1. Times differ from run to run, so some of it always
does. ``--stale`` runs the pages alone of which a command, or the code that prints its output, has changed since it was
run: outputs.json keeps a hash of both, which the suite checks.
"""

import argparse
import ast
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

BLOCK = re.compile(
    r"(?P<head><!-- output: (?P<command>[^\n]+?) -->\n+```console\n)(?P<body>.*?)(?P<tail>^```$)", re.M | re.S
)
FIXED = {"NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
FIXED["PACELINE_PROFILES"] = "profiles"  # none of this user's
LIMIT = 600  # seconds for one command
ROOT = Path(__file__).resolve().parents[1]  # where the benchmarks' package is


PROGRAMS = (  # how a command names its program, and the folder of the module that prints
    (re.compile(r"\bpaceline ([a-z]+)(?: ([a-z]+))?"), ROOT / "src/paceline/cli/commands"),
    (re.compile(r"\bpython -m benchmarks ([a-z-]+)()"), ROOT / "benchmarks"),
)
DIGESTS = ROOT / "docs/outputs.json"


class CommandError(Exception):
    """A command of a page failed."""


def rewrite(page: str, *, variables: Mapping[str, str]) -> str:
    """The page with fresh output; ``variables`` are set for the commands, and their values shown by name."""
    with tempfile.TemporaryDirectory() as folder:

        def refresh(block: re.Match[str]) -> str:
            shown = run(block["command"], folder=Path(folder), variables=variables)
            return f"{block['head']}$ {block['command']}\n{shown}{block['tail']}"

        return BLOCK.sub(refresh, page)


def run(command: str, *, folder: Path, variables: Mapping[str, str]) -> str:
    """What ``command`` prints, without trailing spaces and without paths of this machine.

    Raises CommandError if it fails.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            **FIXED,
            **variables,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        },
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT,
    )
    text = done.stdout.decode("utf-8", errors="replace")
    if done.returncode:
        errors = done.stderr.decode("utf-8", errors="replace")
        raise CommandError(f"exit code {done.returncode} of: {command}\n{text}{errors}")
    for name, value in variables.items():
        text = text.replace(value, f"${name}")
    lines = [line.rstrip() for line in text.replace(f"{folder}/", "").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def digests(page: str) -> dict[str, str]:
    """A hash of every command of the page, together with the code that prints its output."""
    found: dict[str, str] = {}
    for block in BLOCK.finditer(page):
        files = {file for start in _modules(block["command"]) for file in _imported(start)}
        whole = hashlib.sha256(block["command"].encode())
        for file in sorted(files):
            whole.update(file.read_bytes())
        found[block["command"]] = whole.hexdigest()[:16]
    return found


def pages() -> list[Path]:
    """All pages that show output."""
    folder = ROOT / "docs"
    return sorted(path for path in folder.rglob("*.md") if BLOCK.search(path.read_text(encoding="utf-8")))


def _modules(command: str) -> Iterator[Path]:
    for program, folder in PROGRAMS:
        for first, second in program.findall(command):
            names = (f"{first}_{second}", first) if second else (first,)
            paths = (folder / f"{name.replace('-', '_')}.py" for name in names)
            yield from [path for path in paths if path.exists()][:1]


@cache
def _imported(start: Path) -> frozenset[Path]:
    """``start`` and what it imports of the command line's or the benchmarks' own modules, directly or not."""
    found, queue = {start}, [start]
    while queue:
        for node in ast.walk(ast.parse(queue.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                top = ROOT if node.module.startswith("benchmarks.") else ROOT / "src"
                path = (top / node.module.replace(".", "/")).with_suffix(".py")
                shows = node.module.startswith(("benchmarks.", "paceline.cli."))
                if shows and path.exists() and path not in found:
                    found.add(path)
                    queue.append(path)
    return frozenset(found)


def main(arguments: Sequence[str]) -> int:
    """Rewrite or check the pages; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md")
    parser.add_argument("--check", action="store_true", help="say what would change, and change nothing")
    parser.add_argument("--stale", action="store_true", help="run the pages alone that are not current")
    given = parser.parse_args(arguments)
    from paceline.api import embedded_pair  # after the arguments, so that --help is quick

    variables = {name: str(path) for name, path in zip(("TARGET", "DRAFT"), embedded_pair(), strict=True)}
    folder = ROOT / "docs"
    variables["EXPERIMENTS"] = str(folder / "experiments")
    changed, failed = False, False
    known: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    for path in [page.resolve() for page in given.pages] or pages():
        old = path.read_text(encoding="utf-8")
        name, current = os.path.relpath(path, folder), digests(old)
        if given.stale and known.get(name) == current:
            continue
        try:
            new = rewrite(old, variables=variables)
        except CommandError as error:
            print(f"{path} stays as it is: {error}", file=sys.stderr)
            failed = True
            continue
        changed |= new != old
        if given.check:
            names = {"fromfile": str(path), "tofile": f"{path} (fresh)"}
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), **names))
            continue
        if new != old:
            path.write_text(new, encoding="utf-8")
        if path.is_relative_to(folder):
            known[name] = current
            DIGESTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if failed or (given.check and changed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
