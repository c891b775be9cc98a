"""The options of ``python -m benchmarks`` and their help. The code, and torch with it, loads only when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.commands import EXIT_CODES
from paceline.core.registry import Registry

COMMANDS = Registry(
    "study",
    {"resume": "benchmarks.resume.study:Resume", "batched": "benchmarks.batched.study:Batched"},
)

Output = Annotated[Path, typer.Option(help="File of raw figures; what it holds already is not measured again.")]
Target = Annotated[
    str | None, typer.Option(help="Target model: directory or Hub id; the embedded one by default.", show_default=False)
]
Report = Annotated[bool, typer.Option("--report", help="Measure nothing: print what the file holds.")]

study = typer.Typer(no_args_is_help=True, help="Measure on this machine what docs/experiments reports.")


@study.command(epilog=EXIT_CODES)
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
    report: Report = False,
) -> int:
    """Does it pay to verify from the hidden states that an early exit has left?

    An exit drafts with the target's first layers. The verification can go on from there, or begin anew. Both ways take
    the same steps in turn and must write the same; what is timed is the whole step.

    Examples:

        python -m benchmarks resume --output resume.jsonl
        python -m benchmarks resume --target DIR --exit 4,8 --batch 1-16 --dtype bfloat16 --output resume.jsonl
        python -m benchmarks resume --output resume.jsonl --report
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


@study.command(epilog=EXIT_CODES)
def batched(
    output: Output,
    target: Target = None,
    draft: Annotated[str | None, typer.Option(help="Draft model: directory or Hub id.", show_default=False)] = None,
    batch: Annotated[str, typer.Option(help="Rows of a batch.")] = "1,2,4,8,16",
    num_draft_tokens: Annotated[int, typer.Option("--k", help="Tokens drafted per step.")] = 4,
    suite: Annotated[str, typer.Option(help="Prompts, as those of paceline bench.")] = "mixed",
    num_prompts: Annotated[int, typer.Option(help="How many; batches take them in turn.")] = 16,
    max_tokens: Annotated[int, typer.Option(help="New tokens of every row.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed batches of each way.")] = 5,
    runtime: Annotated[str, typer.Option(help="What runs forwards: eager, kernel, or both.")] = "eager,kernel",
    processor_time: Annotated[
        bool, typer.Option("--processor-time", help="Count what one thread computed: for a machine that is not quiet.")
    ] = False,
    dtype: o.Dtype = "float32",
    threads: o.Threads = None,
    report: Report = False,
) -> int:
    """What do rows of a batch lose that do not advance alone?

    Rows accept different numbers of drafts. They advance each by its own, or in lock-step by the least that any of them
    accepted, or by their own but padded, so that all are moved to end at one slot after every step. The last runs
    eagerly only, so that all three are compared there, and the first two by the kernel also. All decode the same
    batches greedily, in turn.

    Examples:

        python -m benchmarks batched --output batched.jsonl
        python -m benchmarks batched --target DIR --draft DIR --k 3 --max-tokens 256 --output batched.jsonl
        python -m benchmarks batched --output batched.jsonl --report
    """
    return (
        COMMANDS.find("batched")(
            output=output,
            target=target,
            draft=draft,
            batch=batch,
            num_draft_tokens=num_draft_tokens,
            suite=suite,
            num_prompts=num_prompts,
            max_tokens=max_tokens,
            repeats=repeats,
            runtime=runtime,
            processor_time=processor_time,
            dtype=dtype,
            threads=threads,
            report=report,
        )
    ).run()
