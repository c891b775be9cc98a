"""``paceline generate --prompt-file``: all prompts of a file through one engine, into a file that can be resumed.

An invalid prompt fails alone.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.api import Engine, Loaded, SamplingParams
from paceline.api.build import build_drafting
from paceline.api.draft_length import NumDraftTokens, cut_draft_length, longest_draft, room
from paceline.api.engine_for import engine_for
from paceline.api.processors import processing
from paceline.api.profiles import ProfileLike
from paceline.api.requests import guidance
from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.draft_options import DraftOptions
from paceline.cli.explain import explain
from paceline.cli.options import ModelOptions, OutputOptions
from paceline.cli.progress import PromptProgress
from paceline.cli.prompt_file.fingerprint import fingerprint
from paceline.cli.prompt_file.journal import STDOUT, Finished, ResultFile, check_writable, read_finished
from paceline.cli.prompt_file.prompts import Entry, encode_entries
from paceline.cli.prompt_file.work import PrintedLines, Sink, Work
from paceline.cli.stats import stats_table
from paceline.drafters.base import Drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The options and the prompts; ``run`` returns the exit code.

    ``into`` wraps the sink of results, given each prompt's tokens.
    """

    model: ModelOptions
    drafting: DraftOptions
    batch_size: int | None
    output: OutputOptions
    prompt_file: Path | None
    params: SamplingParams
    notes: Console
    entries: Sequence[Entry]
    profile: ProfileLike = "auto"
    into: Callable[[Sink, Sequence[list[int] | str]], Sink] | None = None

    def run(self) -> int:
        """Generate what is missing; options are checked before a model is loaded."""
        path = self._destination()
        entries = self.entries
        run = fingerprint(self.model, self.drafting, self.params.differing())
        finished = Finished()
        if path is not None and not self.output.overwrite:
            finished = read_finished(path, run=run, digests=[entry.digest for entry in entries])
        target = self.model.load()
        if target.tokenizer is None and self.params.stop_strings:
            raise ValueError(f"--stop: {target.name} has no tokenizer to find it with; give --stop-token-id")
        processing(target, self.params)  # refuses once what every prompt would be refused for
        encoded = encode_entries(target, entries)
        missing = [entry for entry in entries[finished.num_written :] if entry.index not in finished.waiting]
        prompts, engine = self._prepare(target, encoded, entries, missing)
        num_done = len(entries) - len(missing)
        if num_done:
            self._note(f"{num_done} of {len(entries)} prompts are in {path} already")
        sink: Sink = PrintedLines() if path is None else ResultFile(path, finished=finished)
        if self.into is not None:
            sink = self.into(sink, prompts)
        waiting = {index: str(line["error"]) for index, line in finished.waiting.items() if "error" in line}
        # Lines on the same terminal would run through the bar.
        shown = not self.output.quiet and not (path is None and sys.stdout.isatty())
        with PromptProgress(console=self.notes, total=len(entries), done=num_done, shown=shown) as progress:
            work = Work(
                engine=engine,
                params=self.params,
                run=run,
                sink=sink,
                progress=progress,
                failed={**finished.failed, **waiting},
            )
            complete = work.through(missing, prompts)
        return self._conclude(work, complete, len(entries))

    def _conclude(self, work: Work, complete: bool, num_prompts: int) -> int:
        if self.output.stats:
            self.notes.print(stats_table(work.totals, seconds=work.seconds))
        if self.output.explain:
            self.notes.print(explain(work.totals))
        if work.failed:
            first = work.failed[min(work.failed)]
            print(f"paceline: {len(work.failed)} of {num_prompts} prompts failed; {first}", file=sys.stderr)
        if not complete:
            self._note(f"interrupted: {work.num_done} prompts were finished; the same command continues from there")
            return EXIT_INTERRUPTED
        return EXIT_DIFFERENT if work.failed else EXIT_OK

    def _destination(self) -> Path | None:
        """The file to write; None is standard output."""
        path = self.output.output
        if path is None:
            raise ValueError("--prompt-file without --output: give --output FILE.jsonl, or - for standard output")
        if path == STDOUT:
            return None
        check_writable(path)
        if self.prompt_file is not None and path.exists() and path.samefile(self.prompt_file):
            raise ValueError(f"--output {path} is the prompt file itself: give another name")
        return path

    def _prepare(
        self,
        target: Loaded,
        encoded: Sequence[list[int] | str],
        entries: Sequence[Entry],
        missing: Sequence[Entry],
    ) -> tuple[list[list[int] | str], Engine | None]:
        """Each prompt's tokens or error; and an engine, if any prompt is left."""
        if not any(isinstance(encoded[entry.index], list) for entry in missing):
            return list(encoded), None
        drafting = build_drafting(self.drafting.choose(target), target=target)
        count = drafting.length(self.drafting.count)
        limit = room(target, drafting.drafter.max_nodes(longest_draft(count, drafting.drafter)))
        prompts = [self._fit(target, limit, found, entry) for found, entry in zip(encoded, entries, strict=True)]
        any_left = any(isinstance(prompts[entry.index], list) for entry in missing)
        longest = max(
            (self._length(target, found, entry) for found, entry in zip(prompts, entries, strict=True)), default=0
        )
        valid = [entry for found, entry in zip(prompts, entries, strict=True) if isinstance(found, list)]
        count = cut_draft_length(
            count, max_tokens=max((self.params.updated(entry.params).max_tokens or 1 for entry in valid), default=1)
        )
        num_prompts = len(valid)
        guided = any(self._guides(found, entry) for found, entry in zip(prompts, entries, strict=True))
        engine = self._engine(target, num_prompts, longest, drafting.drafter, count, guided) if any_left else None
        return prompts, engine

    def _guides(self, prompt: list[int] | str, entry: Entry) -> bool:
        """Whether a prompt needs a second row, for guidance."""
        return isinstance(prompt, list) and self.params.updated(entry.params).guidance_scale != 1

    def _length(self, target: Loaded, prompt: list[int] | str, entry: Entry) -> int:
        """The most tokens of a prompt, or of its negative prompt, with the output; 0 without a prompt."""
        if isinstance(prompt, str):
            return 0
        params = self.params.updated(entry.params)
        guided = guidance(target, prompt, params)
        return max(decoder_tokens(target, prompt), 0 if guided is None else len(guided.prompt)) + (
            params.max_tokens or 1
        )

    def _fit(self, target: Loaded, context: int, found: list[int] | str, entry: Entry) -> list[int] | str:
        """The prompt's tokens, or why it does not fit a context of ``context`` tokens."""
        if isinstance(found, str):
            return found
        try:
            wanted = self.params.updated(entry.params).max_tokens or 1
        except ValueError as error:
            return f"{entry.name}: params: {error}"
        size = decoder_tokens(target, found)
        if size + wanted > context:
            return (
                f"{entry.name}: prompt of {size} tokens and --max-tokens {wanted} exceed the context of "
                f"{context} tokens; shorten the prompt or lower --max-tokens"
            )
        return found

    def _engine(
        self, target: Loaded, num_prompts: int, longest: int, drafter: Drafter, count: NumDraftTokens, guided: bool
    ) -> Engine:
        """With capacity for the longest of all sequences, finished or not, so that every run has the same shapes."""
        return engine_for(
            target,
            drafter=drafter,
            verifier=self.drafting.verifier,
            num_draft_tokens=count,
            batch_size=self.batch_size,
            num_texts=self.params.n * num_prompts,
            max_length=longest,
            guidance=guided,
            profile=self.profile,
        )

    def _note(self, text: str) -> None:
        """Print a note, on a terminal only."""
        if self.notes.is_terminal and not self.output.quiet:
            self.notes.print(text, style="dim", markup=False, soft_wrap=True)


def decoder_tokens(target: Loaded, prompt: list[int]) -> int:
    """How many tokens the decoder begins with: the prompt, unless an encoder reads that."""
    return len(target.start) if target.lm.context_inputs else len(prompt)
