"""``python -m benchmarks.verifier_ranking``: which verification rule gains most, by measurement."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.verifier_ranking.contests import Contest, all_ways, run_contests
from benchmarks.verifier_ranking.figures import best_table, rankings_of, whole_table
from paceline.api import build_drafter, embedded_pair, load
from paceline.api.prompts import encode
from paceline.bench.machine import describe, hash_source
from paceline.bench.output import check_drawing, run_command
from paceline.bench.raw import RawFile, fingerprint, hash_model
from paceline.bench.suites import SUITES, prompts_of
from paceline.drafters.model import ModelDrafter


def main(arguments: Sequence[str]) -> int:
    """Measure what the file lacks, draw the picture and print the tables; the exit code."""
    return run_command(_run, _parser().parse_args(arguments), "python -m benchmarks.verifier_ranking")


def _run(given: argparse.Namespace) -> None:
    if (given.target is None) != (given.draft is None):
        raise ValueError("--target and --draft: give both, or neither for the embedded pair")
    check_drawing()
    raw = RawFile(given.output)
    if not given.report:
        _measure(given, raw)
    rankings = rankings_of(raw.records)
    from benchmarks.verifier_ranking.plot import draw  # needs the optional matplotlib

    title = "the embedded pair" if given.target is None else Path(given.target).name
    picture = given.output.with_suffix(".svg")
    picture.write_text(draw(rankings, title=title), encoding="utf-8")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for ranking in rankings:
        console.print(whole_table(ranking))
    console.print(best_table(rankings, f"{title}: the fastest draft of each verifier"))
    console.print(f"raw figures: {given.output}; written: {picture}", soft_wrap=True, markup=False)


def _measure(given: argparse.Namespace, raw: RawFile) -> None:
    target_path, draft_path = embedded_pair() if given.target is None else (Path(given.target), Path(given.draft))
    target, draft = (
        load(path, dtype=given.dtype, device=torch.device("cpu"), threads=given.threads)
        for path in (target_path, draft_path)
    )
    drafter = build_drafter(draft, target=target)
    assert isinstance(drafter, ModelDrafter)
    prompts = [encode(target, text) for text in prompts_of(given.suite, given.num_prompts, seed=given.seed)]
    contests = [
        Contest(temperature=temperature, top_p=top_p)
        for top_p, temperature in product(given.top_p or (1.0, 0.95), given.temperature or (0.5, 0.7, 1.0))
    ]
    with Console(stderr=True, highlight=False).status("measuring ...") as status:
        run_contests(
            contests,
            all_ways(),
            target=target,
            draft=drafter.lm,
            prompts=prompts,
            num_seeds=given.seeds,
            num_tokens=given.max_tokens,
            seed=given.seed,
            raw=raw,
            conditions={
                "machine": describe().identity(),
                "source": hash_source(),
                "num_threads": torch.get_num_threads(),
                "dtype": given.dtype,
                "target": {"name": target_path.name, "hash": hash_model(target_path)},
                "draft": {"name": draft_path.name, "hash": hash_model(draft_path)},
                "suite": given.suite,
                "prompts": fingerprint({"prompts": prompts}),
            },
            notes={"date": datetime.now(UTC).isoformat(timespec="seconds")},
            processor_time=given.processor_time,
            progress=lambda contest, what: status.update(f"{contest}: {what} ..."),
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifier_ranking", description=__doc__)
    parser.add_argument("--target", help="directory; the embedded pair by default")
    parser.add_argument("--draft", help="directory of its draft")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--suite", choices=sorted(SUITES), default="mixed")
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3, help="texts of every prompt")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts' choice, and the first of the texts'")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, action="append", help="0.5, 0.7 and 1 by default")
    parser.add_argument("--top-p", type=float, action="append", help="1 and 0.95 by default")
    parser.add_argument(
        "--processor-time", action="store_true", help="where other programs run: what was computed, not what passed"
    )
    parser.add_argument("--output", type=Path, required=True, help="file of raw figures, continued if it is there")
    parser.add_argument("--report", action="store_true", help="measure nothing: print what the file holds")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
