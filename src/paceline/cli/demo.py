"""``paceline demo``: decodes the same prompts plainly and with drafts, compares the outputs and times both."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from paceline.api import (
    Loaded,
    Result,
    SamplingParams,
    build_drafter,
    embedded_heads,
    embedded_pair,
    generate,
    load,
    stream,
)
from paceline.api.build import DrafterLike
from paceline.bench.generation import decoding
from paceline.bench.machine import describe
from paceline.bench.report import make_table
from paceline.bench.runner import Comparison, compare
from paceline.bench.suites import PYTHON_PROMPTS
from paceline.cli.commands.demo import Demo
from paceline.cli.exit_codes import EXIT_DIFFERENT, EXIT_OK
from paceline.cli.show import SourcePrinter, print_legend
from paceline.core.plan import Fixed
from paceline.drafters.base import Drafter

DTYPE = torch.float32  # faster than bfloat16 for models this small, and near ties stay apart
TABLE_TOKENS = 48  # per prompt and repeat
TABLE_SECONDS = 20.0  # the table's repeats are as many as fit, within the limits
MIN_REPEATS, MAX_REPEATS = 3, 5


def demo(options: Demo) -> int:
    """Show, compare and time; EXIT_DIFFERENT if any token differs."""
    torch.set_num_threads(options.threads)
    console = Console(highlight=False)
    target, draft = (load(path, dtype=DTYPE) for path in _pair(options))
    drafter = build_drafter(draft, target=target)
    heads = {_name_of(path): build_drafter(path, target=target) for path in _heads(options)}
    header = f"target: {_describe(target)}\ndraft:  {_describe(draft)}\n{describe()}\n"
    console.print(header, soft_wrap=True, markup=False)
    print_legend(console)
    equal, seconds = [], 0.0
    for number, prompt in enumerate(PYTHON_PROMPTS, start=1):
        console.rule(f"prompt {number} of {len(PYTHON_PROMPTS)}", align="left", style="dim")
        start = time.perf_counter()
        (plain,) = generate(target, prompt, _params(options))
        (fast,) = _show(options, console, target, drafter, prompt)
        seconds += time.perf_counter() - start
        equal.append(_compare(console, plain, fast))
    drafters: dict[str, DrafterLike] = {"plain": None, "ngram": "ngram", "draft model": drafter, **heads}
    comparison = _measure(options, console, target, drafters, seconds / len(PYTHON_PROMPTS) / options.max_tokens)
    same = all(equal) and all(measured.identical for measured in comparison.measured)
    console.print(
        "All tokens are identical: drafting changed the time, not the output."
        if same
        else "[bold red]The tokens differ[/bold red]: this is a bug, please report it with the output above.",
        soft_wrap=True,
    )
    return EXIT_OK if same else EXIT_DIFFERENT


def _params(options: Demo) -> SamplingParams:
    return SamplingParams(max_tokens=options.max_tokens, temperature=0.0)


def _pair(options: Demo) -> tuple[Path, Path]:
    if options.target is not None and options.draft is not None:
        return options.target, options.draft
    if options.target is not None or options.draft is not None:
        raise ValueError("give both --target and --draft, or neither for the embedded pair")
    return embedded_pair()


def _heads(options: Demo) -> Sequence[Path]:
    return options.head if options.head or options.target is not None else embedded_heads()


def _show(options: Demo, console: Console, target: Loaded, drafter: Drafter, prompt: str) -> list[Result]:
    """The speculative run, printed as it comes."""
    pieces = stream(
        target, prompt, _params(options), drafter=drafter, num_draft_tokens=Fixed(options.num_draft_tokens)
    )  # a plan, so that no step is spent on measuring
    printer = SourcePrinter(console=console)
    printer.prompt(prompt)
    try:
        for piece in pieces:
            printer.put(piece.text, piece.source)
    finally:
        printer.end()
    return pieces.results()


def _measure(
    options: Demo, console: Console, target: Loaded, drafters: Mapping[str, DrafterLike], per_token: float
) -> Comparison:
    """The table; ``per_token`` is what a token took in a plain and a drafted run together, in seconds."""
    tokens = min(TABLE_TOKENS, options.max_tokens)
    one_pass = per_token * tokens * len(PYTHON_PROMPTS) * len(drafters) / 2
    repeats = min(MAX_REPEATS, max(MIN_REPEATS, int(TABLE_SECONDS / one_pass) - 1))
    configurations = [
        decoding(
            name,
            target=target,
            prompts=PYTHON_PROMPTS,
            num_tokens=tokens,
            drafter=proposer,
            num_draft_tokens=options.num_draft_tokens,
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
        console.print(f"{looping} of {len(PYTHON_PROMPTS)} outputs mostly repeat themselves, which favours drafters.")
    return comparison


def _name_of(head: Path) -> str:
    """The name of a draft head in the table: its directory, in words."""
    return head.name.replace("_", " ")


def _describe(loaded: Loaded) -> str:
    lm = loaded.lm
    count = sum(p.numel() for p in lm.parameters()) if isinstance(lm, torch.nn.Module) else 0
    return f"{count / 1e6:.1f} M parameters, {lm.num_layers} layers, {loaded.dtype} ({loaded.name})"


def _compare(console: Console, plain: Result, fast: Result) -> bool:
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
