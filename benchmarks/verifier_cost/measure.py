"""Times every rule in every cell and keeps what was found as records. Knows nothing of tables or options."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch

from benchmarks.verifier_cost.cases import DISTANCE, SPREAD, Call, Cell, Prepared, Rule
from paceline.bench.machine import describe, hash_source
from paceline.bench.raw import Record, fingerprint
from paceline.bench.statistics import paired_ratios
from paceline.bench.timing import Clock, read_rate, time_in_turn

RUN, CELL = "rules", "rules-cell"
PLAIN_PICK, CONTROL = "plain pick", "plain pick again"

Work: TypeAlias = tuple[Cell, Sequence[Rule]]


def measure_rules(
    work: Sequence[Work],
    *,
    repeats: int,
    seconds: float,
    seed: int = 0,
    processor_time: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Record]:
    """Time the rules of every cell in turn, on torch's threads as they are now; one record of conditions, one per cell.

    A cell has ``repeats`` at least, and more until they have taken ``seconds`` together. ``processor_time`` counts what
    the threads computed, the system's work for them included, and not when they had to wait for other programs. Raises
    ValueError for fewer repeats than 1, less than no seconds, no cells, and processor time on several threads.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: give at least 1")
    if not seconds >= 0:
        raise ValueError(f"seconds={seconds}: give 0 or more")
    if not work:
        raise ValueError("no cells: give at least one number of rows, vocabulary and draft length")
    if processor_time and torch.get_num_threads() > 1:
        raise ValueError(
            f"processor time of {torch.get_num_threads()} threads is the sum of theirs, which nobody waits for; "
            "take one thread, or the time that passes"
        )
    clock = time.process_time if processor_time else time.perf_counter
    say = progress or (lambda _: None)
    say("reading memory")
    conditions: dict[str, Any] = {
        "machine": asdict(describe()),
        "code": hash_source(),
        "precision": "float32",
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "seconds": seconds,
        "seed": seed,
        "spread": SPREAD,
        "distance": DISTANCE,
        "processor_time": processor_time,
        "bytes_per_second": read_rate(clock=clock),
    }
    run = fingerprint(conditions)
    records: list[Record] = [{"kind": RUN, "run": run, **conditions}]
    for number, (cell, rules) in enumerate(work, start=1):
        say(f"cell {number} of {len(work)}: {cell.num_rows} rows, vocabulary {cell.vocab_size}, {cell.shape.name}")
        found = _measure_cell(Prepared(cell, seed=seed), rules, repeats=repeats, seconds=seconds, clock=clock)
        records.append({"kind": CELL, "run": run, **found})
    return records


def _measure_cell(
    prepared: Prepared, rules: Sequence[Rule], *, repeats: int, seconds: float, clock: Clock
) -> dict[str, Any]:
    calls: dict[str, Call] = {PLAIN_PICK: prepared.plain(1.0)}
    temperature = {PLAIN_PICK: 1.0, **{rule.name: rule.temperature for rule in rules}}
    if any(rule.temperature == 0 for rule in rules):
        name = f"{PLAIN_PICK}, T = 0"
        calls[name], temperature[name] = prepared.plain(0.0), 0.0
    refused: dict[str, str] = {}
    tokens: dict[str, float] = {}
    for rule in rules:
        try:
            call = prepared.call(rule)
            with torch.inference_mode():
                tokens[rule.name] = float(call.run().num_committed.double().mean())  # the warm-up, too
        except ValueError as error:
            refused[rule.name] = str(error)
        else:
            calls[rule.name] = call
    runs = {name: call.run for name, call in calls.items()}
    with torch.inference_mode():
        for name in runs.keys() - tokens.keys():
            runs[name]()
    taken = time_in_turn({**runs, CONTROL: runs[PLAIN_PICK]}, repeats=repeats, seconds=seconds, warm_up=0, clock=clock)
    again = taken.pop(CONTROL)
    cell = prepared.cell
    return {
        "rows": cell.num_rows,
        "vocab": cell.vocab_size,
        "shape": cell.shape.name,
        "num_nodes": cell.shape.topology.num_drafted + 1,
        "control": median(paired_ratios(taken[PLAIN_PICK], again)),
        "timed": {
            name: {
                "temperature": temperature[name],
                "draw": calls[name].draw.name.lower(),
                "logits_bytes": calls[name].logits_bytes,
                "laws_bytes": calls[name].laws_bytes,
                "tokens_per_step": tokens.get(name, 1.0),
                "seconds": list(values),
            }
            for name, values in taken.items()
        },
        "refused": refused,
    }


def write_rules(path: Path, records: Sequence[Record]) -> None:
    """Put ``records`` into ``path``, one a line. Raises ValueError where it cannot be written."""
    write_whole(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def write_whole(path: Path, text: str) -> None:
    """Put ``text`` into ``path``, all of it or nothing. Raises ValueError where it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a file in a directory that can be written") from error


def read_rules(path: Path) -> list[Record]:
    """What ``write_rules`` wrote. Raises ValueError for a file that cannot be read or holds anything else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a file that this command wrote with --output") from error
    try:
        records: list[Record] = [json.loads(line) for line in lines]
        kinds = [record["kind"] for record in records]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of this command; give one that it wrote with --output") from error
    if kinds[:1] != [RUN] or set(kinds[1:]) != {CELL}:
        raise ValueError(f"{path}: not a file of this command; give one that it wrote with --output")
    return records
