"""The options of ``paceline data`` and their help. The commands' code, and torch with it, loads only when they run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.core.registry import Registry

COMMANDS = Registry(
    "command",
    {
        "corpus": "paceline.cli.data_inputs:CorpusOptions",
        "prepare": "paceline.cli.data:PrepareData",
        "regenerate": "paceline.cli.data_regenerate:RegenerateData",
        "features": "paceline.cli.data_features:ComputeFeatures",
    },
)
TEXTS = "Texts"

Config = Annotated[
    Path | None,
    typer.Argument(help="YAML: a training run, or its section data alone.", metavar="CONFIG.yaml"),
]
Text = Annotated[
    list[str] | None,
    typer.Option(help="Plain text: a file, folder or glob; may be repeated.", rich_help_panel=TEXTS),
]
Jsonl = Annotated[
    list[str] | None, typer.Option(help='Lines of {"text": ...}; may be repeated.', rich_help_panel=TEXTS)
]
Chats = Annotated[
    list[str] | None,
    typer.Option("--chat", help='Lines of {"messages": ...}; may be repeated.', rich_help_panel=TEXTS),
]
TokenFiles = Annotated[
    list[str] | None,
    typer.Option("--tokens", help="Token ids, .npy or .bin of 16 bits; may be repeated.", rich_help_panel=TEXTS),
]
Library = Annotated[bool, typer.Option("--library", help="Python's standard library.", rich_help_panel=TEXTS)]
Bytes = Annotated[bool, typer.Option("--bytes", help="A byte is a token; no tokenizer.", rich_help_panel=TEXTS)]
Share = Annotated[
    float,
    typer.Option(
        help="Of the files given by options: held out. A configuration says it itself.", rich_help_panel=TEXTS
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(help="Where tokens are kept; paceline/data in the user's cache by default.", rich_help_panel=TEXTS),
]
Length = Annotated[int | None, typer.Option(help="Tokens of a row; as the configuration says, or 512.")]
TargetModel = Annotated[
    str | None,
    typer.Option(
        "--model", help="The target: directory or Hub id; as the configuration says.", rich_help_panel=o.MODEL
    ),
]
Folder = Annotated[Path, typer.Option("--output", help="Folder for the hidden states.", rich_help_panel=o.OUTPUT)]

data = typer.Typer(no_args_is_help=True)


@data.callback()
def group() -> None:
    """Prepare what is trained on: tokens, the target's own texts, its hidden states."""


def _corpus(
    config: Path | None,
    text: list[str] | None,
    jsonl: list[str] | None,
    chat: list[str] | None,
    tokens: list[str] | None,
    library: bool,
    bytes_: bool,
    validation_share: float,
    cache: Path | None,
) -> Any:
    return COMMANDS.find("corpus")(
        config=config,
        text=text or [],
        jsonl=jsonl or [],
        chat=chat or [],
        tokens=tokens or [],
        library=library,
        bytes=bytes_,
        validation_share=validation_share,
        cache=cache,
    )


@data.command()
def prepare(
    config: Config = None,
    text: Text = None,
    jsonl: Jsonl = None,
    chat: Chats = None,
    tokens: TokenFiles = None,
    library: Library = False,
    bytes_: Bytes = False,
    validation_share: Share = 0.0,
    cache: Cache = None,
    model: TargetModel = None,
    length: Length = None,
    manifest: Annotated[
        Path | None, typer.Option(help="Write name, hash and counts of every file there.", rich_help_panel=o.OUTPUT)
    ] = None,
    json: o.Json = False,
) -> int:
    """Tokenise a corpus, pack it into rows and say what there is, before anything is trained.

    A training run does the same by itself; what was tokenised once is not tokenised again. Whatever is wrong with a
    corpus is said here, with file and line.

    Examples:

        paceline data prepare run.yaml
        paceline data prepare --text 'corpus/**/*.txt' --model DIR --length 1024
        paceline data prepare --library --bytes --json
    """
    return (
        COMMANDS.find("prepare")(
            corpus=_corpus(config, text, jsonl, chat, tokens, library, bytes_, validation_share, cache),
            model=model,
            length=length,
            manifest=manifest,
            json=json,
        )
    ).run()


