"""``python -m benchmarks.sampling_cost``: what a step pays for each sampling option, by rows, draft and vocabulary."""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.sampling_cost.cases import Cell, Prepared
from benchmarks.sampling_cost.measure import Progress, begin, measure_cells
from benchmarks.sampling_cost.table import footnotes, tables_of
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.machine import describe, hash_source
from paceline.bench.output import run_command
from paceline.bench.raw import RawFile, hash_model
from paceline.bench.timing import read_rate
from paceline.models.loading import dtype_name

ROWS, LENGTHS = (1, 8), (0, 5)
REPEATS, SECONDS = 15, 25.0
WIDTH = 160  # of the tables where there is no terminal


def main(arguments: Sequence[str]) -> int:
    """Measure what the file lacks and print the tables; the exit code."""
    return run_command(_run, _parser().parse_args(arguments), "python -m benchmarks.sampling_cost")


def _run(given: argparse.Namespace) -> None:
    if given.threads < 1:
        raise ValueError(f"threads={given.threads}: give at least 1")
    if given.processor_time and given.threads > 1:
        raise ValueError(f"processor time of {given.threads} threads is the sum of theirs: take one")
    raw = RawFile(given.output)
    if not given.report:
        if given.target is None or given.draft is None or len(given.target) != len(given.draft):
            raise ValueError("give --target and --draft, once for each pair, or --report to print what the file holds")
        torch.set_num_threads(given.threads)
        with Console(stderr=True, highlight=False).status("measuring ...") as status:
            for target, draft in zip(given.target, given.draft, strict=True):
                _measure(target, draft, given, raw, _saying(status.update, target))
    tables = tables_of(raw.records)
    if not tables:
        raise ValueError(f"{given.output} holds no figures of options; measure some first, without --report")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for table in tables:
        console.print(table)
        console.print()
    for line in footnotes():
        console.print(line, soft_wrap=True, markup=False)


def _saying(update: Progress, target: Path) -> Progress:
    return lambda text: update(f"{target.name}: {text}")


def _measure(target_path: Path, draft_path: Path, given: argparse.Namespace, raw: RawFile, say: Progress) -> None:
    say("loading")
    target = load(target_path, dtype=given.dtype, device="cpu")
    draft = load(draft_path, dtype=target.dtype, device="cpu")
    if target.tokenizer is None:
        raise ValueError(f"--target {target_path}: it has no tokenizer, and prompts are texts")
    conditions = {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "dtype": dtype_name(target.dtype),
        "target": {"name": target_path.name, "hash": hash_model(target_path)},
        "draft": {"name": draft_path.name, "hash": hash_model(draft_path)},
        "repeats": given.repeats,
        "seconds": given.seconds,
        "processor_time": given.processor_time,
    }

    def notes() -> dict[str, object]:
        say("reading memory")
        return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "bytes_per_second": read_rate()}

    cells = [
        Cell(num_rows=rows, num_draft_tokens=k)
        for rows in dict.fromkeys(given.rows or ROWS)
        for k in dict.fromkeys(LENGTHS if given.k is None else given.k)
    ]
    models = {"target": runnable(target), "draft": runnable(draft)}
    prepare = partial(Prepared, **models, tokenizer=target.tokenizer, itemsize=target.dtype.itemsize)
    run = begin(raw, conditions=conditions, notes=notes)
    clock = time.process_time if given.processor_time else time.perf_counter
    measure_cells(cells, prepare, raw=raw, run=run, repeats=given.repeats, seconds=given.seconds, clock=clock, say=say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling_cost", description=__doc__)
    parser.add_argument("--target", type=Path, action="append", help="directory; may be repeated, each with a --draft")
    parser.add_argument("--draft", type=Path, action="append", help="directory of its draft model")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, action="append", help="of a batch; 1 and 8 by default")
    parser.add_argument("--k", type=int, action="append", help="draft tokens, 0 for plain decoding; 0 and 5 by default")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of every step at least; 15 by default")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a cell takes at least; 25 by default")
    parser.add_argument(
        "--processor-time", action="store_true", help="where other programs run: what was computed, not what passed"
    )
    parser.add_argument("--output", type=Path, required=True, help="file of raw figures, continued if it is there")
    parser.add_argument("--report", action="store_true", help="measure nothing: print what the file holds")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
