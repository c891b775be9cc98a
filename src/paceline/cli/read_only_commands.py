"""The options and help of the commands that decode nothing. Their code, and torch with it, loads when they run."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.commands import COMMANDS


def score(
    model: o.Model,
    prompt: Annotated[str | None, typer.Argument(help="Text that comes before.")] = None,
    continuation: Annotated[str | None, typer.Argument(help="Text that is scored after it.")] = None,
    file: Annotated[
        Path | None, typer.Option(help='Lines of {"prompt": ..., "continuation": ...}, texts or token ids.')
    ] = None,
    text: Annotated[list[Path] | None, typer.Option(help="A whole text, for its perplexity; may be repeated.")] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="With --text: tokens between windows over texts beyond the context; half of it by default."),
    ] = None,
    batch_size: o.BatchSize = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    backend: o.Backend = "auto",
    quantization: o.Quantization = None,
    enforce_eager: o.EnforceEager = False,
    threads: o.Threads = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    log_level: o.LogLevel = None,
) -> int:
    """Say how likely a continuation, many of them, or whole texts are to a model.

    Natural logarithms, of the model's own law at temperature 1. A table on a terminal, JSON elsewhere. A bad line fails
    alone.

    Examples:

        paceline score --model DIR "The capital of France is" " Paris"
        paceline score --model DIR --file pairs.jsonl > scores.jsonl
        paceline score --model DIR --text one.txt --text two.txt --stride 256
    """
    return (
        COMMANDS.find("score")(
            prompt=prompt,
            continuation=continuation,
            file=file,
            text=text or [],
            stride=stride,
            model=o.ModelOptions(
                model=model,
                dtype=dtype,
                device=device,
                threads=threads,
                revision=revision,
                trust_remote_code=trust_remote_code,
                backend=backend,
                enforce_eager=enforce_eager,
                quantization=quantization,
            ),
            batch_size=batch_size,
            json=json,
            quiet=quiet,
            log_level=log_level,
        )
    ).run()


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory or Hub id.")],
    draft: Annotated[str | None, typer.Option(help="Say whether this model can draft for it.")] = None,
    batch_size: Annotated[int, typer.Option(help="Memory for this many texts at once.")] = 8,
    context: Annotated[
        int | None, typer.Option(help="Memory for texts of this many tokens; the model's context, at most 2048.")
    ] = None,
    num_draft_tokens: Annotated[int | None, typer.Option(help="Tokens drafted per step; 5 by default.")] = None,
    dtype: o.Dtype = None,
    quantization: o.Quantization = None,
    draft_quantization: o.DraftQuantization = None,
    device: o.Device = None,
    backend: o.Backend = "auto",
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
) -> int:
    """Say what a model is, whose code runs it, what can draft for it, and the memory it needs.

    Reads the config, the tokenizer and the headers of the weights, so it takes no longer for a large model.

    Examples:

        paceline inspect DIR
        paceline inspect DIR --draft SMALL_DIR --batch-size 16 --context 4096
        paceline inspect DIR --json
    """
    return (
        COMMANDS.find("inspect")(
            model=model,
            draft=draft,
            batch_size=batch_size,
            context=context,
            num_draft_tokens=num_draft_tokens,
            dtype=dtype,
            quantization=quantization,
            draft_quantization=draft_quantization,
            device=device,
            backend=backend,
            revision=revision,
            trust_remote_code=trust_remote_code,
            json=json,
        )
    ).run()


def options(json: o.Json = False) -> int:
    """Say which sampling options there are, where each one works, and what is refused.

    Examples:

        paceline options
        paceline options --json
    """
    return (COMMANDS.find("options")(json=json)).run()


def roofline(
    model: Annotated[
        str | None, typer.Option(help="Directory or Hub id; without it only the machine is measured.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model; without it drafts are taken to cost nothing.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(help="Tokens drafted per step.")] = 5,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Share of the drafted tokens that is kept, or a list of shares, one for each position: 0.8,0.6,0.5. "
            "Without it every token is taken to be kept."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts at once.")] = 1,
    context: Annotated[int, typer.Option(help="Slots of the cache that every text reads, its capacity.")] = 512,
    dtype: o.Dtype = None,
    quantization: o.Quantization = None,
    draft_quantization: o.DraftQuantization = None,
    device: o.Device = None,
    threads: o.Threads = None,
    processor_time: Annotated[
        bool,
        typer.Option("--processor-time", help="Where other programs run: what one thread computes, not what passes."),
    ] = False,
    json: o.Json = False,
) -> int:
    """Measure how fast this machine can decode at best, plainly and with drafts.

    Times reading memory and multiplying matrices, which takes some seconds. From these and the sizes in a model's files
    follows the least time of a step: no code on these weights is faster than `limit`. What is `attainable` takes matrix
    products as fast as they were measured with so few rows. The speed-up is that of drafting at this speed, and it pays
    from that many tokens per step.

    Examples:

        paceline roofline
        paceline roofline --model DIR --draft SMALL_DIR --acceptance 0.6 --threads 1
        paceline roofline --model DIR --acceptance 0.5,0.3,0.2 --num-draft-tokens 3 --json
    """
    return (
        COMMANDS.find("roofline")(
            model=model,
            draft=draft,
            num_draft_tokens=num_draft_tokens,
            acceptance=acceptance,
            batch_size=batch_size,
            context=context,
            dtype=dtype,
            quantization=quantization,
            draft_quantization=draft_quantization,
            device=device,
            threads=threads,
            processor_time=processor_time,
            json=json,
        )
    ).run()
