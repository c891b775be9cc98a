"""Puts real output into the pages: ``python docs/outputs.py [--check] [PAGE.md ...]``, all pages by default.

A fenced ``console`` block after a comment ``<!-- output: COMMAND -->`` becomes the command and what it prints, standard
error too if the command says ``2>&1``. The commands of a page run in a shell, one after another, in one temporary
directory, and find the embedded pair in $TARGET and $DRAFT, and raw figures of studies in $EXPERIMENTS. One that fails
leaves its page as it is; a command that is meant to fail ends in ``; echo "exit code $?"``. With ``--check`` nothing is
written: what would change is printed, and makes the exit code 1. Times differ from run to run, so some of it always
does.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BLOCK = re.compile(
    r"(?P<head><!-- output: (?P<command>[^\n]+?) -->\n+```console\n)(?P<body>.*?)(?P<tail>^```$)", re.M | re.S
)
FIXED = {"NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
FIXED["PACELINE_PROFILES"] = "profiles"  # none of this user's
LIMIT = 600  # seconds for one command
ROOT = Path(__file__).resolve().parents[1]  # where the benchmarks' package is


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
        env={**os.environ, **FIXED, **variables, "PATH": path, "PYTHONPATH": str(ROOT)},
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


def main(arguments: Sequence[str]) -> int:
    """Rewrite or check the pages; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md")
    parser.add_argument("--check", action="store_true", help="say what would change, and change nothing")
    given = parser.parse_args(arguments)
    from paceline.api import embedded_pair  # after the arguments, so that --help is quick

    variables = {name: str(path) for name, path in zip(("TARGET", "DRAFT"), embedded_pair(), strict=True)}
    folder = ROOT / "docs"
    variables["EXPERIMENTS"] = str(folder / "experiments")
    changed, failed = False, False
    for path in given.pages or sorted((*folder.glob("*.md"), *folder.glob("experiments/*.md"))):
        old = path.read_text(encoding="utf-8")
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
        elif new != old:
            path.write_text(new, encoding="utf-8")
    return 1 if failed or (given.check and changed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
