"""The command ``paceline generate``. Decodes through the API and prints."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.api import DTYPES, Result, SamplingParams, Stream, load, stream
from paceline.api.build import DrafterLike
from paceline.cli import EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.show import SourcePrinter, print_legend


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """The command's options; ``run`` returns the exit code."""

    prompt: str
    model: Path
    draft: Path | None
    drafter: str | None
    num_draft_tokens: int
    verifier: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int
    dtype: str | None
    json: bool

    def run(self) -> int:
        """Generate and print; an interruption keeps what there is."""
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        params = SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )
        drafter = choose_drafter(self.draft, self.drafter)
        generation = stream(
            load(self.model, dtype=DTYPES[self.dtype] if self.dtype else None),
            sys.stdin.read() if self.prompt == "-" else self.prompt,
            params,
            drafter=drafter,
            verifier=self.verifier,
            num_draft_tokens=self.num_draft_tokens,
        )
        console = Console(highlight=False)
        if self.json:
            complete = _drain(generation)
            print(json.dumps(as_json(generation.results()[0])))
        elif console.is_terminal:
            complete = _show(generation, console, legend=drafter is not None)
        else:
            complete = _write(generation)
        return EXIT_OK if complete else EXIT_INTERRUPTED


def choose_drafter(draft: Path | None, name: str | None) -> DrafterLike:
    """One drafter from --draft and --drafter, which may only be given together as ``--drafter model``."""
    if draft is None:
        return name
    if name not in (None, "model"):
        raise ValueError(f"--drafter {name} and --draft {draft}: give one of them")
    return draft


def as_json(result: Result) -> dict[str, object]:
    """A result in the words of the Python interface."""
    stats = result.stats
    return {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "source": result.source,
        "stats": {
            "steps": stats.steps,
            "emitted": stats.summary.emitted,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_rate": stats.acceptance_rate,
            "mean_acceptance_length": stats.mean_acceptance_length,
        },
    }


def _drain(generation: Stream) -> bool:
    try:
        for _ in generation:
            pass
    except KeyboardInterrupt:
        return False
    return True


def _write(generation: Stream) -> bool:
    """The bare text, as it comes."""
    complete = True
    try:
        for piece in generation:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        complete = False
    sys.stdout.write("\n")
    return complete


def _show(generation: Stream, console: Console, *, legend: bool) -> bool:
    """The text with its sources, and a summary on standard error."""
    complete = True
    printer = SourcePrinter(console=console)
    try:
        for piece in generation:
            printer.piece(piece)
    except KeyboardInterrupt:
        complete = False
    printer.end()
    stats = generation.results()[0].stats
    notes = Console(stderr=True, highlight=False, style="dim")
    if legend:
        print_legend(notes)
    rate = f", {stats.acceptance_rate:.0%} of the drafted tokens kept" if sum(stats.drafted) else ""
    notes.print(
        f"{stats.summary.emitted} tokens in {stats.steps} steps: {stats.mean_acceptance_length:.2f} per step{rate}"
        f"{'' if complete else ' (interrupted)'}",
        soft_wrap=True,
    )
    return complete
