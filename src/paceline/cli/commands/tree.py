"""``paceline tree``: measures the acceptance of a draft's choices and prints the best tree."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.console import make_table, open_notes
from paceline.cli.options import AT_LEAST_1, MODEL_OR_HEAD_PATH, Json, ModelOptions, PromptFile, Verifier
from paceline.cli.sampling_options import Seed, Temperature
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.bench.tree_search import Advice, Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(Command):
    """Find the draft tree with the most accepted tokens per step for a model and its draft.

    Measures how often the draft's first, second, third choice is accepted, and computes the best tree of that many
    tokens. Then decodes with it, and with a chain. The last line printed is a `speculative_token_tree` for a
    `speculative_config`. More accepted tokens is not less time: every drafted token is scored. `paceline roofline`
    shows what a step costs.

    Examples:

        paceline tree --model DIR --draft SMALL_DIR
        paceline tree --model DIR --draft SMALL_DIR --num-nodes 30 --depth 8 --prompt-file prompts.txt --json
    """

    model: ModelOptions
    draft: Annotated[str, MODEL_OR_HEAD_PATH]
    """Draft model with the same vocabulary, or a draft head: directory or Hub id."""
    num_nodes: Annotated[int, AT_LEAST_1] = 16
    """Drafted tokens of the tree."""
    depth: Annotated[int, AT_LEAST_1] = 6
    """Maximum depth."""
    width: Annotated[int, AT_LEAST_1] = 8
    """Maximum number of children of a node."""
    prompt_file: PromptFile = None
    num_prompts: Annotated[int | None, AT_LEAST_1] = None
    """Number of prompts; 8 built-in ones by default."""
    max_tokens: Annotated[int, AT_LEAST_1] = 64
    """Tokens generated per prompt."""
    temperature: Temperature = 0.0
    seed: Seed = 0
    verifier: Verifier = "coupled"
    json: Json = False

    def run(self) -> int:
        """Measure, decode again with what was found, and print."""
        from paceline.api import SamplingParams, build_verifier, load
        from paceline.api.draft_heads import find_head
        from paceline.bench.prompts import choose_prompts
        from paceline.bench.tree_search import advise_tree
        from paceline.cli.prompt_file.prompts import read_valid_prompts

        notes = open_notes(quiet=self.json, log_level=None)
        build_verifier(self.verifier)  # refuses before anything is loaded
        params = SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)
        target = self.model.load()
        draft = find_head(self.draft) or load(self.draft, dtype=target.dtype, device=target.lm.device)
        given = None if self.prompt_file is None else read_valid_prompts(self.prompt_file)
        prompts = choose_prompts(target, suite="code", given=given, count=self.num_prompts, seed=0)
        with notes.status("measuring ..."):
            advice = advise_tree(
                target,
                draft,
                prompts.tokens,
                params,
                num_drafted=self.num_nodes,
                depth=self.depth,
                width=self.width,
                verifier=self.verifier,
            )
        if self.json:
            print(to_json(_object(advice)))
        else:
            _print(advice)
        return EXIT_OK


def _object(advice: "Advice") -> dict[str, object]:
    def candidate(found: "Candidate") -> dict[str, object]:
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


def _print(advice: "Advice") -> None:
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
