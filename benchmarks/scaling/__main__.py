"""``python -m benchmarks.scaling``: how a step grows with rows, nodes and context; the time to the first token."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.inflate import inflate_to, read_count, write
from benchmarks.scaling.figures import axes_in, last_run, tables_of
from benchmarks.scaling.first import measure_first
from benchmarks.scaling.measure import (
    PROMPTS,
    Progress,
    Timing,
    begin,
    measure_axes,
    measure_mixes,
    measure_prefill,
    rates_of,
)
from benchmarks.scaling.points import CONTEXTS, NODES, ROWS, Axis, axes_of
from benchmarks.scaling.ragged import MIXES
from paceline.api import embedded_pair, load
from paceline.api.loading import runnable
from paceline.bench.machine import describe, hash_source
from paceline.bench.output import check_drawing, run_command
from paceline.bench.raw import RawFile, Record, hash_model
from paceline.hardware.rates import WORKING_SET, measure_rates
from paceline.models.backend import gemm_for
from paceline.models.loading import dtype_name
from paceline.models.loading import load as load_decoder
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work

PARAMETERS = "200M"  # of the target by default
FIRST_PROMPT = 1000  # tokens
RATE_REPEATS = 15  # the best of them counts, and the machine may be busy
WIDTH = 150  # of the tables where there is no terminal
LEAST = 4 << 20  # bytes of a working set whose reading takes longer than the call


def main(arguments: Sequence[str]) -> int:
    """Measure what the file lacks, draw the picture and print the tables; the exit code."""
    return run_command(_run, _parser().parse_args(arguments), "python -m benchmarks.scaling")


def _run(given: argparse.Namespace) -> None:
    check_drawing()
    axes = axes_of(given.rows or ROWS, given.nodes or NODES, given.context or CONTEXTS)
    if given.threads < 1:
        raise ValueError(f"threads={given.threads}: give at least 1")
    raw = RawFile(given.output)
    if not given.report:
        torch.set_num_threads(given.threads)
        timing = Timing(repeats=given.repeats, seconds=given.seconds, processor_time=given.processor_time)
        with Console(stderr=True, highlight=False).status("measuring ...") as status:
            _measure(given, raw, axes, timing, status.update)
    _report(given, raw)


def _measure(given: argparse.Namespace, raw: RawFile, axes: Sequence[Axis], timing: Timing, say: Progress) -> None:
    path, draft_path = _models(given, say)
    target = load(path, dtype=given.dtype, device="cpu")
    draft = None if draft_path is None else load(draft_path, dtype=target.dtype, device="cpu")
    decoder = target.lm
    if not isinstance(decoder, DecoderLM):
        raise ValueError(f"--target {path}: only native models have a floor; give one of a known family")
    conditions = {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "dtype": dtype_name(target.dtype),
        "target": {"name": path.name, "hash": hash_model(path)},
        "draft": None if draft_path is None else {"name": draft_path.name, "hash": hash_model(draft_path)},
        **asdict(timing),
    }
    run = begin(raw, conditions=conditions, notes=lambda: _notes(decoder, timing, say))
    measure_first(given.prompt, target=target, draft=draft, path=path, raw=raw, run=run, timing=timing, say=say)
    lm = runnable(target)
    lengths = given.length or PROMPTS
    measure_prefill(lengths, target=lm, eager=decoder, raw=raw, run=run, timing=timing, say=say)
    # What a step costs does not depend on how long a text the model was trained for.
    longest = max(point.context + point.nodes for axis in axes for point in axis.points) + 1
    decoder.config = replace(decoder.config, max_positions=max(longest, decoder.config.max_positions))
    measure_axes(axes, target=lm, raw=raw, run=run, timing=timing, say=say)
    measure_mixes(MIXES, target=lm, raw=raw, run=run, say=say)


def _models(given: argparse.Namespace, say: Progress) -> tuple[Path, Path | None]:
    """Directories of the target and of its draft."""
    if given.target is not None:
        return given.target, given.draft
    if given.draft is not None:
        raise ValueError(f"--draft {given.draft}: give --target too, or neither for the embedded pair, inflated")
    small, draft = embedded_pair()
    folder = Path(tempfile.gettempdir()) / f"paceline-demo-{PARAMETERS}"
    if not (folder / "config.json").exists():
        say(f"inflating the embedded target to {PARAMETERS}")
        lm = inflate_to(load_decoder(small, dtype=torch.bfloat16), num_parameters=read_count(PARAMETERS))
        write(lm, folder, source=small, name="paceline-demo-target")
    return folder, draft


def _notes(decoder: DecoderLM, timing: Timing, say: Progress) -> Record:
    """When it was, and what the floor is made of."""
    work = forward_work(decoder)
    size = max(LEAST, min(WORKING_SET, work.weight_bytes))
    rates = measure_rates(
        gemm_for=gemm_for,
        dtypes=[decoder.dtype],
        device=decoder.device,
        working_set=size,
        repeats=RATE_REPEATS,
        progress=say,
        clock=timing.clock,
    )
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "work": asdict(work), "rates": asdict(rates)}


def _report(given: argparse.Namespace, raw: RawFile) -> None:
    run = last_run(raw.records)
    from benchmarks.scaling.plot import draw  # needs the optional matplotlib

    conditions, rates = run["conditions"], rates_of(run)
    machine = conditions["machine"]
    clock = "processor time" if conditions["processor_time"] else "time that passed"
    title = f"{conditions['target']['name']}, {conditions['dtype']}, threads: {conditions['num_threads']}, {clock}"
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    console.print(f"{title}; {machine['processor']}, {machine['num_cores']} cores; {versions}")
    peak = rates.products[conditions["dtype"]].peak
    console.print(f"floor: reads {rates.read / 1e9:.1f} GB/s, multiplies at {peak / 1e9:.0f} GFLOP/s\n")
    for table in tables_of(raw.records):
        console.print(table)
        console.print()
    axes = axes_in(raw.records)
    written = ""
    if axes:
        picture = given.output.with_suffix(".svg")
        picture.write_text(draw(axes, title=title), encoding="utf-8")
        written = f"; written: {picture}"
    console.print(f"raw figures: {given.output}{written}", soft_wrap=True, markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--target", type=Path, help="directory; the embedded target inflated to 200M by default")
    parser.add_argument("--draft", type=Path, help="directory of its draft, for the time to the first token")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, action="append", help="1 to 64 by default; may be repeated")
    parser.add_argument("--nodes", type=int, action="append", help="1 to 64 by default; may be repeated")
    parser.add_argument("--context", type=int, action="append", help="128 to 8192 by default; may be repeated")
    parser.add_argument("--length", type=int, action="append", help="of prompts read at once; 64 to 1000 by default")
    parser.add_argument("--prompt", type=int, default=FIRST_PROMPT, help="tokens before the first one; 1000 by default")
    parser.add_argument("--repeats", type=int, default=7, help="of every call at least; 7 by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="that an axis takes at least; 10 by default")
    parser.add_argument(
        "--processor-time", action="store_true", help="where other programs run: what was computed, not what passed"
    )
    parser.add_argument("--output", type=Path, required=True, help="file of raw figures, continued if it is there")
    parser.add_argument("--report", action="store_true", help="measure nothing: print what the file holds")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
