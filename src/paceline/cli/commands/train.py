"""``paceline train``: reads a configuration, trains, and prints the result."""

import os
import shlex
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.command import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.options import POSITIONAL

if TYPE_CHECKING:
    from paceline.train.loop.trainer import Score
    from paceline.train.run import DryRun


@dataclass(frozen=True, slots=True)
class Train(Command):
    """Train a model, a draft model, or draft heads.

    The same command continues after any interruption, with the weights and losses of an uninterrupted run; with a
    larger schedule.steps it lengthens a run. Validation runs the decoder itself, so it measures what serving gives.

    Several processes share the work when `distributed` is ddp or fsdp2 and torchrun starts them.

    Examples:

        paceline train recipe.yaml --dry-run
        paceline train recipe.yaml --set schedule.steps=500 --set output=runs/second
        torchrun --nproc_per_node 8 -m paceline train recipe.yaml --set distributed=ddp
        paceline train report runs/second
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

    def run(self) -> int:
        """Under torchrun, leave the process at once: gloo may abort an interpreter that ends by itself."""
        code = self._run()
        if "WORLD_SIZE" in os.environ:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _run(self) -> int:
        from paceline.train.config_file import ConfigError, dump, read_train_config
        from paceline.train.loop.stopping import Stopped
        from paceline.train.outcome import next_command
        from paceline.train.run import Run

        try:
            config = read_train_config(self.config, self.settings)
            if self.dump_config:
                print(dump(config), end="")
                return EXIT_OK
            run = Run(config=config, fresh=None if self.resume is None else not self.resume)
            if self.dry_run:
                lines = _describe_dry_run(run.dry_run())
            else:
                score = run.train()
                lines = [f"trained into {config.output}", *_describe(score)]
                if run.resumed_from >= config.schedule.steps:
                    lines.append(self._how_to_lengthen(config.schedule.steps))
                lines.append(f"next: {next_command(config, score.metrics)}")
            if run.strategy.main:
                print("\n".join(lines))
            run.strategy.close()
            return EXIT_OK
        except ConfigError as error:
            _print_error(str(error))
            return EXIT_BAD_INPUT
        except Stopped as stop:
            _print_error(str(stop))
            return EXIT_INTERRUPTED
        except (ValueError, OSError) as error:
            _print_error(" ".join(str(error).split()))
            return EXIT_BAD_INPUT

    def _how_to_lengthen(self, steps: int) -> str:
        """What to type where nothing was left to train."""
        from paceline.train.resume_check import STEPS

        words = ["paceline", "train", str(self.config)]
        settings = [one for one in self.settings if not one.startswith(f"{STEPS}=")]
        words += [word for one in (*settings, f"{STEPS}={2 * steps}") for word in ("--set", one)]
        return f"all {steps} steps were done before; to lengthen the run: {shlex.join(words)}"


def _print_error(text: str) -> None:
    """A line for each line of ``text``, by one process."""
    if os.environ.get("RANK", "0") == "0":
        for line in text.splitlines():
            print(f"paceline: {line}", file=sys.stderr)


def _describe_dry_run(found: "DryRun") -> list[str]:
    return [
        f"trained parameters  {found.num_trained:,}",
        f"frozen parameters   {found.num_frozen:,}",
        f"tokens per step     {found.tokens_per_step:,} over {found.num_processes} process(es)",
        f"memory              {found.memory:,.0f} MiB",
        *([] if found.stored is None else [f"hidden states       {found.stored / 2**20:,.0f} MiB to store"]),
        f"first loss          {found.loss:.4f}",
        *_describe(found.score),
        "nothing was written",
    ]


def _describe(score: "Score") -> list[str]:
    """Loss and tokens per step, each with its name."""
    shown = {name: value for name, value in score.metrics.items() if name.endswith(("tokens_per_step", "loss"))}
    width = max((len(name) for name in shown), default=0)
    return [f"{name:{width}}  {value:.3f}" for name, value in shown.items()]
