"""``python -m tests.distributions``: enumerates every distribution, with a table of their number and worst error."""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main() -> int:
    """Exit code of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "distributions.jsonl"
        command = [sys.executable, "-m", "pytest", "tests/distributions", "-q", "-n", "auto", "--dist", "worksteal"]
        code = subprocess.run(command, env={**os.environ, "PACELINE_DISTRIBUTIONS": str(path)}).returncode
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    groups = defaultdict(list)
    for one in found:
        groups[one["verifier"], one["tree"], one["draw"]].append(one)
    table = Table("verifier", "tree", "draw", title="Distributions")
    for title in ("distributions", "scripts", "worst total variation"):
        table.add_column(title, justify="right")
    for key, group in sorted(groups.items()):
        rows, worst = sum(one["rows"] for one in group), max(one["error"] for one in group)
        table.add_row(*key, f"{len(group):,}", f"{rows:,}", f"{worst:.1e}")
    Console(width=100).print(table)
    rows, worst = sum(one["rows"] for one in found), max((one["error"] for one in found), default=0.0)
    print(f"{len(found):,} distributions, {rows:,} scripts, worst total variation {worst:.1e}")
    return code


if __name__ == "__main__":
    sys.exit(main())
