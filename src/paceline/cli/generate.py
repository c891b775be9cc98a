"""``paceline generate``: checks the options, and generates from one prompt or hands a file of them to ``Batch``."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console

from paceline.api import Result, SamplingParams, Stream, stream
from paceline.cli.batch import STDOUT, Batch
from paceline.cli.commands.generate import Generate
from paceline.cli.console import open_notes
from paceline.cli.exit_codes import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.journal import check_writable
from paceline.cli.models import check_drafting, choose_drafter, load_target, num_draft_tokens
from paceline.cli.prompts import as_chat, read_prompt
from paceline.cli.record import result_object
from paceline.cli.show import AsText, OnTerminal, print_legend, show_samples
from paceline.cli.stats import Totals, stats_table


def generate(options: Generate) -> int:
    """Generate and print; after an interruption, what was generated so far."""
    notes = open_notes(quiet=options.output.quiet, log_level=options.output.log_level)
    params = SamplingParams().updated(options.sampling.params())
    _check(options, params)
    if options.prompt_file is not None:
        return Batch(options=options, params=params, notes=notes).run()
    return _run_one(options, params, notes)


def _check(options: Generate, params: SamplingParams) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    check_drafting(options.drafting)
    if options.system is not None and not options.chat:
        raise ValueError("--system without --chat: give --chat too, the prompt is then a user message")
    if options.prompt_file is None:
        if params.logprobs is not None and not options.output.json:
            raise ValueError(f"--logprobs {params.logprobs}: plain text cannot show them, give --json too")
    elif options.prompt is not None:
        raise ValueError("a prompt and --prompt-file: give one of them")
    elif params.seed is None:
        raise ValueError("--seed -1 with --prompt-file: it could not be resumed, give a seed from 0")
    if options.output.overwrite and options.output.output in (None, STDOUT):
        raise ValueError("--overwrite without --output FILE: there is nothing to overwrite")


def _run_one(options: Generate, params: SamplingParams, notes: Console) -> int:
    path = _destination(options)
    text = read_prompt(options.prompt)
    prompt = as_chat(text, system=options.system) if options.chat else text
    target = load_target(options.model)
    try:
        texts = stream(
            target,
            prompt if isinstance(prompt, str) else [prompt],
            params,
            drafter=choose_drafter(options.drafting, target=target),
            verifier=options.drafting.verifier,
            num_draft_tokens=num_draft_tokens(options.drafting),
            batch_size=options.batch_size,
        )
    except ValueError as error:  # there is only one prompt
        raise ValueError(str(error).removeprefix("prompt 0: ")) from error
    start = time.perf_counter()
    console = Console(highlight=False)
    coloured = path is None and console.is_terminal and not options.output.json
    with _open(path) as file:
        if options.output.json:
            complete = _print_json(texts, file)
        else:
            printer = OnTerminal(console, num_samples=params.n) if coloured else AsText(file)
            complete = show_samples(texts, printer, num_samples=params.n)
    seconds = time.perf_counter() - start
    results = texts.results()
    totals = _add_up(results)
    if coloured and not options.output.quiet:
        _summarise(options, totals, notes, complete)
    if options.output.stats:
        notes.print(stats_table(totals, seconds=seconds))
    errors = [result.error for result in results if result.error is not None]
    for error in errors:
        print(f"paceline: {error}", file=sys.stderr)
    return EXIT_INTERRUPTED if not complete else EXIT_DIFFERENT if errors else EXIT_OK


def _destination(options: Generate) -> Path | None:
    """The file to write, None for standard output; refused if it exists."""
    path = options.output.output
    if path is None or path == STDOUT:
        return None
    check_writable(path)
    if path.exists() and not options.output.overwrite:
        raise ValueError(f"--output {path}: exists already; give another name, or --overwrite")
    return path


def _summarise(options: Generate, totals: Totals, notes: Console, complete: bool) -> None:
    """A line below the output on a terminal, and the legend of the colours."""
    counts = totals.summary
    if counts is None:
        return
    if options.drafting.draft is not None or options.drafting.drafter is not None:
        print_legend(notes)
    rate = f", {counts.acceptance_rate:.0%} of the drafted tokens accepted" if sum(counts.drafted) else ""
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
    """One object per sample, once all have ended; whether they ended without an interruption."""
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
