"""``paceline advise``: measures what drafting costs and gives on this machine, and says what to draft with."""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.console import open_notes
from paceline.cli.numbers import read_counts, read_numbers
from paceline.cli.options import (
    AT_LEAST_1,
    DRAFTING,
    OUTPUT,
    SAMPLING,
    STOPPING,
    Json,
    LogLevel,
    ModelOptions,
    Quiet,
    at_least,
)
from paceline.cli.prompt_file.journal import check_writable
from paceline.cli.sampling_options import Seed
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.api import Loaded
    from paceline.api.prompts import Prompt
    from paceline.bench.advice import Advice
    from paceline.bench.advisor import Findings
    from paceline.bench.what_if import WhatIf
    from paceline.drafters.base import Drafter
    from paceline.engine.profile import Conditions

SHORTEST = 16  # outputs in which drafts of every length have room

logger = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True)
class Advise(Command):
    """Measure on this machine and your prompts which drafter pays, and with how many draft tokens.

    Decodes the prompts with all draft lengths in turn, so that they are timed side by side, and says for every batch
    size and temperature which drafter and length is the fastest, from how many tokens per step it pays, and what it
    gains. What was measured is kept as a profile, which `paceline generate` begins from. Trees are not tried.

    Examples:

        paceline advise DIR --draft SMALL_DIR --draft ngram
        paceline advise DIR --draft SMALL_DIR --prompts prompts.txt --batch-size 1,8 --temperature 0,0.8
        paceline advise DIR --draft SMALL_DIR --what-if threads=1 --plot advice.svg
        paceline advise DIR --draft early_exit:exit_layer=4 --what-if bandwidth=20,flops=300 --json
    """

    model: ModelOptions
    _: KW_ONLY
    drafts: Annotated[tuple[str, ...], Parameter(name="--draft", group=DRAFTING)] = ()
    """A drafter to try: a draft model, the directory of a draft head, a name such as ngram, with options if wanted, or
    FILE.py:NAME, one of your own; may be repeated. ngram by default."""
    prompt_file: Annotated[Path | None, Parameter(name=("--prompts", "--prompt-file"))] = None
    """Prompts, one per line; in a .jsonl file {"prompt": ...}, {"tokens": ...} or {"messages": ...}. Built-in
    beginnings of Python code by default."""
    num_prompts: Annotated[int | None, AT_LEAST_1] = None
    """Number of prompts, chosen by the seed; all of a file, else 8, by default."""
    batch_sizes: Annotated[str, Parameter(name="--batch-size")] = "1"
    """Sequences per batch, such as 1,8."""
    temperatures: Annotated[str, Parameter(name="--temperature", group=SAMPLING)] = "0"
    """Temperatures, such as 0,0.8."""
    seed: Seed = 0
    max_tokens: Annotated[int, at_least(SHORTEST), Parameter(group=STOPPING)] = 64
    """Tokens generated per prompt, past the end of text; prompts are taken again until every length was timed often."""
    what_if: Annotated[str | None, Parameter(metavar="KEY=VALUE,...")] = None
    """Estimate the same for a machine with another bandwidth (GB/s), flops (GFLOP/s) or number of threads:
    bandwidth=20,flops=300,threads=2."""
    profile: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write the profile here; into the cache by default."""
    plot: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Draw the speed-up by draft length into this .svg file."""
    json: Json = False
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Measure, print, draw, and write the profiles."""
        from paceline.bench.advisor import find_advice
        from paceline.bench.prompts import choose_prompts
        from paceline.bench.what_if import check_what_if, read_what_if
        from paceline.bench.workbench import check_lengths
        from paceline.engine.knowledge import MAX_DRAFT_TOKENS

        notes = open_notes(quiet=self.quiet, log_level=self.log_level)
        batch_sizes = read_counts(self.batch_sizes, option="--batch-size")
        temperatures = read_numbers(self.temperatures, option="--temperature", such_as="0,0.8")
        what_if = None if self.what_if is None else read_what_if(self.what_if)
        names = self._check()
        given = self._prompts()
        target = self.model.load()
        if what_if is not None:
            check_what_if(what_if, target.lm, target.lm.device)
        chosen = choose_prompts(target, suite="code", given=given, count=self.num_prompts, seed=max(0, self.seed))
        check_lengths(target, chosen.tokens, [self.max_tokens], num_nodes=1 + MAX_DRAFT_TOKENS)
        drafters = self._drafters(names, target)
        profiles = self._profiles(target, drafters)
        with notes.status("measuring ...") as status:
            found = find_advice(
                target,
                drafters,
                chosen.tokens,
                batch_sizes=batch_sizes,
                temperatures=list(dict.fromkeys(temperatures)),
                max_tokens=self.max_tokens,
                seed=max(0, self.seed),
                what_if=what_if,
                progress=lambda what, share: status.update(f"{share:.0%}: {what} ..."),
            )
        written = _write_profiles(profiles, found)
        if self.plot is not None:
            self._draw(found, what_if)
        if self.json:
            print(to_json(_object(found, what_if, written)))
        else:
            self._print(found, what_if, written, len(chosen.tokens))
        return EXIT_OK

    def _check(self) -> list[str]:
        """The names of the drafters; options are refused here that need no model for it."""
        from paceline.api.draft_heads import is_head
        from paceline.api.drafter_like import check_drafter
        from paceline.api.named import name_of
        from paceline.drafters import DRAFTERS
        from paceline.engine.profile import is_profile
        from paceline.models.directory import is_hub_id

        names = list(dict.fromkeys(self.drafts)) or ["ngram"]
        for name in names:
            if name_of(name) in ("none", "model"):
                raise ValueError(f"--draft {name}: give what drafts: a draft model's directory, a head's, or a name")
            if not check_drafter(name) and not Path(name).is_dir() and not is_head(name) and not is_hub_id(name):
                raise ValueError(
                    f"--draft {name}: no such directory; give a draft model, a draft head, FILE.py:NAME, or one "
                    f"of {', '.join(DRAFTERS)}"
                )
        if self.profile is not None:
            if len(names) > 1:
                raise ValueError(f"--profile {self.profile} and {len(names)} drafters: a profile is of one; give one")
            check_writable(self.profile, option="--profile")
            if self.profile.exists() and not is_profile(self.profile):
                raise ValueError(f"--profile {self.profile}: exists already and is no profile; give another name")
        if self.plot is not None:
            if self.plot.suffix != ".svg":
                raise ValueError(f"--plot {self.plot}: give a name that ends in .svg")
            check_writable(self.plot, option="--plot")
            if find_spec("matplotlib") is None:
                raise ValueError("--plot needs matplotlib: run pip install 'paceline[bench]', or leave it out")
        return names

    def _prompts(self) -> "list[Prompt] | None":
        from paceline.cli.prompt_file.prompts import read_valid_prompts

        return None if self.prompt_file is None else read_valid_prompts(self.prompt_file, option="--prompts")

    def _drafters(self, names: list[str], target: "Loaded") -> "dict[str, Drafter]":
        from paceline.api import build_drafter

        return {name: build_drafter(name, target=target) for name in names}

    def _profiles(self, target: "Loaded", drafters: "dict[str, Drafter]") -> "dict[str, tuple[Path, Conditions]]":
        """Where the profiles of drafters go, and what they hold for; a warning where one of something else is there."""
        from paceline.api.profiles import conditions_of
        from paceline.engine.knowledge import Knowledge
        from paceline.engine.profile import ProfileError, profile_path, read_profile

        profiles: dict[str, tuple[Path, Conditions]] = {}
        for name, drafter in drafters.items():
            conditions = conditions_of(target, drafter)
            if conditions is None:
                logger.warning("no profile is kept: nothing tells the weights of %s from others", target.name)
                continue
            path = self.profile or profile_path(conditions)
            profiles[name] = path, conditions
            if path.is_file():
                try:
                    read_profile(path, conditions, Knowledge())
                except ProfileError as error:
                    logger.warning("profile %s: it is ignored, measured anew and replaced", error)
        return profiles

    def _draw(self, found: "Findings", what_if: "WhatIf | None") -> None:
        from paceline.bench.advice_plot import draw_advice  # needs the optional matplotlib

        assert self.plot is not None
        drawing = draw_advice(found.advice, found.imagined, what_if=str(what_if or ""))
        self.plot.write_text(drawing, encoding="utf-8")

    def _print(self, found: "Findings", what_if: "WhatIf | None", written: dict[str, Path], num_prompts: int) -> None:
        from paceline.cli.advice import sentences

        console = Console(highlight=False)
        _print_tables(console, found.advice)
        for sentence in sentences(found.advice):
            console.print(sentence, soft_wrap=True, markup=False)
        steps = sum(one.num_steps for one in found.advice)
        console.print(
            f"Estimated from the times and the acceptance of {steps} steps on {num_prompts} prompts; intervals are "
            "95 %, over prompts and rounds of timing. The length need not be given: by default (auto) a controller "
            "chooses it for every row and step.",
            soft_wrap=True,
        )
        if what_if is not None:
            console.print(Text(f"\nwith {what_if}", "bold"))
            _print_tables(console, found.imagined)
            for sentence in (*sentences(found.imagined), *found.assumptions):
                console.print(sentence, soft_wrap=True, markup=False)
        for path in written.values():
            console.print(f"profile: {path}", soft_wrap=True, markup=False)
        if self.plot is not None:
            console.print(f"picture: {self.plot}", soft_wrap=True, markup=False)


def _print_tables(console: Console, advice: "Sequence[Advice]") -> None:
    from paceline.cli.advice import table_of, title_of

    for one in advice:
        console.print(Text(title_of(one.setting), "bold"))
        console.print(table_of(one))
        console.print()


def _write_profiles(profiles: "dict[str, tuple[Path, Conditions]]", found: "Findings") -> dict[str, Path]:
    """Write the profiles; those that were written."""
    from paceline.engine.profile import write_profile

    written: dict[str, Path] = {}
    for name, (path, conditions) in profiles.items():
        try:
            write_profile(path, conditions, found.knowledge[name])
            written[name] = path
        except OSError as error:
            logger.warning("no profile is kept: %s: %s; set PACELINE_PROFILES to another folder", path, error.strerror)
    return written


def _object(found: "Findings", what_if: "WhatIf | None", written: dict[str, Path]) -> dict[str, object]:
    from paceline.bench.machine import describe
    from paceline.cli.advice import advice_object, best_by_conditions, sentences

    return {
        "machine": str(describe()),
        "pays": any(one.pays for one in best_by_conditions(found.advice)),
        "advice": sentences(found.advice),
        "settings": [advice_object(one) for one in found.advice],
        "what_if": None
        if what_if is None
        else {
            "machine": str(what_if),
            "advice": sentences(found.imagined),
            "settings": [advice_object(one) for one in found.imagined],
            "assumptions": list(found.assumptions),
        },
        "profiles": {name: str(path) for name, path in written.items()},
    }
