"""The options of ``paceline train`` and their help. The command's code, and torch with it, loads only when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.commands import COMMANDS


def train(
    config: Annotated[Path, typer.Argument(help="What to train, on what and how: a YAML file.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field and its value, over the file's: schedule.steps=500; may be repeated."),
    ] = None,
    dump_config: Annotated[
        bool, typer.Option("--dump-config", help="Print the configuration with every default and leave.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="One step and one validation; write nothing, say what a run takes.")
    ] = False,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--fresh",
            help="Only go on where a run was cut, or begin anew and set the former run aside; by default go on if "
            "there is something to go on with.",
        ),
    ] = None,
) -> int:
    """Train a model, a draft model, or heads that draft for a model.

    The same command goes on after any interruption, with the weights and losses of a run that was never cut. What it
    measures is what serving gives: validation runs the decoder itself.

    Several processes share the work when `distributed` is ddp or fsdp2 and torchrun starts them.

    Examples:

        paceline train recipe.yaml --dry-run
        paceline train recipe.yaml --set schedule.steps=500 --set output=runs/second
        torchrun --nproc_per_node 8 -m paceline train recipe.yaml --set distributed=ddp
    """
    return (
        COMMANDS.find("train")(
            config=config, settings=setting or [], dump_config=dump_config, dry_run=dry_run, resume=resume
        )
    ).run()
