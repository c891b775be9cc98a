"""``paceline audit --url``: tests that a server's outputs are those of the model that it claims to serve."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn
from rich.text import Text

from paceline.audit.client import CompletionClient
from paceline.audit.prompts import DEFAULT_PROMPTS
from paceline.audit.server import MAX_LOGPROB_ERROR, ServerAudit, audit_server, check_counts
from paceline.cli.audit_tables import add_distribution_tests, new_table, print_conclusion
from paceline.cli.commands.audit import Audit
from paceline.cli.console import make_progress
from paceline.cli.exit_codes import EXIT_DIFFERENT, EXIT_OK
from paceline.cli.models import load_target


def audit_served(options: Audit) -> int:
    """Run the audit and print its result. The server is contacted before the model is loaded."""
    server_options = options.server
    assert server_options.url is not None
    check_counts(
        num_tokens=options.num_tokens,
        text_length=options.text_length,
        batch_size=options.batch_size,
        near_tie=server_options.near_tie,
    )
    client = CompletionClient(
        url=server_options.url, key=_key(server_options.api_key_env), timeout=server_options.timeout
    )
    own = options.model.model
    name = client.find_model(server_options.served_model, candidates=(own, str(Path(own).absolute()), Path(own).name))
    target = load_target(options.model)
    with make_progress(
        Console(stderr=True, highlight=False), TextColumn("tokens tested"), TimeElapsedColumn()
    ) as progress:
        task = progress.add_task("", total=options.num_tokens)
        found = audit_server(
            target,
            client,
            DEFAULT_PROMPTS,
            model=name,
            num_tokens=options.num_tokens,
            text_length=options.text_length,
            batch_size=options.batch_size,
            seed=options.seed,
            near_tie=server_options.near_tie,
            on_progress=lambda what, done: progress.update(
                task, description=what, completed=min(done, options.num_tokens)
            ),
        )
    if options.json:
        extra = {"failures": found.failures, "notes": found.notes, "asked": found.extra_fields}  # asked: deprecated
        print(json.dumps({**asdict(found), **extra}))
    else:
        _print(found)
    return EXIT_DIFFERENT if found.failures else EXIT_OK


def _key(variable: str | None) -> str | None:
    """The key, where its variable is named. Raises ValueError where that is not set."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"--api-key-env {variable}: this variable is not set; give the name of one that is")
    return key


def _print(found: ServerAudit) -> None:
    console = Console(highlight=False)
    table = new_table()
    greedy, repeats, fit, sampled = found.greedy, found.seed_repeats, found.goodness_of_fit, found.recovery
    if found.miscounted_prompts is not None:
        same = found.num_prompts - len(found.miscounted_prompts)
        table.add_row(
            "prompts of as many tokens", f"{same} of {found.num_prompts}", "all", _mark(not found.miscounted_prompts)
        )
    same = greedy.num_sequences - len(greedy.divergence_points)
    expected = "all, but for near ties" if greedy.divergence_points else "all"
    good = _mark(not greedy.errors)
    table.add_row("greedy outputs equal to the model's", f"{same} of {greedy.num_sequences}", expected, good)
    if greedy.divergence_points:
        largest = max(one.margin for one in greedy.divergence_points)
        table.add_row("  largest margin where they diverge", f"{largest:.3g}", f"at most {greedy.near_tie:g}", "")
    again = "ok" if repeats.num_equal == repeats.num_sequences else "see note"
    table.add_row("same output for the same seed", f"{repeats.num_equal} of {repeats.num_sequences}", "all", again)
    add_distribution_tests(table, fit)
    if found.logprobs is not None:
        near = found.logprobs
        expected = f"at most {MAX_LOGPROB_ERROR:g}"
        good = _mark(near.mean <= MAX_LOGPROB_ERROR)
        table.add_row("  their log-probabilities, mean error", f"{near.mean:.2g}", expected, good)
    table.add_row("  identified by", sampled.source, "", "")
    if sampled.num_dropped or sampled.num_truncated:
        for number, what in ((sampled.num_dropped, "left out"), (sampled.num_truncated, "read in part")):
            table.add_row(f"  outputs {what}", f"{number} of {sampled.num_sequences}", "", "")
    console.print(table)
    for note in found.notes:
        console.print(Text(f"note: {note}", "yellow"))
    print_conclusion(console, found.failures)


def _mark(good: bool) -> str:
    return "ok" if good else "FAILED"
