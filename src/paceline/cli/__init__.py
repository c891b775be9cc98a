"""The command line: options, help and exit codes. A command's code, and torch with it, loads only when it runs."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline import __version__
from paceline.core.registry import Registry

EXIT_OK, EXIT_DIFFERENT, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

COMMANDS = Registry(
    "command",
    {
        "demo": "paceline.cli.demo:Demo",
        "generate": "paceline.cli.generate:Generate",
    },
)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the demo found a difference, 2 bad input, 130 interrupted (what was generated is "
    "printed).",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit()


@app.callback()
def paceline(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The same text from your language model, sooner.

    A cheap drafter proposes several tokens and the model checks them all in one go. What it would not have written
    itself is thrown away, so the text never changes.

    Start here:

        paceline demo
        paceline generate --model DIR --draft DRAFT_DIR "def quicksort(items):"
    """


@app.command()
def demo(
    target: Annotated[Path | None, typer.Option(help="Target model directory instead of the embedded one.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Draft model directory instead of the embedded one.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(help="Tokens drafted per step.")] = 5,
    max_tokens: Annotated[int, typer.Option(help="Tokens generated per prompt.")] = 96,
    threads: Annotated[int, typer.Option(help="Threads; the embedded models are too small for more than one.")] = 1,
) -> int:
    """Watch a target model write the same text sooner, in less than a minute.

    Decodes several Python prompts twice, plainly and with a draft model, in two separate runs. The second is shown as
    it comes, every token coloured by who chose it; then both are compared, token for token, and timed.

    Exits with 1 if any token differs. Without colour, marks under the text say who chose what.

    Examples:

        paceline demo
        paceline demo --target MODEL_DIR --draft DRAFT_DIR
        NO_COLOR=1 paceline demo
    """
    return (
        COMMANDS.find("demo")(
            target=target, draft=draft, num_draft_tokens=num_draft_tokens, max_tokens=max_tokens, threads=threads
        )
    ).run()


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.")],
    model: Annotated[Path, typer.Option(help="Model directory (config.json, safetensors, tokenizer.json).")],
    draft: Annotated[Path | None, typer.Option(help="Draft model directory, of the same tokenizer.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Drafter by name, such as ngram, which needs no model.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(help="Tokens drafted per step.")] = 5,
    verifier: Annotated[
        str, typer.Option(help="How drafts are checked; coupled gives the text that no drafter at all would give.")
    ] = "coupled",
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest that reach this mass; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest; 0 is off.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 128,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or float64; that of the files by default.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text, tokens, sources, stats.")] = False,
) -> int:
    """Continue a text, with a drafter or without; the text is the same either way.

    On a terminal the tokens are coloured by who chose them and a summary follows. Elsewhere only the text is printed.

    Examples:

        paceline generate --model DIR "def add(a, b):"
        paceline generate --model DIR --draft SMALL_DIR "import os"
        paceline generate --model DIR --drafter ngram --temperature 0.8 --seed 7 "x"
        paceline generate --model DIR --json - < prompt.txt
    """
    return (
        COMMANDS.find("generate")(
            prompt=prompt,
            model=model,
            draft=draft,
            drafter=drafter,
            num_draft_tokens=num_draft_tokens,
            verifier=verifier,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            max_tokens=max_tokens,
            dtype=dtype,
            json=json,
        )
    ).run()


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. Whatever users can mend is one line on standard error."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="paceline", standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(error.format_message())
    except (ValueError, OSError) as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code or EXIT_OK


def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # generated text may hold what the terminal cannot show
    sys.exit(run(sys.argv[1:]))


def _refuse(message: str) -> int:
    print(f"paceline: {' '.join(message.split())}", file=sys.stderr)
    return EXIT_BAD_INPUT
