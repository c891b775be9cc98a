"""``python -m benchmarks.verifier_cost``: cost of a step for each verifier, by rows, vocabulary and draft."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.verifier_cost.cases import TREE, Cell, Rule, chain_of
from benchmarks.verifier_cost.measure import Work, measure_rules, read_rules, write_rules, write_whole
from benchmarks.verifier_cost.table import footnotes, rule_tables, rules_to_csv
from paceline.bench.raw import Record
from paceline.verifiers import VERIFIERS

ROWS, VOCABS, LENGTHS = (1, 8), (4096, 32768, 131072), (1, 4, 8)
QUICK_ROWS, QUICK_VOCABS, QUICK_LENGTHS = (2,), (512,), (1, 4)
MANY_ROWS, MANY_VOCAB = 32, 131072
COMMON = ("coupled", "rejection")  # timed at many rows, and greedily too
REPEATS, SECONDS = 7, 2.0
WIDTH = 140  # of the tables where there is no terminal


def main(arguments: Sequence[str]) -> int:
    """Time the rules and print the tables, or print those of a file; the exit code."""
    given = _parser().parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    try:
        records = _measure(given, console) if given.show is None else _read(given)
        _print(records, console)
        if given.output is not None:
            table = given.output.with_suffix(".csv")
            write_rules(given.output, records)
            write_whole(table, rules_to_csv(records))
            console.print(f"{given.output} and {table} are written", soft_wrap=True)
    except ValueError as error:
        print(f"python -m benchmarks.verifier_cost: {error}", file=sys.stderr)
        return 2
    return 0


def plan(
    rules: Sequence[str], *, rows: Sequence[int], vocabs: Sequence[int], lengths: Sequence[int], many: bool
) -> list[Work]:
    """Every cell with the rules to time there; ``many`` adds cells of many rows for the common rules alone.

    Raises ValueError for counts that leave nothing to verify.
    """
    both = [Rule(verifier=name) for name in rules]
    both += [Rule(verifier=name, temperature=0.0) for name in COMMON if name in rules]
    common = [rule for rule in both if rule.verifier in COMMON]
    shapes = [*map(chain_of, dict.fromkeys(lengths)), TREE]
    work: list[Work] = [
        (Cell(num_rows=count, vocab_size=vocab, shape=shape), both)
        for count in dict.fromkeys(rows)
        for vocab in dict.fromkeys(vocabs)
        for shape in shapes
    ]
    if many and common:
        work += [(Cell(num_rows=MANY_ROWS, vocab_size=MANY_VOCAB, shape=shape), common) for shape in shapes[:-1]]
    return work


def _read(given: argparse.Namespace) -> list[Record]:
    known = ("show", "rows", "vocab")
    others = [name for name, value in vars(given).items() if name not in known and value not in (None, False)]
    if others:
        raise ValueError(f"--show times nothing, so --{others[0].replace('_', '-')} has no effect; leave it out")
    conditions, *cells = read_rules(given.show)
    found = [
        cell
        for cell in cells
        if cell["rows"] in (given.rows or [cell["rows"]]) and cell["vocab"] in (given.vocab or [cell["vocab"]])
    ]
    if not found:
        sizes = ", ".join(dict.fromkeys(f"{cell['rows']} x {cell['vocab']}" for cell in cells))
        raise ValueError(f"{given.show} has no such cells; its rows and vocabularies: {sizes}")
    return [conditions, *found]


def _measure(given: argparse.Namespace, console: Console) -> list[Record]:
    threads = 1 if given.threads is None else given.threads
    if threads < 1:
        raise ValueError(f"threads={threads}: give at least 1")
    if given.output is not None and not given.output.parent.is_dir():
        raise ValueError(f"{given.output}: no such directory: {given.output.parent}; create it, or give another")
    if given.output is not None and given.output.suffix == ".csv":
        raise ValueError(f"{given.output}: that is where the CSV goes; give a name that ends in .jsonl")
    for name in given.verifier or ():
        VERIFIERS.find(name)
    grid = given.rows is None and given.vocab is None and not given.quick
    work = plan(
        given.verifier or list(VERIFIERS),
        rows=given.rows or (QUICK_ROWS if given.quick else ROWS),
        vocabs=given.vocab or (QUICK_VOCABS if given.quick else VOCABS),
        lengths=given.k or (QUICK_LENGTHS if given.quick else LENGTHS),
        many=grid,
    )
    torch.set_num_threads(threads)
    with console.status("") as status:
        return measure_rules(
            work,
            repeats=REPEATS if given.repeats is None else given.repeats,
            seconds=SECONDS if given.seconds is None else given.seconds,
            processor_time=given.processor_time,
            progress=status.update,
        )


def _print(records: Sequence[Record], console: Console) -> None:
    first = records[0]
    machine = first["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    console.print(f"{machine['processor']}, threads: {first['threads']} of {machine['num_cores']} cores; {versions}")
    clock = "processor time" if first["processor_time"] else "time that passed"
    console.print(f"{first['precision']}, T = 1 unless T = 0 is said; {clock}, {first['repeats']} repeats at least\n")
    for table in rule_tables(records):
        console.print(table)
        console.print()
    for line in footnotes(records):
        console.print(line, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifier_cost", description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help="of a call; 1 and 8 by default")
    parser.add_argument("--vocab", type=int, action="append", help="4096, 32768 and 131072 by default")
    parser.add_argument("--k", type=int, action="append", help="lengths of chains; 1, 4 and 8 by default")
    parser.add_argument("--verifier", action="append", help="all that are registered by default")
    parser.add_argument("--repeats", type=int, help="of every call at least; 7 by default")
    parser.add_argument("--seconds", type=float, help="that the repeats of a cell take at least; 2 by default")
    parser.add_argument("--threads", type=int, help="1 by default")
    parser.add_argument(
        "--processor-time", action="store_true", help="where other programs run: what was computed, not what passed"
    )
    parser.add_argument("--quick", action="store_true", help="2 rows, vocabulary 512, k of 1 and 4 unless given")
    parser.add_argument("--output", type=Path, help="file for the raw figures, FILE.jsonl; a CSV is put beside it")
    parser.add_argument(
        "--show", type=Path, help="print the tables of such a file, of --rows and --vocab if given; times nothing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
