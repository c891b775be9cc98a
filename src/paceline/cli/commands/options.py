"""``paceline options``: the sampling options, where each one works, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import Json

if TYPE_CHECKING:
    from paceline.hf.options import Option

MEANINGS = {  # of the stages
    "step": "on the device, at every node of a draft with that node's own prefix; on a CPU by the kernel",
    "overlapped": "on the host, at every node of a draft with that node's own prefix, while the device computes",
    "host": "on the host, between steps",
    "prompt": "on the device, before the first step",
}
PATHS = ("plain", "chain", "tree")
NOTE = "Every option below works in {paths} decoding; drafts: what a draft model samples from is processed too."
WIDTH = 26  # characters of a column before the last, unless a word is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Command):
    """List the sampling options: where each one works, and what is refused.

    Examples:

        paceline options
        paceline options --json
    """

    json: Json = False

    def run(self) -> int:
        """Print what there is."""
        from paceline.api.params import SamplingParams
        from paceline.hf.options import DROP_IN, OPTIONS, Guarantee

        if self.json:
            drop_in = {name: {"but_for": [None, *one.neutral], "why": one.reason} for name, one in DROP_IN.items()}
            print(json.dumps({"options": [_object(option) for option in OPTIONS], "refused_by_drop_in": drop_in}))
            return EXIT_OK
        defaults = {field.name: field.default for field in fields(SamplingParams)}
        console = Console(highlight=False)
        honoured = [option for option in OPTIONS if option.refusal is None]
        _print(
            console,
            ("option", "paceline generate", "model.generate"),
            [(one.name, " ".join(one.flags) or "-", one.field or "-") for one in honoured],
        )
        console.print(NOTE.format(paths=f"{', '.join(PATHS[:-1])} and {PATHS[-1]}"))
        _print(
            console,
            ("option", "default", "where", "drafts", "guaranteed by"),
            [
                (one.name, repr(defaults[one.name]), one.stage, "yes" if one.drafts else "-", one.guarantee)
                for one in honoured
            ],
        )
        _print(console, ("where", "meaning"), [(place, meaning) for place, meaning in MEANINGS.items()])
        _print(console, ("guaranteed by", "verifiers"), [(one, ", ".join(one.verifiers)) for one in Guarantee])
        refused = [(one.name, repr(defaults[one.name]), one.refusal or "") for one in OPTIONS if one.refusal]
        _print(console, ("refused", "except", "why"), refused)
        others = [(name, ", ".join(map(repr, (None, *one.neutral))), one.reason) for name, one in DROP_IN.items()]
        _print(console, ("refused by the drop-in", "except", "why"), others)
        return EXIT_OK


def _object(option: "Option") -> dict[str, object]:
    """A row for programs."""
    honoured = option.refusal is None
    return {
        "name": option.name,
        "flags": option.flags,
        "field": option.field,
        "where": option.stage,
        **{path: honoured for path in PATHS},
        "drafts": honoured and option.drafts,
        "verifiers": list(option.guarantee.verifiers) if honoured else [],
        "refused": option.refusal,
    }


def _print(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In 80 columns no word is cut: only the last column is as narrow as the terminal makes it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for number, (title, *cells) in enumerate(zip(head, *rows, strict=True), start=1):
        whole = max(map(len, (title, *cells)))
        word = max(len(word) for cell in (title, *cells) for word in cell.split())
        table.add_column(title, width=min(whole, max(word, WIDTH)) if number < len(head) else None, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()
