"""``paceline audit``: tests that a drafter and a verifier are lossless with a model."""

import json
from dataclasses import asdict, fields

from rich.console import Console

from paceline.api.loading import runnable
from paceline.api.prompts import encode
from paceline.audit.model import ModelAudit, audit
from paceline.audit.prompts import DEFAULT_PROMPTS
from paceline.cli.audit_server import audit_served
from paceline.cli.audit_tables import add_distribution_tests, new_table, print_conclusion, show_p
from paceline.cli.commands.audit import Audit, ServerOptions
from paceline.cli.exit_codes import EXIT_DIFFERENT, EXIT_OK
from paceline.cli.models import check_drafting, choose_drafter, load_target, num_draft_tokens
from paceline.cli.options import DraftOptions
from paceline.models.batch_invariance import find_batch_dependence

PROBED_NODES = 9  # of the drafts that bitwise equality is tested with


def run_audit(options: Audit) -> int:
    """Audit the server where one is given, else the model."""
    given = _given(options.drafting) if options.server.url is not None else _given(options.server)
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if options.server.url is None:
            raise ValueError(f"{option} without --url: it is for servers, give --url too or leave it out")
        raise ValueError(f"{option} and --url: the server chooses what drafts there; leave {option} out")
    return _audit_model(options) if options.server.url is None else audit_served(options)


def _given(options: DraftOptions | ServerOptions) -> list[str]:
    """Names of the options that are not at their defaults."""
    return [field.name for field in fields(options) if getattr(options, field.name) != field.default]


def _audit_model(options: Audit) -> int:
    """Run the audit and print its result."""
    check_drafting(options.drafting)
    target = load_target(options.model)
    if target.tokenizer is None:
        raise ValueError(f"{target.name} has no tokenizer: give a directory that holds one")
    drafter = choose_drafter(options.drafting, target=target)
    with Console(stderr=True, highlight=False).status("loading ...") as status:
        found = audit(
            target,
            [encode(target, text) for text in DEFAULT_PROMPTS],
            drafter=drafter,
            verifier=options.drafting.verifier,
            num_draft_tokens=num_draft_tokens(options.drafting),
            num_tokens=options.num_tokens,
            text_length=options.text_length,
            batch_size=options.batch_size,
            seed=options.seed,
            bitwise=find_batch_dependence(runnable(target), rows=options.batch_size, num_nodes=PROBED_NODES) is None,
            on_progress=lambda what: status.update(f"{what} ..."),
        )
    if options.json:
        print(json.dumps({**asdict(found), "failures": found.failures}))
    else:
        _print(found)
    return EXIT_DIFFERENT if found.failures else EXIT_OK


def _print(found: ModelAudit) -> None:
    console = Console(highlight=False)
    table = new_table()
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
    add_distribution_tests(table, fit)
    if found.acceptance is not None:
        rate = found.acceptance
        expected = f"{rate.expected:.4f} +- {rate.half_width:.4f}"
        table.add_row(
            f"first tokens accepted, of {rate.count:,}", f"{rate.observed:.4f}", expected, show_p(rate.p_value)
        )
    table.add_row("tokens per step, greedy", f"{greedy.mean_acceptance_length:.2f}", "", "")
    console.print(table)
    print_conclusion(console, found.failures)


def _equal(num: int, of: int, found: ModelAudit) -> tuple[str, str]:
    """How many equal outputs are expected, and whether there are as many: all where the model is bitwise exact."""
    if not found.bitwise:
        return ("all, but for near ties" if num < of else "all"), ""
    return "all", "ok" if num == of else "FAILED"
