"""The command ``paceline audit``: whether a model, a drafter and a verifier keep their promises."""

import json
from dataclasses import asdict, dataclass

from rich.console import Console

from paceline.api.loading import runnable
from paceline.api.prompts import encode
from paceline.audit.model import Audit, audit
from paceline.audit.prompts import BEGINNINGS
from paceline.cli.audit_tables import add_law, mark, new_table, say
from paceline.cli.commands import EXIT_DIFFERENT, EXIT_OK
from paceline.cli.models import check_drafting, choose_drafter, load_target, num_draft_tokens
from paceline.cli.options import DraftOptions, ModelOptions
from paceline.models.batch_invariance import find_batch_dependence

PROBED_NODES = 9  # of the drafts that equality bit for bit is tried with


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditModel:
    """The command's options; ``run`` returns the exit code."""

    model: ModelOptions
    drafting: DraftOptions
    num_tokens: int
    text_length: int
    batch_size: int
    seed: int
    json: bool

    def run(self) -> int:
        """Ask, and print what was found."""
        check_drafting(self.drafting)
        target = load_target(self.model)
        if target.tokenizer is None:
            raise ValueError(f"{target.name} has no tokenizer: give a directory that holds one")
        drafter = choose_drafter(self.drafting, target=target)
        with Console(stderr=True, highlight=False).status("loading ...") as status:
            found = audit(
                target,
                [encode(target, text) for text in BEGINNINGS],
                drafter=drafter,
                verifier=self.drafting.verifier,
                num_draft_tokens=num_draft_tokens(self.drafting),
                num_tokens=self.num_tokens,
                text_length=self.text_length,
                batch_size=self.batch_size,
                seed=self.seed,
                bitwise=find_batch_dependence(runnable(target), rows=self.batch_size, num_nodes=PROBED_NODES) is None,
                tell=lambda what: status.update(f"{what} ..."),
            )
        if self.json:
            print(json.dumps({**asdict(found), "failures": found.failures}))
        else:
            _print(found)
        return EXIT_DIFFERENT if found.failures else EXIT_OK


def _print(found: Audit) -> None:
    console = Console(highlight=False)
    table = new_table()
    greedy, law = found.greedy, found.law
    same = greedy.num_texts - len(greedy.partings)
    table.add_row(
        "greedy texts equal to plain ones", f"{same} of {greedy.num_texts}", *_equal(same, greedy.num_texts, found)
    )
    if greedy.partings:
        margin = max(one.margin for one in greedy.partings)
        table.add_row("  largest margin where they part", f"{margin:.3g}", "near 0", "")
    if found.coupled is not None:
        own = found.coupled
        equality = _equal(own.num_equal, own.num_texts, found)
        table.add_row("sampled texts equal to plain ones", f"{own.num_equal} of {own.num_texts}", *equality)
    add_law(table, law)
    if found.acceptance is not None:
        rate = found.acceptance
        expected = f"{rate.expected:.4f} +- {rate.half_width:.4f}"
        table.add_row(f"first tokens accepted, of {rate.count:,}", f"{rate.seen:.4f}", expected, mark(rate.p))
    table.add_row("tokens per step, greedy", f"{greedy.mean_acceptance_length:.2f}", "", "")
    console.print(table)
    say(console, found.failures)


def _equal(num: int, of: int, found: Audit) -> tuple[str, str]:
    """What is expected of texts, and whether that is so: all equal where it is promised bit for bit."""
    if not found.bitwise:
        return ("all, but for near ties" if num < of else "all"), ""
    return "all", "ok" if num == of else "FAILED"
