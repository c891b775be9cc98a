"""``paceline skip-search``: finds the sub-layers that the drafter ``layer_skip`` leaves out."""

from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn

from paceline.cli.command import EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.console import open_notes
from paceline.cli.options import (
    AT_LEAST_1,
    DRAFTING,
    OUTPUT,
    STOPPING,
    Json,
    LogLevel,
    ModelOptions,
    Quiet,
    at_least,
)
from paceline.cli.progress import make_progress
from paceline.cli.prompt_file.journal import check_writable
from paceline.cli.sampling_options import Seed, Temperature
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.api import Loaded
    from paceline.bench.skip_search import Measured
    from paceline.bench.skip_study import SkipStudy, Trial


@dataclass(frozen=True, slots=True)
class SkipSearch(Command):
    """Find the attentions and MLPs that a model can leave out while it drafts for itself.

    Bayesian optimisation on the measured time per token of speculative decoding, side by side with plain decoding. The
    set is written beside the model, where the drafter `layer_skip` finds it. Every trial is kept: the same command goes
    on after an interruption, and with more --trials. Half of the prompts are kept from the search, to measure what
    it found. Needs `pip install 'paceline[search]'`.

    Examples:

        paceline skip-search DIR
        paceline skip-search DIR --prompts prompts.txt --trials 300 --num-draft-tokens 6
        paceline generate --model DIR --drafter layer_skip "def quicksort(items):"
    """

    model: ModelOptions
    _: KW_ONLY
    prompt_file: Annotated[Path | None, Parameter(name=("--prompts", "--prompt-file"))] = None
    """Prompts, one per line; in a .jsonl file {"prompt": ...}, {"tokens": ...} or {"messages": ...}. Built-in
    beginnings of Python code by default."""
    num_prompts: Annotated[int | None, AT_LEAST_1] = None
    """Number of prompts, chosen by the seed; all of a file, else 8, by default."""
    trials: Annotated[int, AT_LEAST_1] = 100
    """Number of sets to try, those of earlier runs included."""
    num_draft_tokens: Annotated[int, AT_LEAST_1, Parameter(group=DRAFTING)] = 4
    """Tokens drafted per step."""
    batch_size: Annotated[int, AT_LEAST_1] = 1
    """Sequences per batch."""
    max_tokens: Annotated[int, at_least(2), Parameter(group=STOPPING)] = 64
    """Tokens generated per prompt, past the end of text."""
    temperature: Temperature = 0.0
    seed: Seed = 0
    output: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write the set to this file; by default beside the model, or into the cache where that cannot be written."""
    json: Json = False
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Search, measure what was found, write and print it."""
        notes = open_notes(quiet=self.quiet, log_level=self.log_level)
        if find_spec("optuna") is None:
            raise ValueError("skip-search needs optuna: run pip install 'paceline[search]'")
        if self.output is not None:
            check_writable(self.output)

        from paceline.api.skip_sets import native_target, set_path, write_set
        from paceline.bench.skip_search import SkipSettings, as_set, measure, open_study, search, split

        settings = SkipSettings(
            num_draft_tokens=self.num_draft_tokens,
            max_tokens=self.max_tokens,
            batch_size=self.batch_size,
            temperature=self.temperature,
            seed=max(0, self.seed),
        )
        prompts, target = self._load()
        native_target(target)
        path = self.output or set_path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        searched, others, held_out = split(prompts)
        study = open_study(path.with_name(f"{path.stem}.trials.jsonl"), target, searched, settings)
        try:
            with make_progress(
                notes, TextColumn("{task.fields[best]}"), TimeRemainingColumn(compact=True), shown=not self.quiet
            ) as bar:
                task = bar.add_task("trials", total=self.trials, completed=len(study.trials), best="")
                search(
                    study,
                    target,
                    searched,
                    settings,
                    num_trials=self.trials,
                    progress=lambda done, best: bar.update(task, completed=done, best=_best(best)),
                )
            with notes.status("measuring ...") as status:
                found = measure(
                    study.trials,
                    target,
                    others,
                    settings,
                    held_out=held_out,
                    progress=lambda what: status.update(f"measuring: {what} ..."),
                )
        except KeyboardInterrupt:
            notes.print(_interrupted(study, self.trials), soft_wrap=True, markup=False)
            return EXIT_INTERRUPTED
        write_set(path, as_set(found, settings, num_trials=len(study.trials)), target)
        drafter = "layer_skip" if self.output is None else f"layer_skip:{path}"
        if self.json:
            print(to_json(_object(found, path, len(study.trials), drafter)))
        else:
            _print(found, path, target, drafter)
        return EXIT_OK

    def _load(self) -> "tuple[list[list[int]], Loaded]":
        """The prompts and the target. Raises ValueError for lengths that the target cannot hold."""
        from paceline.bench.prompts import choose_prompts
        from paceline.bench.workbench import check_lengths
        from paceline.cli.prompt_file.prompts import read_valid_prompts

        given = None if self.prompt_file is None else read_valid_prompts(self.prompt_file, option="--prompts")
        target = self.model.load()
        chosen = choose_prompts(target, suite="code", given=given, count=self.num_prompts, seed=max(0, self.seed))
        check_lengths(target, chosen.tokens, [self.max_tokens], num_nodes=1 + self.num_draft_tokens)
        return [list(prompt) for prompt in chosen.tokens], target


def _best(trial: "Trial | None") -> str:
    return "" if trial is None else f"best {1 / trial.relative_time:.2f} x, {trial.tokens_per_step:.2f} tokens/step"


def _interrupted(study: "SkipStudy", trials: int) -> str:
    done = min(len(study.trials), trials)
    return f"stopped after {done} of {trials} trials, which are in {study.file.path}: the same command goes on"


def _print(found: "Measured", path: Path, target: "Loaded", drafter: str) -> None:
    console, skipped = Console(highlight=False), found.sublayers

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    say(f"skip       {skipped}: {len(skipped)} of {2 * target.lm.num_layers} sub-layers")
    say(f"speed-up   {found.speedup:.2f} over plain decoding, on {_where(found)}")
    say(f"drafts     {found.tokens_per_step:.2f} tokens per step, {found.acceptance_rate:.0%} of the drafts accepted")
    if not found.identical:
        say("output     not always that of plain decoding: near ties of rounded logits (see the documentation)")
    if not found.quiet:
        say(f"noise      the machine was not quiet: plain decoding was {found.control:.2f} times as fast as itself")
    if not found.pays:
        say("It does not pay here: plain decoding is as fast, or the times are too noisy to tell.")
    say(f"set        {path}")
    say(f'next       paceline generate --model {target.name} --drafter {drafter} "..."')


def _where(found: "Measured") -> str:
    return "prompts that the search did not see" if found.held_out else "the one prompt that it was searched with"


def _object(found: "Measured", path: Path, trials: int, drafter: str) -> dict[str, object]:
    return {
        "attention": sorted(found.sublayers.attention),
        "mlp": sorted(found.sublayers.mlp),
        "speedup": found.speedup.value,
        "speedup_interval": [found.speedup.low, found.speedup.high],
        "pays": found.pays,
        "tokens_per_step": found.tokens_per_step,
        "acceptance_rate": found.acceptance_rate,
        "identical": found.identical,
        "control": found.control,
        "held_out_prompts": found.held_out,
        "num_trials": trials,
        "set": str(path),
        "drafter": drafter,
    }