@data.command()
def regenerate(
    model: o.Model,
    output: Annotated[
        Path, typer.Option(help="FILE.jsonl: a text a line; FILE.npy: an array of ids.", rich_help_panel=o.OUTPUT)
    ],
    config: Config = None,
    text: Text = None,
    jsonl: Jsonl = None,
    chat: Chats = None,
    tokens: TokenFiles = None,
    library: Library = False,
    bytes_: Bytes = False,
    validation_share: Share = 0.0,
    cache: Cache = None,
    num_prompts: Annotated[int, typer.Option(help="How many prompts are cut from the texts.")] = 1024,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each of them.")] = 48,
    prompt_file: o.PromptFile = None,
    as_chat: Annotated[bool, typer.Option("--as-chat", help="A line of the prompt file is a user's message.")] = False,
    system: Annotated[str | None, typer.Option(help="With --as-chat: the system's message.")] = None,
    max_tokens: o.MaxTokens = 208,
    temperature: Annotated[
        str, typer.Option(help="Temperatures, in turn from prompt to prompt.", rich_help_panel=o.SAMPLING)
    ] = "0,0.4,0.7,1",
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: Annotated[int, typer.Option(help="Of every choice.", rich_help_panel=o.SAMPLING)] = 0,
    ignore_eos: o.IgnoreEos = False,
    draft: o.Draft = None,
    drafter: o.Drafter = None,
    num_draft_tokens: o.NumDraftTokens = None,
    batch_size: o.BatchSize = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    overwrite: o.Overwrite = False,
    quiet: o.Quiet = False,
    log_level: o.LogLevel = None,
) -> int:
    """Let the target write texts of its own, on which a drafter is then trained.

    A drafter is good if it knows the target's words, which are not those of the corpus. Prompts are a file's lines, as
    in `paceline generate`, or the beginnings of texts. Texts that loop are left out and counted. After an interruption
    of any kind, the same command goes on where it was.

    Examples:

        paceline data regenerate --model DIR --text 'corpus/*.txt' --output own.jsonl
        paceline data regenerate --model DIR --prompt-file questions.txt --as-chat --output own.jsonl
        paceline data regenerate --model DIR run.yaml --num-prompts 4096 --draft SMALL_DIR --output own.npy
    """
    return (
        COMMANDS.find("regenerate")(
            corpus=_corpus(config, text, jsonl, chat, tokens, library, bytes_, validation_share, cache),
            num_prompts=num_prompts,
            prompt_tokens=prompt_tokens,
            prompt_file=prompt_file,
            chat=as_chat,
            system=system,
            temperatures=temperature,
            params={
                "max_tokens": max_tokens,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "seed": seed,
                "ignore_eos": ignore_eos,
            },
            model=o.ModelOptions(
                model=model, dtype=dtype, device=device, threads=threads, revision=None, trust_remote_code=False
            ),
            drafting=o.DraftOptions(
                draft=draft, drafter=drafter, num_draft_tokens=num_draft_tokens, verifier="coupled"
            ),
            batch_size=batch_size,
            output=o.OutputOptions(
                json=False, stats=False, output=output, overwrite=overwrite, quiet=quiet, log_level=log_level
            ),
        )
    ).run()


@data.command()
def features(
    model: o.Model,
    output: Folder,
    taps: Annotated[str, typer.Option(help="After how many layers, such as 2,16,29; the last layer is always added.")],
    config: Config = None,
    text: Text = None,
    jsonl: Jsonl = None,
    chat: Chats = None,
    tokens: TokenFiles = None,
    library: Library = False,
    bytes_: Bytes = False,
    validation_share: Share = 0.0,
    cache: Cache = None,
    split: Annotated[str, typer.Option(help="train or validation: which documents.")] = "train",
    length: Length = None,
    batch_size: Annotated[int, typer.Option(help="Texts at once.")] = 8,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    quiet: o.Quiet = False,
) -> int:
    """Compute hidden states of the target once, for many trainings, in the layout of vllm-project/speculators.

    One file a text, in bfloat16: a text of 1,000 tokens takes 2 MB for each 1,000 of hidden size and layer. After an
    interruption, the same command goes on where it was. With the package `datasets`, speculators' own trainer reads
    the folder.

    Examples:

        paceline data features --model DIR --jsonl own.jsonl --taps 2,8,13 --output hidden
        paceline data features --model DIR run.yaml --split validation --taps 8 --output hidden_validation
    """
    return (
        COMMANDS.find("features")(
            corpus=_corpus(config, text, jsonl, chat, tokens, library, bytes_, validation_share, cache),
            model=o.ModelOptions(
                model=model, dtype=dtype, device=device, threads=threads, revision=None, trust_remote_code=False
            ),
            taps=taps,
            split=split,
            length=length,
            batch_size=batch_size,
            output=output,
            quiet=quiet,
        )
    ).run()
