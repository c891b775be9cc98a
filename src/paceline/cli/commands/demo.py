"""``paceline demo``: decodes the same prompts plainly and with drafts, compares the outputs and times both."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from paceline.cli.command import EXIT_DIFFERENT, EXIT_OK, Command
from paceline.cli.options import AT_LEAST_1, DraftLength

if TYPE_CHECKING:
    from paceline.api import Loaded, Result, SamplingParams
    from paceline.api.build import DrafterLike
    from paceline.bench.runner import Comparison
    from paceline.drafters.base import Drafter

TABLE_TOKENS = 48  # per prompt and repeat
TABLE_SECONDS = 20.0  # the table's repeats are as many as fit, within the limits
MIN_REPEATS, MAX_REPEATS = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo(Command):
    """Compare speculative with plain decoding on a small model, in less than a minute.

    Decodes several Python prompts twice, plainly and with a draft model. The second run is shown as it is generated,
    every token coloured by its source; then both runs are compared token for token, and timed.

    Exits with 1 if any token differs. Without colour, marks under the text show the source of each token.

    Examples:

        paceline demo
        paceline demo --target MODEL_DIR --draft DRAFT_DIR
        NO_COLOR=1 paceline demo
    """

    target: Path | None = None
    """Target model directory instead of the embedded one."""
    draft: Path | None = None
    """Draft model directory instead of the embedded one."""
    head: tuple[Path, ...] = ()
    """Draft head of the target, to be timed too; may be repeated."""
    num_draft_tokens: DraftLength = "auto"
    """Tokens drafted per step; auto drafts as many as pay."""
    max_tokens: Annotated[int, AT_LEAST_1] = 96
    """Tokens generated per prompt."""
    threads: Annotated[int, AT_LEAST_1] = 1
    """CPU threads; the embedded models are too small for more than one."""

    def run(self) -> int:
        """Show, compare and time; EXIT_DIFFERENT if any token differs."""
        import torch

        from paceline.api import build_drafter, generate, load
        from paceline.bench.machine import describe
        from paceline.bench.suites import PYTHON_PROMPTS
        from paceline.cli.show import print_legend

        torch.set_num_threads(self.threads)
        console = Console(highlight=False)
        # float32 is faster than bfloat16 for models this small, and near ties stay apart.
        target, draft = (load(path, dtype=torch.float32) for path in self._pair())
        drafter = build_drafter(draft, target=target)
        heads = {_name_of(path): build_drafter(path, target=target) for path in self._heads()}
        header = f"target: {_describe(target)}\ndraft:  {_describe(draft)}\n{describe()}\n"
        console.print(header, soft_wrap=True, markup=False)
        print_legend(console)
        equal, seconds = [], 0.0
        for number, prompt in enumerate(PYTHON_PROMPTS, start=1):
            console.rule(f"prompt {number} of {len(PYTHON_PROMPTS)}", align="left", style="dim")
            start = time.perf_counter()
            (plain,) = generate(target, prompt, self._params())
            (fast,) = self._show(console, target, drafter, prompt)
            seconds += time.perf_counter() - start
            equal.append(_compare(console, plain, fast))
        drafters: dict[str, DrafterLike] = {"plain": None, "ngram": "ngram", "draft model": drafter, **heads}
        comparison = self._measure(console, target, drafters, seconds / len(PYTHON_PROMPTS) / self.max_tokens)
        same = all(equal) and all(measured.identical for measured in comparison.measured)
        console.print(
            "All tokens are identical: drafting changed the time, not the output."
            if same
            else "[bold red]The tokens differ[/bold red]: this is a bug, please report it with the output above.",
            soft_wrap=True,
        )
        return EXIT_OK if same else EXIT_DIFFERENT

    def _params(self) -> "SamplingParams":
        from paceline.api import SamplingParams

        return SamplingParams(max_tokens=self.max_tokens, temperature=0.0)

    def _pair(self) -> tuple[Path, Path]:
        from paceline.api import embedded_pair

        if self.target is not None and self.draft is not None:
            return self.target, self.draft
        if self.target is not None or self.draft is not None:
            raise ValueError("give both --target and --draft, or neither for the embedded pair")
        return embedded_pair()

    def _heads(self) -> Sequence[Path]:
        from paceline.api import embedded_heads

        return self.head if self.head or self.target is not None else embedded_heads()

    def _show(self, console: Console, target: "Loaded", drafter: "Drafter", prompt: str) -> list["Result"]:
        """The speculative run, printed as it comes."""
        from paceline.api import stream
        from paceline.cli.show import SourcePrinter

        pieces = stream(target, prompt, self._params(), drafter=drafter, num_draft_tokens=self.num_draft_tokens)
        printer = SourcePrinter(console=console)
        printer.prompt(prompt)
        try:
            for piece in pieces:
                printer.put(piece.text, piece.source)
        finally:
            printer.end()
        return pieces.results()

    def _measure(
        self, console: Console, target: "Loaded", drafters: Mapping[str, "DrafterLike"], per_token: float
    ) -> "Comparison":
        """The table; ``per_token`` is what a token took in a plain and a drafted run together, in seconds."""
        from paceline.bench.generation import decoding
        from paceline.bench.report import make_table
        from paceline.bench.runner import compare
        from paceline.bench.suites import PYTHON_PROMPTS

        tokens = min(TABLE_TOKENS, self.max_tokens)
        one_pass = per_token * tokens * len(PYTHON_PROMPTS) * len(drafters) / 2
        repeats = min(MAX_REPEATS, max(MIN_REPEATS, int(TABLE_SECONDS / one_pass) - 1))
        configurations = [
            decoding(
                name,
                target=target,
                prompts=PYTHON_PROMPTS,
                num_tokens=tokens,
                drafter=proposer,
                num_draft_tokens=self.num_draft_tokens,
            )
            for name, proposer in drafters.items()
        ]
        console.rule("timing", align="left", style="dim")
        title = f"{len(PYTHON_PROMPTS)} prompts x {tokens} tokens, one at a time; median (lowest-highest) of {repeats}"
        with console.status("measuring ...") as status:
            comparison = compare(configurations, baseline="plain", repeats=repeats, progress=status.update)
        console.print(make_table(comparison, title=title))
        looping = comparison["plain"].num_looping
        if looping:
            console.print(
                f"{looping} of {len(PYTHON_PROMPTS)} outputs mostly repeat themselves, which favours drafters."
            )
        return comparison


def _name_of(head: Path) -> str:
    """The name of a draft head in the table: its directory, in words."""
    return head.name.replace("_", " ")


def _describe(loaded: "Loaded") -> str:
    import torch

    lm = loaded.lm
    count = sum(p.numel() for p in lm.parameters()) if isinstance(lm, torch.nn.Module) else 0
    return f"{count / 1e6:.1f} M parameters, {lm.num_layers} layers, {loaded.dtype} ({loaded.name})"


def _compare(console: Console, plain: "Result", fast: "Result") -> bool:
    """Print whether both runs generated the same tokens, and where they diverge."""
    counts = (
        f"plainly {len(plain.token_ids)} tokens in {plain.stats.steps} steps, "
        f"drafted {len(fast.token_ids)} tokens in {fast.stats.steps} steps"
    )
    if plain.token_ids == fast.token_ids and plain.text == fast.text:
        console.print(f"[dim]{counts}: identical[/dim]\n", soft_wrap=True)
        return True
    pairs = zip(plain.token_ids, fast.token_ids, strict=False)
    at = next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(plain.token_ids), len(fast.token_ids))
    )
    console.print(f"[bold red]{counts}: DIFFERENT from token {at + 1} on[/bold red]; plainly it is:\n", soft_wrap=True)
    console.print(plain.text or "", markup=False, soft_wrap=True)
    return False
