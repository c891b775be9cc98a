"""``python -m tests.serve.fuzz``: ten thousand fresh requests to the server, and how each kind was answered.

Bodies go to every drafter in turn, bytes to one server, and the requests of Schemathesis to every route of its page.
Exits 1 where one was answered as it must not be, with the seed that shows it again.
"""

import argparse
import secrets
import sys
import time
import traceback

from rich.console import Console
from rich.table import Table

from tests.fuzz.target import designs
from tests.serve.fuzz.attack import attack_with_bodies, attack_with_bytes
from tests.serve.fuzz.judge import Tally
from tests.serve.fuzz.pages import check_page

GROUP = 25  # requests to a server, before the next is begun
ROUTES = 13


def main():
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.serve.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="in all: half bodies, and a quarter of the others")
    parser.add_argument("--seed", type=int, default=None, help="of what is made up (a fresh one)")
    asked = parser.parse_args()
    number = secrets.randbits(32) if asked.seed is None else asked.seed
    console, begin, known = Console(width=100), time.monotonic(), designs()
    tallies = {"bodies": Tally(), "bytes": Tally(), "page": Tally()}
    console.print(f"seed {number}")
    wrong = 0
    for group in range(max(1, asked.requests // 2 // GROUP)):
        design = known[(number + group) % len(known)]
        wrong += failed(attack_with_bodies, design, GROUP, number + group, tallies["bodies"])
    for group in range(max(1, asked.requests // 4 // 250)):
        wrong += failed(attack_with_bytes, 250, number + group, tallies["bytes"])
    wrong += failed(check_page, max(1, asked.requests // 4 // ROUTES), number, tallies["page"])
    while (left := asked.requests - sum(tally["requests"] for tally in tallies.values())) > 0:
        number += 1  # routes that take nothing have few requests to make up
        wrong += failed(attack_with_bytes, min(left, 250), number, tallies["bytes"])
    table = Table("requests", "sent", "answered", "equal to the offline engine's")
    for name, tally in tallies.items():
        codes = ", ".join(f"{code}: {tally[code]:,}" for code in sorted(tally) if code.isdecimal())
        table.add_row(name, f"{tally['requests']:,}", codes, f"{tally['compared']:,}")
    console.print(table)
    total = sum(tally["requests"] for tally in tallies.values())
    console.print(f"{total:,} requests, {time.monotonic() - begin:.0f} s, seed {number}; groups that failed: {wrong}")
    return int(wrong > 0)


def failed(attack, *arguments):
    """Whether ``attack`` found something, which is printed."""
    try:
        attack(*arguments)
    except Exception:
        traceback.print_exc()
        print(f"shown again by {attack.__name__}{arguments[:-1]}", file=sys.stderr)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
