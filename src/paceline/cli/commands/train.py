"""Options of ``paceline train``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.cli.options import POSITIONAL


@dataclass(frozen=True, slots=True)
class Train:
    """Train a model, a draft model, or draft heads.

    The same command continues after any interruption, with the weights and losses of an uninterrupted run. Validation
    runs the decoder itself, so it measures what serving gives.

    Several processes share the work when `distributed` is ddp or fsdp2 and torchrun starts them.

    Examples:

        paceline train recipe.yaml --dry-run
        paceline train recipe.yaml --set schedule.steps=500 --set output=runs/second
        torchrun --nproc_per_node 8 -m paceline train recipe.yaml --set distributed=ddp
    """

    config: Annotated[Path, POSITIONAL]
    """YAML file: what to train, on what data, and how."""
    _: KW_ONLY
    settings: Annotated[tuple[str, ...], Parameter(name="--set", metavar="FIELD=VALUE")] = ()
    """Override a field of the file: schedule.steps=500; may be repeated."""
    dump_config: bool = False
    """Print the configuration with every default and exit."""
    dry_run: bool = False
    """Run one step and one validation, write nothing, and print what a run needs."""
    resume: Annotated[bool | None, Parameter(negative="--fresh")] = None
    """Only continue an interrupted run; or start over and set the previous run aside. By default, continue if there
    is a run to continue."""
