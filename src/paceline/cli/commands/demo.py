"""``paceline demo``: decodes a prompt as one watches, then times every drafter, and says whether drafting pays."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from paceline.cli.command import EXIT_DIFFERENT, EXIT_OK, Command
from paceline.cli.console import open_console, open_notes
from paceline.cli.options import AT_LEAST_1, MODEL_PATH, WITHIN_CORES, Color, DraftLength
from paceline.cli.progress import waiting

if TYPE_CHECKING:
    from paceline.api import Loaded, Result, SamplingParams
    from paceline.api.drafter_like import DrafterLike
    from paceline.bench.runner import Comparison
    from paceline.engine.costs import DepthCost

PLAIN, MODEL = "plain", "draft model"  # names in the table
PACE = 0.03  # seconds for which each token of the animated prompt is looked at
TABLE_TOKENS = 48  # per prompt and repeat
TABLE_SECONDS = 20.0  # the table's repeats are as many as fit, within the limits
MIN_REPEATS, MAX_REPEATS = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo(Command):
    """Watch speculative decoding on a small model and see what it gains here, in less than a minute.

    Decodes a Python prompt plainly and with a draft model. The second run is shown as it is generated: every token
    coloured by its source, rejected draft tokens struck through. Then several prompts are decoded with every drafter
    and timed, all outputs are compared token for token, and the last line says whether drafting pays here.

    Exits with 1 if any token differs. Without colour, marks under the text show the source of each token.

    Examples:

        paceline demo
        paceline demo --target MODEL_DIR --draft DRAFT_DIR
        paceline demo --color never
    """

    target: Annotated[Path | None, MODEL_PATH] = None
    """Target model directory instead of the embedded one."""
    draft: Annotated[Path | None, MODEL_PATH] = None
    """Draft model directory instead of the embedded one."""
    head: tuple[Path, ...] = ()
    """Draft head of the target, to be timed too; may be repeated."""
    num_draft_tokens: DraftLength = "auto"
    """Tokens drafted per step; auto drafts as many as pay."""
    max_tokens: Annotated[int, AT_LEAST_1] = 96
    """Tokens generated from the prompt that is shown."""
    threads: Annotated[int, WITHIN_CORES] = 1
    """CPU threads; the embedded models are too small for more than one."""
    color: Color = "auto"

    def run(self) -> int:
        """Show, compare and time; EXIT_DIFFERENT if any token differs."""
        if (self.target is None) != (self.draft is None):
            raise ValueError("give both --target and --draft, or neither for the embedded pair")
        console, notes = open_console(self.color), open_notes(quiet=False, log_level=None, color=self.color)
        console.print(
            "Decodes a prompt with a draft model as you watch, then times every drafter beside plain decoding: half a "
            f"minute{'' if self.target is None else ', or more with large models'}.\n",
            soft_wrap=True,
        )
        with waiting(notes, "loading PyTorch and the models"):
            pair, heads = self._pair(), self._heads()
            target, draft, drafters = self._load(pair, heads)
        options = {"ngram": "--drafter ngram", MODEL: f"--draft {pair[1]}"}
        options |= {_name_of(path): f"--draft {path}" for path in heads}
        from paceline.api import generate
        from paceline.bench.machine import describe
        from paceline.bench.suites import PYTHON_PROMPTS
        from paceline.cli.conclusion import best_of, conclusion, speedup_table, speedups
        from paceline.cli.show import print_legend

        header = f"target: {_describe(target)}\ndraft:  {_describe(draft)}\n{describe()}\n"
        console.print(header, soft_wrap=True, markup=False)

        prompt = PYTHON_PROMPTS[0]
        start = time.perf_counter()
        (plain,) = generate(target, prompt, self._params())
        per_token = (time.perf_counter() - start) / self.max_tokens
        print_legend(console, rejected=True)
        (fast,) = self._show(console, target, drafters[MODEL], prompt)
        same = _compare(console, plain, fast)
        comparison = self._measure(console, notes, target, drafters, per_token)
        same = same and all(measured.identical for measured in comparison.measured)
        found = speedups(comparison)
        best = best_of(found)
        console.print(speedup_table(found))
        _print_looping(console, comparison)
        costs = () if best.ratio.low > 1 else self._costs(target, drafters[best.name], prompt)
        console.print(
            "\nAll tokens are identical: drafting changed the time, not the output."
            if same
            else "\n[bold red]The tokens differ[/bold red]: this is a bug, please report it with the output above.",
            soft_wrap=True,
        )
        console.print(conclusion(found, options[best.name], costs), style="bold", soft_wrap=True, markup=False)
        return EXIT_OK if same else EXIT_DIFFERENT

    def _load(self, pair: tuple[Path, Path], heads: Sequence[Path]) -> "tuple[Loaded, Loaded, dict[str, DrafterLike]]":
        """Target, draft model and what is timed, by name: plain decoding first."""
        import torch

        from paceline.api import build_drafter, load

        torch.set_num_threads(self.threads)
        # float32 is faster than bfloat16 for models this small, and near ties stay apart.
        target, draft = (load(path, dtype=torch.float32) for path in pair)
        built = {_name_of(path): build_drafter(path, target=target) for path in heads}
        return target, draft, {PLAIN: None, "ngram": "ngram", MODEL: build_drafter(draft, target=target), **built}

    def _params(self) -> "SamplingParams":
        from paceline.api import SamplingParams

        return SamplingParams(max_tokens=self.max_tokens, temperature=0.0)

    def _pair(self) -> tuple[Path, Path]:
        from paceline.api import embedded_pair

        return embedded_pair() if self.target is None or self.draft is None else (self.target, self.draft)

    def _heads(self) -> Sequence[Path]:
        from paceline.api import embedded_heads

        return self.head if self.head or self.target is not None else embedded_heads()

    def _show(self, console: Console, target: "Loaded", drafter: "DrafterLike", prompt: str) -> list["Result"]:
        """The speculative run, printed as it comes."""
        from paceline.api import stream
        from paceline.cli.show import SourcePrinter, can_animate

        pieces = stream(
            target,
            prompt,
            self._params(),
            drafter=drafter,
            num_draft_tokens=self.num_draft_tokens,
            rejected=True,
        )
        printer = SourcePrinter(console=console, pace=PACE if can_animate(console) else None)
        printer.prompt(prompt)
        try:
            for piece in pieces:
                printer.put(piece.text, piece.source, piece.rejected)
        finally:
            printer.end()
        return pieces.results()

    def _measure(
        self,
        console: Console,
        notes: Console,
        target: "Loaded",
        drafters: Mapping[str, "DrafterLike"],
        per_token: float,
    ) -> "Comparison":
        """Times of all ``drafters``; ``per_token`` are about the seconds that a token takes."""
        from paceline.bench.generation import decoding
        from paceline.bench.runner import compare
        from paceline.bench.suites import PYTHON_PROMPTS

        tokens = min(TABLE_TOKENS, self.max_tokens)
        one_pass = per_token * tokens * len(PYTHON_PROMPTS) * len(drafters)
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
        work = f"{len(PYTHON_PROMPTS)} prompts x {tokens} tokens, one at a time, {repeats} times"
        console.print(f"{work}; intervals are 95 %, over prompts and repeats\n", soft_wrap=True)
        with waiting(notes, f"measuring, up to {max(1.0, one_pass * (repeats + 1)):.0f} s") as progress:
            return compare(configurations, baseline=PLAIN, repeats=repeats, progress=progress)

    def _costs(self, target: "Loaded", drafter: "DrafterLike", prompt: str) -> "tuple[DepthCost, ...]":
        """What the controller, if any, has learnt of steps with ``drafter`` by their draft length."""
        from paceline.api import generate

        (result,) = generate(target, prompt, self._params(), drafter=drafter, num_draft_tokens=self.num_draft_tokens)
        return result.stats.costs


def _name_of(head: Path) -> str:
    """The name of a draft head in the table: its directory, in words."""
    return head.name.replace("_", " ")


def _describe(loaded: "Loaded") -> str:
    import torch

    lm = loaded.lm
    count = sum(p.numel() for p in lm.parameters()) if isinstance(lm, torch.nn.Module) else 0
    return f"{count / 1e6:.1f} M parameters, {lm.num_layers} layers, {loaded.dtype} ({loaded.name})"


def _print_looping(console: Console, comparison: "Comparison") -> None:
    plain = comparison[PLAIN]
    if plain.num_looping:
        total = len(plain.sample.tokens)
        console.print(f"{plain.num_looping} of {total} outputs mostly repeat themselves, which favours drafters.")


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
