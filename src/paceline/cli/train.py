"""``paceline train``: reads a configuration, trains, and prints the result."""

import os
import sys

from paceline.cli.commands.train import Train
from paceline.cli.exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK
from paceline.train.config import TrainConfig
from paceline.train.config_file import ConfigError, dump, read_train_config
from paceline.train.loop.stopping import Stopped
from paceline.train.loop.trainer import Score
from paceline.train.run import DryRun, Run


def train(options: Train) -> int:
    """Train; under torchrun, leave the process at once, for gloo may abort an interpreter that ends by itoptions."""
    code = _run(options)
    if "WORLD_SIZE" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(options: Train) -> int:
    try:
        config = read_train_config(options.config, options.settings)
        if options.dump_config:
            print(dump(config), end="")
            return EXIT_OK
        run = Run(config=config, fresh=None if options.resume is None else not options.resume)
        lines = _rehearsed(run.dry_run()) if options.dry_run else _trained(config, run.train())
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


def _print_error(text: str) -> None:
    """A line for each line of ``text``, by one process."""
    if os.environ.get("RANK", "0") == "0":
        for line in text.splitlines():
            print(f"paceline: {line}", file=sys.stderr)


def _rehearsed(found: DryRun) -> list[str]:
    return [
        f"trained parameters  {found.num_trained:,}",
        f"frozen parameters   {found.num_frozen:,}",
        f"tokens per step     {found.tokens_per_step:,} over {found.num_processes} process(es)",
        f"memory              {found.memory:,.0f} MiB",
        f"first loss          {found.loss:.4f}",
        *_numbers(found.score),
        "nothing was written",
    ]


def _trained(config: TrainConfig, score: Score) -> list[str]:
    return [f"trained into {config.output}", *_numbers(score)]


def _numbers(score: Score) -> list[str]:
    """Loss and tokens per step, each with its name."""
    shown = {name: value for name, value in score.metrics.items() if name.endswith(("tokens_per_step", "loss"))}
    width = max((len(name) for name in shown), default=0)
    return [f"{name:{width}}  {value:.3f}" for name, value in shown.items()]
