"""Options of ``paceline tree``."""

from dataclasses import dataclass
from typing import Annotated

from paceline.cli.options import AT_LEAST_1, Json, ModelOptions, PromptFile, Verifier
from paceline.cli.sampling_options import Seed, Temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
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
    draft: str
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
