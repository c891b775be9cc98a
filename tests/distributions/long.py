"""``python -m tests.distributions.long``: test_end_to_end with fresh seeds and more samples, and a table.

All rounds of a case are added up before anything is tested, so that looking more often finds nothing more often. The
exit code is 1 if a verifier that promises the distribution fails, or one that does not promise it passes.
"""

import argparse
import secrets
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from tests.distributions.end_to_end import Case, Sampled, cases, cases_of_heads, chances, sample
from tests.distributions.gtest import holm

LEVEL = 1e-3  # of a false alarm anywhere in a run in which all verifiers are right
SEQUENCES, ROWS = 4000, 1600  # of a case in a round


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.distributions.long", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=4, help=f"of {SEQUENCES:,} sequences per case (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="of a former run, to repeat it (default: a fresh one)")
    parser.add_argument("--only", default="", help="cases whose names contain this, like traversal-iid-tree or prophet")
    asked = parser.parse_args()
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    known = cases(lossless=True) + cases(lossless=False) + cases_of_heads()
    chosen = [case for case in known if asked.only in str(case)]
    if asked.rounds < 1 or not 0 <= seed < 10**6 or not chosen:
        parser.error(f"give at least 1 round, a seed from 0 to {10**6 - 1:,} and a name that some case has")
    repeat = f"--rounds {asked.rounds} --seed {seed}" + f" --only {asked.only}" * bool(asked.only)
    print(f"python -m tests.distributions.long {repeat}", flush=True)

    torch.set_num_threads(1)
    start, found = time.monotonic(), {}
    for number in range(asked.rounds):
        for case in chosen:
            if number and not case.lossless:
                continue  # what changes the distribution shows at once
            # Seeds of cases and rounds lie apart, and so do those of runs.
            apart = (seed * 1000 + known.index(case)) * 1000 + number
            fresh = sample(case, num_sequences=SEQUENCES, rows=ROWS, seed=apart)
            found[case] = found[case] + fresh if number else fresh
        print(f"round {number + 1} of {asked.rounds}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return judge(found, time.monotonic() - start)


def judge(found: dict[Case, Sampled], seconds: float) -> int:
    """Print what was found; 1 if anything is not as it should be."""
    values = {case: chances(sampled, case.source) for case, sampled in found.items()}
    exact = [case for case in found if case.lossless]
    flat = [(case, name, chance) for case in exact for name, chance in values[case].items()]
    failed = [flat[i] for i, bad in enumerate(holm([chance for *_, chance in flat], LEVEL)) if bad]
    failing = {case for case, *_ in failed}
    num_tests = sum(len(values[case]) for case in found)

    table = Table(
        "verifier",
        "draw",
        "shape",
        "drafter",
        title="Sequences of a tiny transformer, against their exact joint distribution",
    )
    for title in ("tests", "smallest p", "where", "sequences", "kept", "tokens/step", ""):
        table.add_column(title, justify="left" if title == "where" else "right")
    wrong = 0
    for case, sampled in found.items():
        where = min(values[case], key=values[case].__getitem__)
        least = values[case][where]
        differs = least * num_tests < LEVEL if not case.lossless else case in failing
        wrong += differs is case.lossless
        judgement = ("FAILED" if differs else "ok") if case.lossless else ("detected" if differs else "NOT DETECTED")
        table.add_row(
            case.verifier,
            case.draw.name.lower().replace("_", " "),
            case.shape,
            case.source,
            str(len(values[case])),
            f"{least:.1e}",
            where,
            f"{sampled.num_sequences:,}",
            f"{sum(sampled.accepted) / sum(sampled.drafted):.2f}",
            f"{sampled.tokens_per_step:.2f}",
            judgement,
        )
    Console(width=140).print(table)
    for case, name, chance in failed:
        print(f"{case}, {name}: p = {chance:.1e}")
    sequences = sum(sampled.num_sequences for sampled in found.values())
    least = min((chance for *_, chance in flat), default=1.0)
    print(
        f"{len(flat):,} tests of {len(exact)} lossless cases, smallest p {least:.1e}, {len(failed)} fail at the "
        f"family-wise level {LEVEL:g} (Holm); {len(found) - len(exact)} lossy cases; "
        f"{sequences:,} sequences in {seconds:.0f} s"
    )
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
