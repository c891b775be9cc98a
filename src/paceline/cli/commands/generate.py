"""``paceline generate``: generates from one prompt, or hands a file of them to ``Batch``."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from rich.console import Console

from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.console import open_console, open_notes
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import (
    POSITIONAL,
    BatchSize,
    ModelOptions,
    OutputOptions,
    Profile,
    PromptFile,
    check_profile,
)
from paceline.cli.prompt_file.journal import STDOUT, check_writable
from paceline.cli.sampling_options import SamplingOptions
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.api import SamplingParams, Stream
    from paceline.cli.stats import Totals


@dataclass(frozen=True, slots=True)
class Generate(Command):
    """Generate from one prompt or a file of prompts. Drafting does not change the output.

    On a terminal the text follows the prompt, its tokens coloured by their source, and a summary follows. Elsewhere
    only the text is printed. --color always is as on a terminal.

    With --prompt-file each prompt gives one JSON line of --output, in order. An invalid prompt fails alone. After an
    interruption of any kind, the same command continues where it stopped.

    Examples:

        paceline generate --model DIR "def add(a, b):"
        paceline generate --model DIR --draft SMALL_DIR --stats "import os"
        paceline generate --model DIR --draft SMALL_DIR --show-rejected "import os"
        paceline generate --model DIR --drafter ngram --temperature 0.8 --seed 7 -n 3 "x"
        paceline generate --model DIR --repetition-penalty 1.1 --logit-bias 42=-inf "x"
        paceline generate --model DIR --json-schema schema.json "A person:"
        paceline generate --model DIR --chat --system "Be brief." "Who wrote Faust?"
        paceline generate --model DIR --json < prompt.txt
        paceline generate --model DIR --prompt-file prompts.jsonl --output outputs.jsonl
    """

    prompt: Annotated[str | None, POSITIONAL] = None
    """The prompt; - or nothing reads standard input."""
    _: KW_ONLY
    model: ModelOptions
    batch_size: BatchSize = None
    drafting: DraftOptions = field(default_factory=DraftOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    profile: Profile = None
    prompt_file: PromptFile = None
    chat: bool = False
    """The prompt is a user message, or a JSON list of messages."""
    system: str | None = None
    """With --chat: the system message."""

    def run(self) -> int:
        """Generate and print; after an interruption, what was generated so far."""
        from paceline.api import SamplingParams
        from paceline.cli.prompt_file.batch import Batch
        from paceline.cli.prompt_file.prompts import read_prompts

        notes = open_notes(quiet=self.output.quiet, log_level=self.output.log_level, color=self.output.color)
        params = SamplingParams().updated(self.sampling.params())
        self._check(params)
        if self.prompt_file is not None:
            return Batch(
                model=self.model,
                drafting=self.drafting,
                profile=self.profile or "auto",
                batch_size=self.batch_size,
                output=self.output,
                prompt_file=self.prompt_file,
                params=params,
                notes=notes,
                entries=read_prompts(self.prompt_file, chat=self.chat, system=self.system),
            ).run()
        return self._run_one(params, notes)

    def _check(self, params: "SamplingParams") -> None:
        """Refuse options that contradict each other, before anything is loaded."""
        self.drafting.check()
        check_profile(self.profile)
        if self.profile is not None and not self.drafting.drafts:
            raise ValueError(f"--profile {self.profile} without a drafter: it is for draft lengths; give one too")
        if self.system is not None and not self.chat:
            raise ValueError("--system without --chat: give --chat too, the prompt is then a user message")
        if self.prompt_file is None:
            if params.logprobs is not None and not self.output.json:
                raise ValueError(f"--logprobs {params.logprobs}: plain text cannot show them, give --json too")
        elif self.prompt is not None:
            raise ValueError("a prompt and --prompt-file: give one of them")
        elif params.seed is None:
            raise ValueError("--seed -1 with --prompt-file: it could not be resumed, give a seed from 0")
        if self.output.show_rejected:
            self._check_show_rejected()
        if self.output.overwrite and self.output.output in (None, STDOUT):
            raise ValueError("--overwrite without --output FILE: there is nothing to overwrite")

    def _check_show_rejected(self) -> None:
        if self.drafting.draft is None and self.drafting.drafter is None:
            raise ValueError("--show-rejected without a drafter: give --draft DIR or --drafter NAME")
        given = "--prompt-file" if self.prompt_file is not None else "--json" if self.output.json else None
        if given is not None:
            raise ValueError(f"--show-rejected with {given}: it shows plain text alone, leave one of them out")

    def _run_one(self, params: "SamplingParams", notes: Console) -> int:
        from paceline.api import stream
        from paceline.api.targets import check_tokenizer
        from paceline.cli.explain import explain
        from paceline.cli.prompt_file.prompts import as_chat, read_prompt
        from paceline.cli.show import AsText, SourcePrinter, show_samples
        from paceline.cli.stats import Totals, stats_table

        path = self._destination()
        text = read_prompt(self.prompt)
        prompt = as_chat(text, system=self.system) if self.chat else text
        check_tokenizer(self.model.model)
        target = self.model.load()
        try:
            texts = stream(
                target,
                prompt if isinstance(prompt, str) else [prompt],
                params,
                drafter=self.drafting.choose(target),
                verifier=self.drafting.verifier,
                num_draft_tokens=self.drafting.count,
                batch_size=self.batch_size,
                profile=self.profile or "auto",
                rejected=self.output.show_rejected,
            )
        except ValueError as error:  # there is only one prompt
            raise ValueError(str(error).removeprefix("prompt 0: ")) from error
        start = time.perf_counter()
        console = open_console(self.output.color)
        on_terminal = path is None and console.is_terminal and not self.output.json
        with _open(path) as file:
            if self.output.json:
                complete = _print_json(texts, file)
            else:
                printer = SourcePrinter(console=console, num_samples=params.n) if on_terminal else AsText(file)
                if isinstance(printer, SourcePrinter) and not self.output.quiet:
                    printer.prompt(text, alone=self.chat or params.n > 1)
                complete = show_samples(texts, printer, num_samples=params.n)
        seconds = time.perf_counter() - start
        results = texts.results()
        totals = Totals.of(results)
        if on_terminal and not self.output.quiet:
            self._summarise(totals, notes, complete)
        if self.output.stats:
            notes.print(stats_table(totals, seconds=seconds))
        if self.output.explain:
            notes.print(explain(totals, results))
        failed = any(result.error is not None for result in results)  # the log has said why
        return EXIT_INTERRUPTED if not complete else EXIT_DIFFERENT if failed else EXIT_OK

    def _destination(self) -> Path | None:
        """The file to write, None for standard output; refused if it exists."""
        path = self.output.output
        if path is None or path == STDOUT:
            return None
        check_writable(path)
        if path.exists() and not self.output.overwrite:
            raise ValueError(f"--output {path}: exists already; give another name, or --overwrite")
        return path

    def _summarise(self, totals: "Totals", notes: Console, complete: bool) -> None:
        """A line below the output on a terminal, and the legend of the colours."""
        from paceline.cli.show import print_legend

        counts = totals.summary
        if counts is None:
            return
        if self.drafting.draft is not None or self.drafting.drafter is not None:
            print_legend(notes, rejected=self.output.show_rejected)
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


def _print_json(texts: "Stream", file: TextIO) -> bool:
    """One object per sample, once all have ended; whether they ended without an interruption."""
    from paceline.cli.record import result_object

    complete = True
    try:
        for _ in texts:
            pass
    except KeyboardInterrupt:
        complete = False
        texts.close()
    for result in texts.results():
        file.write(to_json(result_object(result)) + "\n")
    file.flush()
    return complete
