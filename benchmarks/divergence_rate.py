"""How often drafting changes an output at near ties, by backend and precision."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
from rich.console import Console

from benchmarks.study import Draft, Target, Threads, counts, option, pair_of
from paceline.api import Loaded, load
from paceline.api.prompts import encode
from paceline.audit.divergence import Divergence, measure_divergence
from paceline.audit.prompts import DEFAULT_PROMPTS
from paceline.bench.columns import Column, Section

BACKENDS = ("kernel", "eager", "hf")
DTYPES = ("bfloat16", "float32")
Line = tuple[str, str, int, Divergence]  # backend, precision, batch, what was found


def _margins(line: Line) -> str | None:
    margins = [one.margin for one in line[3].divergence_points]
    return f"{median(margins):.2g}, {max(margins):.2g}" if margins else None


COLUMNS: list[Column[Line]] = [
    Column("backend", "0", left=True),
    Column("precision", "1", left=True),
    Column("batch", "2"),
    Column("outputs", "3.num_sequences"),
    Column("diverged", lambda line: len(line[3].divergence_points)),
    Column("per 1,000\ntokens", lambda line: 1000 * line[3].per_token, ".2f"),
    Column("margin there\nmedian, most", _margins),
    Column("least\nmargin", "3.smallest_margin", ".2g"),
    Column("tokens\n/step", "3.mean_acceptance_length", ".2f"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceRate:
    """How often drafting changes an output at near ties, by backend and precision."""

    target: Target = None
    draft: Draft = None
    backend: Annotated[tuple[str, ...], option("kernel, eager or hf; may be repeated.")] = BACKENDS
    dtype: Annotated[tuple[str, ...], option("Precision; may be repeated.")] = DTYPES
    max_tokens: Annotated[int, option("Of every output.")] = 128
    num_draft_tokens: Annotated[int, option("Per step.")] = 5
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 8)
    threads: Threads = None

    def run(self) -> int:
        """Measure every combination and print the table."""
        for name, given, known in (("backend", self.backend, BACKENDS), ("dtype", self.dtype, DTYPES)):
            if not set(given) <= set(known):
                raise ValueError(f"--{name} {', '.join(given)}: known are {', '.join(known)}")
        console, lines = Console(highlight=False), list[Line]()
        for backend in self.backend:
            for dtype in self.dtype:
                paths = pair_of(self.target, self.draft)
                target, draft = (_load(path, backend, dtype, self.threads) for path in paths)
                prompts = [encode(target, text) for text in DEFAULT_PROMPTS]
                for batch in self.batch:
                    with console.status(f"{backend}, {dtype}, batch {batch}"):
                        found = measure_divergence(
                            target,
                            prompts,
                            drafter=draft,
                            num_tokens=self.max_tokens,
                            num_draft_tokens=self.num_draft_tokens,
                            batch_size=batch,
                        )
                    lines.append((backend, dtype, batch, found))
        console.print(Section(title="drafted beside plain decoding", columns=COLUMNS, lines=lines).table())
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
