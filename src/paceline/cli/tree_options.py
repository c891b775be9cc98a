"""The options of ``paceline tree`` and their help. The command's code, and torch with it, loads only when it runs."""

from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.commands import COMMANDS


def tree(
    model: o.Model,
    draft: Annotated[str, typer.Option(help="Draft model of the same vocabulary, or a head: directory or Hub id.")],
    num_nodes: Annotated[int, typer.Option(help="Drafted tokens of the tree.")] = 16,
    depth: Annotated[int, typer.Option(help="Its depth at most.")] = 6,
    width: Annotated[int, typer.Option(help="Children of a token at most.")] = 8,
    prompt_file: o.PromptFile = None,
    num_prompts: Annotated[int | None, typer.Option(help="How many prompts; 8 of our own by default.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
    temperature: o.Temperature = 0.0,
    seed: o.Seed = 0,
    verifier: o.Verifier = "coupled",
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    json: o.Json = False,
) -> int:
    """Find the draft tree that keeps most tokens per step for a model and its draft.

    Measures how often the draft's first, second, third choice is the model's, and works out the best tree of that many
    tokens. Then decodes with it, and with a chain. What the command prints fits `speculative_token_tree` of a
    `speculative_config`. More tokens kept is not less time: every drafted token is scored. `paceline roofline` says
    what a step costs.

    Examples:

        paceline tree --model DIR --draft SMALL_DIR
        paceline tree --model DIR --draft SMALL_DIR --num-nodes 30 --depth 8 --prompt-file prompts.txt --json
    """
    return (
        COMMANDS.find("tree")(
            model=o.ModelOptions(
                model=model, dtype=dtype, device=device, threads=threads, revision=None, trust_remote_code=False
            ),
            draft=draft,
            num_nodes=num_nodes,
            depth=depth,
            width=width,
            prompt_file=prompt_file,
            num_prompts=num_prompts,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            verifier=verifier,
            json=json,
        )
    ).run()
