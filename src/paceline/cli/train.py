"""The command ``paceline train``: reads a configuration, trains, and says in a line what came of it."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.commands import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK
from paceline.train.config import TrainConfig
from paceline.train.config_file import ConfigError, dump, read_train_config
from paceline.train.loop.stopping import Stopped
from paceline.train.loop.trainer import Score
from paceline.train.run import DryRun, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainModels:
    """The command's options; ``run`` returns the exit code."""

    config: Path
    settings: list[str]
    dump_config: bool
    dry_run: bool
    resume: bool | None

    def run(self) -> int:
        """Train; under torchrun, leave the process at once, for gloo may abort an interpreter that ends by itself."""
        code = self._run()
        if "WORLD_SIZE" in os.environ:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _run(self) -> int:
        try:
            config = read_train_config(self.config, self.settings)
            if self.dump_config:
                print(dump(config), end="")
                return EXIT_OK
            run = Run(config=config, fresh=None if self.resume is None else not self.resume)
            lines = _rehearsed(run.dry_run()) if self.dry_run else _trained(config, run.train())
            if run.strategy.main:
                print("\n".join(lines))
            run.strategy.close()
            return EXIT_OK
        except ConfigError as error:
            _say(str(error))
            return EXIT_BAD_INPUT
        except Stopped as stop:
            _say(str(stop))
            return EXIT_INTERRUPTED
        except (ValueError, OSError) as error:
            _say(" ".join(str(error).split()))
            return EXIT_BAD_INPUT


def _say(text: str) -> None:
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
    told = {name: value for name, value in score.metrics.items() if name.endswith(("tokens_per_step", "loss"))}
    width = max((len(name) for name in told), default=0)
    return [f"{name:{width}}  {value:.3f}" for name, value in told.items()]
