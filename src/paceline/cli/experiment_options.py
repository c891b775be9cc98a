"""The options of ``paceline experiment`` and their help. The code, and torch with it, loads only when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.commands import EXIT_CODES
from paceline.core.registry import Registry

COMMANDS = Registry("experiment", {"resume": "paceline.cli.experiment_resume:Resume"})

Output = Annotated[Path, typer.Option(help="File of raw figures; what it holds already is not measured again.")]
Target = Annotated[
    str | None, typer.Option(help="Target model: directory or Hub id; the embedded one by default.", show_default=False)
]

experiment = typer.Typer(no_args_is_help=True, help="Measure what a study of docs/experiments tells, here.")


@experiment.command(epilog=EXIT_CODES)
def resume(
    output: Output,
    target: Target = None,
    exits: Annotated[str, typer.Option("--exit", help="Layers before the exit, such as 2,4,8.")] = "2,4,8,12",
    batch: Annotated[str, typer.Option(help="Texts at once.")] = "1,4,16",
    context: Annotated[str, typer.Option(help="Tokens of each text before the first step.")] = "64,512",
    num_draft_tokens: Annotated[int, typer.Option("--k", help="Tokens drafted per step.")] = 5,
    num_steps: Annotated[int, typer.Option(help="Timed steps of each way.")] = 25,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    report: Annotated[bool, typer.Option("--report", help="Measure nothing: print what the file holds.")] = False,
) -> int:
    """Does it pay to verify from the hidden states that an early exit has left?

    An exit drafts with the target's first layers. The verification can go on from there, or begin anew. Both ways take
    the same steps in turn and must write the same; what is timed is the whole step.

    Examples:

        paceline experiment resume --output resume.jsonl
        paceline experiment resume --target DIR --exit 4,8 --batch 1-16 --dtype bfloat16 --output resume.jsonl
        paceline experiment resume --output resume.jsonl --report
    """
    return (
        COMMANDS.find("resume")(
            output=output,
            target=target,
            exits=exits,
            batch=batch,
            context=context,
            num_draft_tokens=num_draft_tokens,
            num_steps=num_steps,
            dtype=dtype,
            threads=threads,
            report=report,
        )
    ).run()
