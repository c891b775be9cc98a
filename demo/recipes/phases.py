"""How recipes are run: ``WORK [PHASE ...]``, all phases by default."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def run_phases(
    phases: Mapping[str, Callable[..., None]], description: str | None, *, before: Mapping[str, str] | None = None
) -> None:
    """Run the ``phases`` that the command line names, each with the paths of ``before`` (name: help) and WORK."""
    parser = argparse.ArgumentParser(description=description)
    for name, help in (before or {}).items():
        parser.add_argument(name, type=Path, help=help)
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "phases", nargs="*", choices=[[], *phases], default=[], metavar="PHASE", help=f"one of {', '.join(phases)}"
    )
    arguments: dict[str, Any] = vars(parser.parse_args())
    for name in arguments["phases"] or phases:
        print(f"{name} ...", flush=True)
        phases[name](*(arguments[path] for path in (*(before or {}), "work")))
