"""The command ``paceline audit --url``: whether a server gives the texts of the model that it says it serves."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from paceline.audit.client import CompletionClient
from paceline.audit.prompts import DEFAULT_PROMPTS
from paceline.audit.server import MAX_LOGPROB_ERROR, ServerAudit, audit_server, check_counts
from paceline.cli.audit_tables import add_law, new_table, say
from paceline.cli.commands import EXIT_DIFFERENT, EXIT_OK
from paceline.cli.models import check_model, load_target
from paceline.cli.options import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditServer:
    """The command's options; ``run`` returns the exit code."""

    model: ModelOptions
    url: str
    served_model: str | None
    api_key_env: str | None
    timeout: float
    near_tie: float
    num_tokens: int
    text_length: int
    batch_size: int
    seed: int
    json: bool

    def run(self) -> int:
        """Run the audit and print the result. The server is contacted before the model is loaded."""
        check_counts(
            num_tokens=self.num_tokens,
            text_length=self.text_length,
            batch_size=self.batch_size,
            near_tie=self.near_tie,
        )
        check_model(self.model)
        client = CompletionClient(url=self.url, key=self._key(), timeout=self.timeout)
        own = self.model.model
        name = client.find_model(self.served_model, candidates=(own, str(Path(own).absolute()), Path(own).name))
        target = load_target(self.model)
        with _progress() as progress:
            task = progress.add_task("", total=self.num_tokens)
            found = audit_server(
                target,
                client,
                DEFAULT_PROMPTS,
                model=name,
                num_tokens=self.num_tokens,
                text_length=self.text_length,
                batch_size=self.batch_size,
                seed=self.seed,
                near_tie=self.near_tie,
                on_progress=lambda what, done: progress.update(
                    task, description=what, completed=min(done, self.num_tokens)
                ),
            )
        if self.json:
            extra = {"failures": found.failures, "notes": found.notes, "asked": found.extra_fields}  # asked: deprecated
            print(json.dumps({**asdict(found), **extra}))
        else:
            _print(found)
        return EXIT_DIFFERENT if found.failures else EXIT_OK

    def _key(self) -> str | None:
        """The key, where its variable is named. Raises ValueError where that is not set."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ValueError(
                f"--api-key-env {self.api_key_env}: this variable is not set; give the name of one that is"
            )
        return key


def _progress() -> Progress:
    """Tokens tested so far, on standard error where that is a terminal."""
    console = Console(stderr=True, highlight=False)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens judged"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _print(found: ServerAudit) -> None:
    console = Console(highlight=False)
    table = new_table()
    greedy, repeats, law, sampled = found.greedy, found.seed_repeats, found.goodness_of_fit, found.recovery
    if found.miscounted_prompts is not None:
        same = found.num_prompts - len(found.miscounted_prompts)
        table.add_row(
            "prompts of as many tokens", f"{same} of {found.num_prompts}", "all", _verdict(not found.miscounted_prompts)
        )
    same = greedy.num_sequences - len(greedy.divergence_points)
    expected = "all, but for near ties" if greedy.divergence_points else "all"
    good = _verdict(not greedy.errors)
    table.add_row("greedy texts equal to the model's", f"{same} of {greedy.num_sequences}", expected, good)
    if greedy.divergence_points:
        largest = max(one.margin for one in greedy.divergence_points)
        table.add_row("  largest margin where they part", f"{largest:.3g}", f"at most {greedy.near_tie:g}", "")
    again = "ok" if repeats.num_equal == repeats.num_sequences else "see note"
    table.add_row("same text for the same seed", f"{repeats.num_equal} of {repeats.num_sequences}", "all", again)
    add_law(table, law)
    if found.logprobs is not None:
        near = found.logprobs
        expected = f"at most {MAX_LOGPROB_ERROR:g}"
        good = _verdict(near.mean <= MAX_LOGPROB_ERROR)
        table.add_row("  their log-probabilities, mean error", f"{near.mean:.2g}", expected, good)
    table.add_row("  known by", sampled.source, "", "")
    if sampled.num_dropped or sampled.num_truncated:
        for number, what in ((sampled.num_dropped, "left out"), (sampled.num_truncated, "read in part")):
            table.add_row(f"  texts {what}", f"{number} of {sampled.num_sequences}", "", "")
    console.print(table)
    for note in found.notes:
        console.print(Text(f"note: {note}", "yellow"))
    say(console, found.failures)


def _verdict(good: bool) -> str:
    return "ok" if good else "FAILED"
