"""The command line: options, help and exit codes. A command's code, and torch with it, loads only when it runs."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline import __version__
from paceline.cli import audit_options
from paceline.cli import options as o
from paceline.cli import read_only_commands as looking
from paceline.cli import sampling_options as law
from paceline.cli.bench_options import bench
from paceline.cli.commands import COMMANDS as COMMANDS
from paceline.cli.commands import EXIT_BAD_INPUT as EXIT_BAD_INPUT
from paceline.cli.commands import EXIT_CODES as EXIT_CODES
from paceline.cli.commands import EXIT_DIFFERENT as EXIT_DIFFERENT
from paceline.cli.commands import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from paceline.cli.commands import EXIT_OK as EXIT_OK
from paceline.cli.data_options import data
from paceline.cli.structure import structure
from paceline.cli.train_options import train
from paceline.cli.tree_options import tree

app = typer.Typer(
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
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
        paceline inspect DIR
    """


@app.command(epilog=EXIT_CODES)
def demo(
    target: Annotated[Path | None, typer.Option(help="Target model directory instead of the embedded one.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Draft model directory instead of the embedded one.")] = None,
    head: Annotated[
        list[Path] | None,
        typer.Option(help="Head of the target, to be timed too; may be repeated.", show_default=False),
    ] = None,
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
            target=target,
            draft=draft,
            heads=head or (),
            num_draft_tokens=num_draft_tokens,
            max_tokens=max_tokens,
            threads=threads,
        )
    ).run()


@app.command(epilog=EXIT_CODES)
def generate(
    model: o.Model,
    prompt: o.Prompt = None,
    prompt_file: o.PromptFile = None,
    chat: o.Chat = False,
    system: o.System = None,
    draft: o.Draft = None,
    drafter: o.Drafter = None,
    num_draft_tokens: o.NumDraftTokens = None,
    draft_quantization: o.DraftQuantization = None,
    verifier: o.Verifier = "coupled",
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = 0,
    n: o.Samples = 1,
    typical_p: law.TypicalP = 1.0,
    epsilon_cutoff: law.EpsilonCutoff = 0.0,
    eta_cutoff: law.EtaCutoff = 0.0,
    filter_order: law.FilterOrder = "transformers",
    logit_bias: law.LogitBias = None,
    sequence_bias: law.SequenceBias = None,
    allowed_token_id: law.AllowedTokenId = None,
    suppress_token_id: law.SuppressTokenId = None,
    begin_suppress_token_id: law.BeginSuppressTokenId = None,
    bad_word: law.BadWord = None,
    bad_word_ids: law.BadWordIds = None,
    repetition_penalty: law.RepetitionPenalty = 1.0,
    presence_penalty: law.PresencePenalty = 0.0,
    frequency_penalty: law.FrequencyPenalty = 0.0,
    no_repeat_ngram_size: law.NoRepeatNgramSize = 0,
    guidance_scale: law.GuidanceScale = 1.0,
    negative_prompt: law.NegativePrompt = None,
    json_schema: o.JsonSchema = None,
    regex: o.Regex = None,
    grammar: o.Grammar = None,
    choice: o.Choice = None,
    max_tokens: o.MaxTokens = 128,
    min_tokens: o.MinTokens = 0,
    stop: o.Stop = None,
    stop_token_id: o.StopTokenId = None,
    ignore_eos: o.IgnoreEos = False,
    include_stop: o.IncludeStop = False,
    batch_size: o.BatchSize = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    backend: o.Backend = "auto",
    quantization: o.Quantization = None,
    enforce_eager: o.EnforceEager = False,
    exact: o.Exact = False,
    threads: o.Threads = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    skip_special: o.SkipSpecial = True,
    logprobs: o.Logprobs = None,
    json: o.Json = False,
    stats: o.Stats = False,
    output: o.Output = None,
    overwrite: o.Overwrite = False,
    quiet: o.Quiet = False,
    log_level: o.LogLevel = None,
) -> int:
    """Continue a text or a file of them, with a drafter or without; the text is the same either way.

    On a terminal the tokens are coloured by who chose them and a summary follows. Elsewhere only the text is printed.

    With --prompt-file each prompt gives one JSON line of --output, in their order. A bad prompt fails alone. After
    an interruption of any kind, the same command goes on where it was.

    Examples:

        paceline generate --model DIR "def add(a, b):"
        paceline generate --model DIR --draft SMALL_DIR --stats "import os"
        paceline generate --model DIR --drafter ngram --temperature 0.8 --seed 7 -n 3 "x"
        paceline generate --model DIR --repetition-penalty 1.1 --logit-bias 42=-inf "x"
        paceline generate --model DIR --json-schema schema.json "A person:"
        paceline generate --model DIR --chat --system "Be brief." "Who wrote Faust?"
        paceline generate --model DIR --json < prompt.txt
        paceline generate --model DIR --prompt-file prompts.jsonl --output texts.jsonl
    """
    return (
        COMMANDS.find("generate")(
            prompt=prompt,
            prompt_file=prompt_file,
            chat=chat,
            system=system,
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
                exact=exact,
            ),
            drafting=o.DraftOptions(
                draft=draft,
                drafter=drafter,
                num_draft_tokens=num_draft_tokens,
                verifier=verifier,
                draft_quantization=draft_quantization,
            ),
            params={
                "n": n,
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "typical_p": typical_p,
                "epsilon_cutoff": epsilon_cutoff,
                "eta_cutoff": eta_cutoff,
                "filter_order": filter_order,
                "logit_bias": law.read_biases("--logit-bias", logit_bias),
                "sequence_bias": law.read_list_biases("--sequence-bias", sequence_bias),
                "allowed_token_ids": allowed_token_id,
                "suppress_tokens": suppress_token_id,
                "begin_suppress_tokens": begin_suppress_token_id,
                "bad_words": bad_word,
                "bad_words_ids": law.read_lists("--bad-word-ids", bad_word_ids),
                "repetition_penalty": repetition_penalty,
                "presence_penalty": presence_penalty,
                "frequency_penalty": frequency_penalty,
                "no_repeat_ngram_size": no_repeat_ngram_size,
                "guidance_scale": guidance_scale,
                "negative_prompt": negative_prompt,
                "seed": seed,
                "max_tokens": max_tokens,
                "min_tokens": min_tokens,
                "stop": stop,
                "stop_token_ids": stop_token_id,
                "ignore_eos": ignore_eos,
                "include_stop_str_in_output": include_stop,
                "skip_special_tokens": skip_special,
                "logprobs": logprobs,
                "structured_outputs": structure(json=json_schema, regex=regex, grammar=grammar, choice=choice),
            },
            batch_size=batch_size,
            output=o.OutputOptions(
                json=json, stats=stats, output=output, overwrite=overwrite, quiet=quiet, log_level=log_level
            ),
        )
    ).run()


app.command(epilog=EXIT_CODES)(looking.score)
app.command(epilog=EXIT_CODES)(looking.inspect)
app.command(epilog=EXIT_CODES)(looking.options)
app.command(epilog=EXIT_CODES)(looking.roofline)
app.command(epilog=EXIT_CODES)(audit_options.audit)
app.command(epilog=EXIT_CODES)(tree)
app.command(epilog=EXIT_CODES)(train)


app.add_typer(bench, name="bench", epilog=EXIT_CODES)
app.add_typer(data, name="data", epilog=EXIT_CODES)


def run(arguments: Sequence[str], *, app: typer.Typer = app, name: str = "paceline") -> int:
    """Run the command line, or another ``app``; the exit code. Errors that users can mend are one line on stderr."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name=name, standalone_mode=False)
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
