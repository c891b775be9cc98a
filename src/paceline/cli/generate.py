"""The command ``paceline generate``: what its options mean together, and one prompt's text. Decodes through the API."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from paceline.api import Result, SamplingParams, Stream, stream
from paceline.cli import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.batch import STDOUT, Batch
from paceline.cli.console import open_notes
from paceline.cli.journal import check_writable
from paceline.cli.models import check_drafting, check_model, choose_drafter, load_target, num_draft_tokens
from paceline.cli.options import DraftOptions, ModelOptions, OutputOptions
from paceline.cli.prompts import as_chat, read_prompt
from paceline.cli.record import result_object
from paceline.cli.samples import AsText, OnTerminal, show_samples
from paceline.cli.show import print_legend
from paceline.cli.stats import Totals, stats_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """The command's options; ``run`` returns the exit code."""

    prompt: str | None
    prompt_file: Path | None
    chat: bool
    system: str | None
    model: ModelOptions
    drafting: DraftOptions
    params: Mapping[str, object]  # of SamplingParams
    batch_size: int | None
    output: OutputOptions

    def run(self) -> int:
        """Generate and print; an interruption keeps what there is."""
        notes = open_notes(quiet=self.output.quiet, log_level=self.output.log_level)
        params = SamplingParams().updated(self.params)
        self._check(params)
        if self.prompt_file is not None:
            return Batch(
                prompt_file=self.prompt_file,
                chat=self.chat,
                system=self.system,
                model=self.model,
                drafting=self.drafting,
                params=params,
                batch_size=self.batch_size,
                output=self.output,
                notes=notes,
            ).run()
        return self._run_one(params, notes)

    def _check(self, params: SamplingParams) -> None:
        """Refuse what contradicts itself, before anything is loaded."""
        check_model(self.model)
        check_drafting(self.drafting)
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"--batch-size {self.batch_size}: give at least 1")
        if self.system is not None and not self.chat:
            raise ValueError("--system without --chat: give --chat too, for the prompt is then a user's message")
        if self.prompt_file is None:
            if params.logprobs is not None and not self.output.json:
                raise ValueError(f"--logprobs {params.logprobs}: a text has no place for them, give --json too")
        elif self.prompt is not None:
            raise ValueError("a prompt and --prompt-file: give one of them")
        elif params.seed is None:
            raise ValueError("--seed -1 with --prompt-file: it could not be resumed, give a seed from 0")
        if self.output.overwrite and self.output.output in (None, STDOUT):
            raise ValueError("--overwrite without --output FILE: there is nothing to overwrite")

    def _run_one(self, params: SamplingParams, notes: Console) -> int:
        path = self._destination()
        text = read_prompt(self.prompt)
        prompt = as_chat(text, system=self.system) if self.chat else text
        target = load_target(self.model)
        try:
            texts = stream(
                target,
                prompt if isinstance(prompt, str) else [prompt],
                params,
                drafter=choose_drafter(self.drafting, target=target),
                verifier=self.drafting.verifier,
                num_draft_tokens=num_draft_tokens(self.drafting),
                batch_size=self.batch_size,
            )
        except ValueError as error:  # there is only one prompt
            raise ValueError(str(error).removeprefix("prompt 0: ")) from error
        start = time.perf_counter()
        console = Console(highlight=False)
        coloured = path is None and console.is_terminal and not self.output.json
        with _open(path) as file:
            if self.output.json:
                complete = _print_json(texts, file)
            else:
                shower = OnTerminal(console, num_samples=params.n) if coloured else AsText(file)
                complete = show_samples(texts, shower, num_samples=params.n)
        seconds = time.perf_counter() - start
        results = texts.results()
        totals = _add_up(results)
        if coloured and not self.output.quiet:
            self._summarise(totals, notes, complete)
        if self.output.stats:
            notes.print(stats_table(totals, seconds=seconds))
        errors = [result.error for result in results if result.error is not None]
        for error in errors:
            print(f"paceline: {error}", file=sys.stderr)
        return EXIT_INTERRUPTED if not complete else EXIT_DIFFERENT if errors else EXIT_OK

    def _destination(self) -> Path | None:
        """The file to write, None for standard output; refused if it exists."""
        path = self.output.output
        if path is None or path == STDOUT:
            return None
        check_writable(path)
        if path.exists() and not self.output.overwrite:
            raise ValueError(f"--output {path}: exists already; give another name, or --overwrite")
        return path

    def _summarise(self, totals: Totals, notes: Console, complete: bool) -> None:
        """A line below the text on a terminal, and what the colours mean."""
        counts = totals.summary
        if counts is None:
            return
        if self.drafting.draft is not None or self.drafting.drafter is not None:
            print_legend(notes)
        rate = f", {counts.acceptance_rate:.0%} of the drafted tokens kept" if sum(counts.drafted) else ""
        notes.print(
            f"{counts.emitted} tokens in {counts.steps} steps: {counts.mean_acceptance_length:.2f} per step{rate}"
            f"{'' if complete else ' (interrupted)'}",
            style="dim",
            soft_wrap=True,
        )


@contextmanager
def _open(path: Path | None) -> Iterator[TextIO]:
    """The file, or standard output, which stays open."""
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        yield file


def _print_json(texts: Stream, file: TextIO) -> bool:
    """One object per sample, once all have ended; whether they did by themselves."""
    complete = True
    try:
        for _ in texts:
            pass
    except KeyboardInterrupt:
        complete = False
        texts.close()
    for result in texts.results():
        file.write(json.dumps(result_object(result)) + "\n")
    file.flush()
    return complete


def _add_up(results: Sequence[Result]) -> Totals:
    totals = Totals()
    for result in results:
        totals.add(result)
    return totals
