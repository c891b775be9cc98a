"""``python -m benchmarks.gpu``: a large target made on a GPU, plain beside its bandwidth, drafted beside others."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu.figures import batches_in, last_run, tables_of, verdicts_of
from benchmarks.gpu.measure import BATCHES, DRAFT_TOKENS, Course, Progress, run_course
from benchmarks.gpu.models import Models, attend_densely, make_models
from benchmarks.inflate import read_count
from benchmarks.scaling.measure import begin, rates_of
from paceline.api import embedded_pair
from paceline.api.prompts import encode
from paceline.bench.machine import describe, hash_source
from paceline.bench.output import check_drawing, run_command
from paceline.bench.raw import RawFile, Record, fingerprint, hash_model
from paceline.bench.suites import prompts_of
from paceline.bench.workbench import check_lengths, check_peers
from paceline.hardware.rates import WORKING_SET, measure_rates
from paceline.models.backend import gemm_for
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.flex_attention import DEVICES
from paceline.models.work import forward_work

NUM_PROMPTS, PROMPT = 8, 96  # prompts, and tokens of each at most; larger batches have them several times
WIDTH = 150  # of the tables where there is no terminal
LEAST = 4 << 20  # bytes of a working set whose reading takes longer than the call
DTYPES = {dtype_name(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}


def main(arguments: Sequence[str]) -> int:
    """Measure what the file lacks, draw the picture and print the tables; the exit code."""
    return run_command(_run, _parser().parse_args(arguments), "python -m benchmarks.gpu")


def _run(given: argparse.Namespace) -> None:
    begun = time.perf_counter()
    check_drawing()
    raw = RawFile(given.output)
    left_out: list[int] = []
    if not given.report:
        device = find(given.device)
        with Console(stderr=True, highlight=False).status("loading ...") as status:
            left_out = _measure(given, raw, device, status.update, begun)
    _report(given, raw, left_out)


def find(name: str) -> torch.device:
    """The device of this name. Raises ValueError, saying what is missing, where there is none."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = (
            "torch finds no device (is there one, and does its driver run?)"
            if torch.version.cuda
            else f"torch {torch.__version__} was built without CUDA; install a build that has it"
        )
        raise ValueError(f"no CUDA device: {reason}. --device cpu --parameters 20M runs the same in a small form")
    return device


def _measure(given: argparse.Namespace, raw: RawFile, device: torch.device, say: Progress, begun: float) -> list[int]:
    if (given.target is None) != (given.draft is None):
        raise ValueError("--target and --draft: give both, or neither for the embedded pair")
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    target_path, draft_path = embedded_pair() if given.target is None else (given.target, given.draft)
    course = Course(
        batches=given.batch or BATCHES,
        draft_tokens=given.k or DRAFT_TOKENS,
        num_tokens=given.max_tokens,
        minutes=given.minutes,
    )
    number, dtype = read_count(given.parameters), DTYPES[given.dtype]
    if given.dense and device.type not in DEVICES:
        raise ValueError(f"--dense compares with FlexAttention, which is not used on {device}: leave it out")
    models = make_models(
        target_path,
        draft_path,
        num_parameters=number,
        dtype=dtype,
        device=device,
        enforce_eager=given.enforce_eager,
        progress=say,
    )
    if given.dense:
        attend_densely(models)
    prompts = [encode(models.target, text)[:PROMPT] for text in prompts_of("mixed", NUM_PROMPTS, seed=0)]
    check_peers(models.target, models.draft)
    check_lengths(models.target, prompts, [course.num_tokens], num_nodes=1 + max(course.draft_tokens))
    conditions = {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "device": str(device),
        "dtype": given.dtype,
        "enforce_eager": given.enforce_eager,
        "parameters": number,
        "target": {"name": target_path.name, "hash": hash_model(target_path)},
        "draft": {"name": draft_path.name, "hash": hash_model(draft_path)},
        "prompts": fingerprint({"prompts": prompts}),
        "draft_tokens": list(course.draft_tokens),
        "num_tokens": course.num_tokens,
        "dense": given.dense,
    }
    run = begin(raw, conditions=conditions, notes=lambda: _notes(models, device, begun, say))
    return run_course(course, models=models, prompts=prompts, raw=raw, run=run, say=say)


def _notes(models: Models, device: torch.device, begun: float, say: Progress) -> Record:
    """When and on what it was, how long making the models took, and what the limit is made of."""
    lm = models.target.lm
    assert isinstance(lm, DecoderLM)
    work = forward_work(lm)
    seconds = time.perf_counter() - begun
    size = max(LEAST, min(WORKING_SET, work.weight_bytes))
    rates = measure_rates(gemm_for=gemm_for, dtypes=[lm.dtype], device=device, working_set=size, progress=say)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else describe().processor,
        "models_seconds": seconds,
        "work": asdict(work),
        "rates": asdict(rates),
    }


def _report(given: argparse.Namespace, raw: RawFile, left_out: Sequence[int]) -> None:
    run = last_run(raw.records)
    figures = batches_in(raw.records)
    from benchmarks.gpu.plot import draw  # needs the optional matplotlib

    notes, conditions, rates = run["notes"], run["conditions"], rates_of(run)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{notes['device']}: {conditions['machine']['processor']}, {conditions['machine']['versions']}")
    console.print(
        f"target of {notes['work']['num_weights']:,} weights in {conditions['dtype']}"
        f"{', whose steps are called eagerly' if conditions['enforce_eager'] else ''}, made in "
        f"{notes['models_seconds']:.0f} s; memory is read at {rates.read / 1e9:.0f} GB/s, products run at "
        f"{rates.products[conditions['dtype']].peak / 1e12:.3g} TFLOP/s\n",
        soft_wrap=True,
    )
    for table in tables_of(figures) if figures else []:
        console.print(table)
        console.print()
    for line in verdicts_of(figures):
        console.print(line)
    if left_out:
        sizes = ", ".join(map(str, left_out))
        console.print(f"no time was left for batch {sizes}: the same command goes on, or give more --minutes")
    written = ""
    if figures:
        picture = given.output.with_suffix(".svg")
        picture.write_text(draw(figures, title=f"{notes['device']}, {conditions['dtype']}"), encoding="utf-8")
        written = f"; written: {picture}"
    console.print(f"raw figures: {given.output}{written}", soft_wrap=True, markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda by default; cpu runs the same, in a small form")
    parser.add_argument("--parameters", default="8B", help="of the target, such as 8B or 20M; 8B by default")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--target", type=Path, help="directory of the small target; the embedded pair by default")
    parser.add_argument("--draft", type=Path, help="directory of its draft")
    parser.add_argument("--batch", type=int, action="append", help="1 to 32 by default; may be repeated")
    parser.add_argument("--k", type=int, action="append", help="draft tokens, 3 and 5 by default; may be repeated")
    parser.add_argument("--max-tokens", type=int, default=48, help="of every text")
    parser.add_argument("--minutes", type=float, default=6.0, help="for all batch sizes, models not counted")
    parser.add_argument(
        "--enforce-eager", action="store_true", help="call every operation of our steps, to compare with replaying them"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--dense", action="store_true", help="attention over all slots, to compare with FlexAttention's"
    )
    parser.add_argument("--output", type=Path, required=True, help="file of raw figures, continued if it is there")
    parser.add_argument("--report", action="store_true", help="measure nothing: print what the file holds")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
