"""``paceline train auto``: chooses a draft head for a target and a budget, and writes its configuration."""

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.console import make_table
from paceline.cli.options import POSITIONAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.train.choice import Estimate

UNITS = {"s": 1, "m": 60, "h": 3600}
TITLES = ("head", "size", "s/step", "steps", "expected", "k", "step cost", "speed-up")


@dataclass(frozen=True, slots=True)
class TrainAuto(Command):
    """Choose a draft head for a target and a training budget, and write the configuration that trains it.

    The configuration given lacks `heads` and `schedule.steps`. Each candidate is trained for some steps, validated, and
    timed while it drafts. The steps that fit the budget give the expected tokens per step, by figures that were
    measured on another, small target; the highest speed-up with what a step then costs is chosen. All figures are
    printed and written; for another target the expected ones are guesses.

    Examples:

        paceline train auto base.yaml --budget 40m --output chosen.yaml
        paceline train chosen.yaml
    """

    config: Annotated[Path, POSITIONAL]
    """YAML file: target, data, batch and the rest, without heads."""
    _: KW_ONLY
    budget: str
    """Time to train, validations included: 90s, 40m, 8h."""
    output: Path
    """The configuration that is written."""
    settings: Annotated[tuple[str, ...], Parameter(name="--set", metavar="FIELD=VALUE")] = ()
    """Override a field of the file; may be repeated."""

    def run(self) -> int:
        """Measure, print, and write."""
        from paceline.train.auto import choose_recipe, read_base
        from paceline.train.config_file import dump

        seconds = _seconds(self.budget)
        if not self.output.parent.is_dir():
            raise ValueError(f"--output {self.output}: no such directory: {self.output.parent}; create it")
        base = read_base(self.config, self.settings)
        with Console(stderr=True, highlight=False).status("measuring ...") as status:
            found = choose_recipe(base, budget=seconds, progress=lambda what: status.update(f"{what} ..."))
        lines = [*_lines(found.estimates), found.reason]
        Console(highlight=False).print(make_table(TITLES, [_row(one) for one in found.estimates]))
        print(found.reason)
        comment = "".join(f"# {line}\n" for line in [f"paceline train auto, budget {self.budget}:", *lines])
        self.output.write_text(comment + dump(found.config), encoding="utf-8")
        print(f"next: paceline train {self.output}")
        return EXIT_OK


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--budget {text}: give seconds, minutes or hours above 0, such as 90s, 40m or 8h")
    return float(found[1]) * UNITS[found[2]]


def _row(one: "Estimate") -> "Sequence[str]":
    return (
        one.candidate.name,
        f"{one.probe.num_parameters / 1e6:.2f} M",
        f"{one.probe.step:.3f}",
        f"{one.steps:,}",
        f"{one.tokens_per_step:.2f}",
        str(one.num_draft_tokens),
        f"{one.probe.costs[one.num_draft_tokens - 1]:.2f}",
        f"{one.speed_up:.2f}",
    )


def _lines(estimates: "Sequence[Estimate]") -> list[str]:
    """The table as comments, unrounded where the choice depends on it."""
    rows: list[dict[str, Any]] = [
        {
            **dict(zip(TITLES, _row(one), strict=True)),
            "parameters": one.probe.num_parameters,
            "s/step": one.probe.step,
            "s/validation": one.probe.validation,
            "step costs": ", ".join(f"{cost:.3f}" for cost in one.probe.costs),
        }
        for one in estimates
    ]
    return ["; ".join(f"{name} {value}" for name, value in row.items()) for row in rows]
