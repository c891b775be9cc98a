"""``python -m tests.clients [NAME ...]``: runs clients against `paceline serve`, and keeps what they print.

Outputs go to build/clients/NAME.txt. Exits 1 where one fails or measures other times than the server by more than a
twentieth, or where the server still runs something.
"""

import subprocess
import sys
import time

import httpx
from rich.console import Console
from rich.table import Table

from tests.clients.rates import compared, counted
from tests.clients.runs import runs
from tests.clients.served import serving
from tests.clients.venvs import FOLDER, versions

SECONDS = 900


def main(chosen):
    """Exit code."""
    console, failed = Console(width=120), []
    table = Table("client", "version", "exercised", "result", "seconds")
    with serving() as url:
        known = runs(url)
        for name in chosen or known:
            run, begin, before = known[name](), time.monotonic(), counted(url)
            done = subprocess.run(run.command, env=run.environment, capture_output=True, text=True, timeout=SECONDS)
            (FOLDER / f"{name.replace(' ', '-')}.txt").write_text(done.stdout + done.stderr)
            version = "of the system" if run.venv is None else versions(run.venv)
            result, agrees = "ok" if done.returncode == 0 else f"failed ({done.returncode})", True
            if run.rate is not None and done.returncode == 0:
                words, agrees = compared(run.rate(done.stdout, FOLDER), before, counted(url))
                result = f"{result if agrees else 'differs'}: {words}"
            said = done.stdout.strip().splitlines()[-1:] if run.exercised == "see its line" else [run.exercised]
            table.add_row(name, version, *(said or [""]), result, f"{time.monotonic() - begin:.0f}")
            if done.returncode or not agrees:
                failed.append(name)
                console.print(done.stdout[-2000:] + done.stderr[-3000:], markup=False)
        metrics = httpx.get(f"{url}/metrics").text
    left = [
        line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running") and line[-3:] != "0.0"
    ]
    console.print(table)
    if left:
        console.print(f"requests that still run: {left}")
    return int(bool(failed or left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
