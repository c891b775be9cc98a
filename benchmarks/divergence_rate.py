"""``python -m benchmarks.divergence_rate``: how often drafting changes a text, by backend and precision."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from paceline.api import Loaded, embedded_pair, load
from paceline.api.prompts import encode
from paceline.audit.divergence import Divergence, measure_divergence
from paceline.audit.prompts import DEFAULT_PROMPTS

BACKENDS = ("kernel", "eager", "hf")
DTYPES = ("bfloat16", "float32")


def main(arguments: Sequence[str]) -> int:
    """Measure every combination and print the table; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.divergence_rate", description=__doc__)
    parser.add_argument("--target", help="directory; the embedded pair by default")
    parser.add_argument("--draft", help="directory of its draft")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="kernel, eager or hf; all by default")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="both by default")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-draft-tokens", type=int, default=5)
    parser.add_argument("--batch", type=int, action="append", help="rows that run together; 1 and 8 by default")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    table = Table("backend", "precision", box=None, padding=(0, 1, 0, 1))
    for title in (
        "batch",
        "texts",
        "parted",
        "per 1,000\ntokens",
        "margin there\nmedian, most",
        "least\nmargin",
        "tokens\n/step",
    ):
        table.add_column(title, justify="right")
    try:
        if (given.target is None) != (given.draft is None):
            raise ValueError("--target and --draft: give both, or neither for the embedded pair")
        paths = list(embedded_pair()) if given.target is None else [Path(given.target), Path(given.draft)]
        for backend in given.backend or BACKENDS:
            for dtype in given.dtype or DTYPES:
                target, draft = (_load(path, backend, dtype, given.threads) for path in paths)
                prompts = [encode(target, text) for text in DEFAULT_PROMPTS]
                for batch in given.batch or (1, 8):
                    with console.status(f"{backend}, {dtype}, batch {batch}"):
                        found = measure_divergence(
                            target,
                            prompts,
                            drafter=draft,
                            num_tokens=given.max_tokens,
                            num_draft_tokens=given.num_draft_tokens,
                            batch_size=batch,
                        )
                    table.add_row(backend, dtype, str(batch), *_cells(found))
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    console.print(table)
    return 0


def _load(path: Path, backend: str, dtype: str, threads: int | None) -> Loaded:
    return load(
        path,
        dtype=dtype,
        device=torch.device("cpu"),
        backend="hf" if backend == "hf" else "native",
        enforce_eager=backend == "eager",
        threads=threads,
    )


def _cells(found: Divergence) -> list[str]:
    margins = [one.margin for one in found.divergence_points]
    return [
        str(found.num_sequences),
        str(len(margins)),
        f"{1000 * found.per_token:.2f}",
        f"{median(margins):.2g}, {max(margins):.2g}" if margins else "-",
        f"{found.smallest_margin:.2g}",
        f"{found.mean_acceptance_length:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
