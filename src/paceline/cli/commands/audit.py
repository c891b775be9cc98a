"""``paceline audit``: tests that drafting is lossless with a model, or that a server serves the model it claims."""

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.command import EXIT_DIFFERENT, EXIT_OK, Command
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import NUM_DRAFT_TOKENS, Json, ModelOptions
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.audit.goodness_of_fit import GoodnessOfFit
    from paceline.audit.model import ModelAudit
    from paceline.audit.server import ServerAudit

SERVER = Group("Server", sort_key=3)
PROBED_NODES = 9  # of the drafts that bitwise equality is tested with


@Parameter(name="*", group=SERVER)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which server is audited; with ``url`` None, none is."""

    url: str | None = None
    """Audit this OpenAI-compatible server instead, with MODEL as reference: http://localhost:8000/v1."""
    served_model: str | None = None
    """The model's name on the server; looked up in its list by default."""
    api_key_env: Annotated[str | None, Parameter(metavar="VAR")] = None
    """Environment variable with the server's API key."""
    timeout: float = 120.0
    """Seconds to wait for a response."""
    near_tie: float = 0.5
    """Greedy outputs may diverge where the model prefers its own token by at most this many nats."""


@dataclass(frozen=True, slots=True)
class Audit(Command):
    """Verify that drafting is lossless with this model: equal tokens, the target's distribution, expected acceptance.

    Greedy and sampled outputs are compared with plain decoding. Sampled tokens are tested against the target's
    distributions, computed by plain forwards; a bias of 2 % in total variation is detected in 20,000 tokens. With a
    draft model, the acceptance rate is compared with its closed form. Takes minutes.

    With `--url`, the outputs are a server's, whatever decodes there: are they MODEL's, with MODEL's distribution?

    Examples:

        paceline audit DIR --draft SMALL_DIR
        paceline audit DIR --drafter ngram --verifier rejection --num-tokens 5000 --json
        paceline audit DIR --url http://localhost:8000/v1 --batch 32
    """

    model: ModelOptions
    _: KW_ONLY
    drafting: DraftOptions = field(default_factory=DraftOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    num_tokens: int = 20_000
    """Sampled tokens to test."""
    text_length: int = 128
    """Tokens of each output."""
    batch_size: Annotated[int, Parameter(alias="--batch")] = 8
    """Sequences per batch, or concurrent requests."""
    seed: int = 0
    """Seed of the sampled outputs."""
    json: Json = False

    def run(self) -> int:
        """Audit the server where one is given, else the model."""
        given = _given(self.drafting) if self.server.url is not None else _given(self.server)
        for name in given:
            option = f"--{name.replace('_', '-')}"
            if self.server.url is None:
                raise ValueError(f"{option} without --url: it is for servers, give --url too or leave it out")
            raise ValueError(f"{option} and --url: the server chooses what drafts there; leave {option} out")
        return self._audit_model() if self.server.url is None else self._audit_server()

    def _audit_model(self) -> int:
        """Run the audit and print its result."""
        from paceline.api.loading import runnable
        from paceline.api.prompts import encode
        from paceline.audit.model import audit
        from paceline.audit.prompts import DEFAULT_PROMPTS
        from paceline.models.batch_invariance import find_batch_dependence

        self.drafting.check()
        if self.drafting.several:
            both = f"--drafter {self.drafting.drafter} and --draft {self.drafting.draft}"
            raise ValueError(f"{both}: give one of them; an audit is of one drafter")
        target = self.model.load()
        if target.tokenizer is None:
            raise ValueError(f"{target.name} has no tokenizer: give a directory that holds one")
        drafter = self.drafting.choose(target)
        with Console(stderr=True, highlight=False).status("loading ...") as status:
            found = audit(
                target,
                [encode(target, text) for text in DEFAULT_PROMPTS],
                drafter=drafter,
                verifier=self.drafting.verifier,
                num_draft_tokens=NUM_DRAFT_TOKENS if self.drafting.count == "auto" else self.drafting.count,
                num_tokens=self.num_tokens,
                text_length=self.text_length,
                batch_size=self.batch_size,
                seed=self.seed,
                bitwise=find_batch_dependence(runnable(target), rows=self.batch_size, num_nodes=PROBED_NODES) is None,
                on_progress=lambda what: status.update(f"{what} ..."),
            )
        if self.json:
            print(to_json({**asdict(found), "failures": found.failures}))
        else:
            _print_model(found)
        return EXIT_DIFFERENT if found.failures else EXIT_OK

    def _audit_server(self) -> int:
        """Run the audit and print its result. The server is contacted before the model is loaded."""
        from rich.progress import TextColumn, TimeElapsedColumn

        from paceline.audit.client import CompletionClient
        from paceline.audit.prompts import DEFAULT_PROMPTS
        from paceline.audit.server import audit_server, check_counts
        from paceline.cli.progress import make_progress

        server = self.server
        assert server.url is not None
        check_counts(
            num_tokens=self.num_tokens,
            text_length=self.text_length,
            batch_size=self.batch_size,
            near_tie=server.near_tie,
        )
        client = CompletionClient(url=server.url, key=_key(server.api_key_env), timeout=server.timeout)
        own = self.model.model
        name = client.find_model(server.served_model, candidates=(own, str(Path(own).absolute()), Path(own).name))
        target = self.model.load()
        with make_progress(
            Console(stderr=True, highlight=False), TextColumn("tokens tested"), TimeElapsedColumn()
        ) as progress:
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
                near_tie=server.near_tie,
                on_progress=lambda what, done: progress.update(
                    task, description=what, completed=min(done, self.num_tokens)
                ),
            )
        if self.json:
            extra = {"failures": found.failures, "notes": found.notes, "asked": found.extra_fields}  # asked: deprecated
            print(to_json({**asdict(found), **extra}))
        else:
            _print_server(found)
        return EXIT_DIFFERENT if found.failures else EXIT_OK


