"""``paceline tree``: measures the acceptance of a draft's choices and prints the best tree."""

import json

from rich.console import Console

from paceline.api import SamplingParams, build_verifier, load
from paceline.api.draft_heads import is_head
from paceline.bench.tree_search import Advice, Candidate, advise_tree
from paceline.cli.bench_inputs import choose_prompts
from paceline.cli.commands.tree import Tree
from paceline.cli.console import make_table, open_notes
from paceline.cli.exit_codes import EXIT_OK
from paceline.cli.models import load_target


def find_tree(options: Tree) -> int:
    """Measure, decode again with what was found, and print."""
    notes = open_notes(quiet=options.json, log_level=None)
    build_verifier(options.verifier)  # refuses before anything is loaded
    params = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed)
    target = load_target(options.model)
    draft = (
        options.draft if is_head(options.draft) else load(options.draft, dtype=target.dtype, device=target.lm.device)
    )
    prompts = choose_prompts(
        target, suite="code", prompt_file=options.prompt_file, questions=None, count=options.num_prompts, seed=0
    )
    with notes.status("measuring ..."):
        advice = advise_tree(
            target,
            draft,
            prompts.tokens,
            params,
            num_drafted=options.num_nodes,
            depth=options.depth,
            width=options.width,
            verifier=options.verifier,
        )
    if options.json:
        print(json.dumps(_object(advice)))
    else:
        _print(advice)
    return EXIT_OK


def _object(advice: Advice) -> dict[str, object]:
    def candidate(found: Candidate) -> dict[str, object]:
        return {
            "num_draft_tokens": found.topology.num_drafted,
            "depth": found.topology.depth,
            "speculative_token_tree": str(list(found.topology.nodes)),
            "expected_tokens_per_step": found.expected,
            "tokens_per_step": found.measured,
        }

    return {
        "acceptance_by_rank": advice.rates,
        "tree": candidate(advice.tree),
        "chain": candidate(advice.chain),
    }


def _print(advice: Advice) -> None:
    console = Console(highlight=False)
    ranks = ((str(rank), f"{rate:.1%}") for rank, rate in enumerate(advice.rates, start=1))
    console.print(make_table(("the draft's choice", "accepted"), ranks))
    console.print()
    found = {"tree": advice.tree, "chain": advice.chain}
    rows = (
        (name, str(one.topology.num_drafted), str(one.topology.depth), f"{one.measured:.2f}", f"{one.expected:.2f}")
        for name, one in found.items()
    )
    console.print(make_table(("", "draft tokens", "depth", "tokens per step", "expected"), rows))
    console.print()
    console.print(f'"speculative_token_tree": "{list(advice.tree.topology.nodes)}"', soft_wrap=True)