def _given(options: DraftOptions | ServerOptions) -> list[str]:
    """Names of the options that are not at their defaults."""
    return [field.name for field in fields(options) if getattr(options, field.name) != field.default]


def _key(variable: str | None) -> str | None:
    """The key, where its variable is named. Raises ValueError where that is not set."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"--api-key-env {variable}: this variable is not set; give the name of one that is")
    return key


def _print_model(found: "ModelAudit") -> None:
    console = Console(highlight=False)
    table = _new_table()
    greedy, fit = found.greedy, found.goodness_of_fit
    same = greedy.num_sequences - len(greedy.divergence_points)
    table.add_row(
        "greedy outputs equal to plain decoding",
        f"{same} of {greedy.num_sequences}",
        *_equal(same, greedy.num_sequences, found),
    )
    if greedy.divergence_points:
        margin = max(one.margin for one in greedy.divergence_points)
        table.add_row("  largest margin where they diverge", f"{margin:.3g}", "near 0", "")
    if found.sampled is not None:
        own = found.sampled
        equality = _equal(own.num_equal, own.num_sequences, found)
        table.add_row("sampled outputs equal to plain decoding", f"{own.num_equal} of {own.num_sequences}", *equality)
    _add_distribution_tests(table, fit)
    if found.acceptance is not None:
        rate = found.acceptance
        expected = f"{rate.expected:.4f} +- {rate.half_width:.4f}"
        table.add_row(
            f"first tokens accepted, of {rate.count:,}", f"{rate.observed:.4f}", expected, _show_p(rate.p_value)
        )
    table.add_row("tokens per step, greedy", f"{greedy.mean_acceptance_length:.2f}", "", "")
    console.print(table)
    _print_conclusion(console, found.failures)


def _equal(num: int, of: int, found: "ModelAudit") -> tuple[str, str]:
    """How many equal outputs are expected, and whether there are as many: all where the model is bitwise exact."""
    if not found.bitwise:
        return ("all, but for near ties" if num < of else "all"), ""
    return "all", "ok" if num == of else "FAILED"


def _print_server(found: "ServerAudit") -> None:
    from paceline.audit.server import MAX_LOGPROB_ERROR

    console = Console(highlight=False)
    table = _new_table()
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
    _add_distribution_tests(table, fit)
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
    _print_conclusion(console, found.failures)


def _mark(good: bool) -> str:
    return "ok" if good else "FAILED"


def _new_table() -> Table:
    """One line per check."""
    return Table("check", "found", "expected", "", box=None, padding=(0, 2, 0, 0))


def _add_distribution_tests(table: Table, fit: "GoodnessOfFit") -> None:
    """The three tests of sampled tokens."""
    table.add_row(
        f"surprisal of {fit.num_tokens:,} sampled tokens, nats",
        f"{fit.nll:.4f}",
        f"{fit.entropy:.4f} +- {fit.half_width:.4f}",
        _show_p(fit.nll_p_value),
    )
    table.add_row("  Kolmogorov-Smirnov distance", f"{fit.ks_statistic:.4f}", "", _show_p(fit.ks_p_value))
    table.add_row("  frequency of the most likely tokens", "", "", _show_p(fit.rank_p_value))


def _show_p(p: float) -> str:
    """A p-value, under the hypothesis of correct samples."""
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.1e}"


def _print_conclusion(console: Console, failures: Sequence[str]) -> None:
    """The failures, or that there are none."""
    for failure in failures:
        console.print(Text(f"FAILED: {failure}", "bold red"))
    if not failures:
        console.print(Text("all tests passed", "bold green"))
