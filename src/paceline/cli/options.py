"""The options that commands share, each with its help, and the values that they make up. Loads no torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from paceline.drafters import DRAFTERS
from paceline.verifiers import VERIFIERS

DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64")
BACKEND_NAMES = ("auto", "native", "hf")
QUANTIZATION_NAMES = ("int8", "int4")
LOG_LEVELS = ("debug", "info", "warning", "error")
MODEL, DRAFTING, SAMPLING, ENDING, OUTPUT = "Model", "Drafting", "Sampling", "Where texts end", "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model is loaded, and how."""

    model: str  # a directory or Hub id
    dtype: str | None
    device: str | None
    threads: int | None
    revision: str | None
    trust_remote_code: bool
    backend: str = "auto"
    enforce_eager: bool = False
    exact: bool = False
    quantization: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What drafts for it, and what checks the drafts."""

    draft: str | None
    drafter: str | None
    num_draft_tokens: int | None  # None: not given
    verifier: str
    draft_quantization: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Where results go, and what is said beside them."""

    json: bool
    stats: bool
    output: Path | None
    overwrite: bool
    quiet: bool
    log_level: str | None  # None: not given


def _completing(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Shell completion among ``words``, which are looked up when the shell asks."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Option(
        help="Directory (config.json, safetensors, tokenizer.json) or Hub id (owner/name).", rich_help_panel=MODEL
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(DTYPE_NAMES)}; that of the files by default.",
        autocompletion=_completing(DTYPE_NAMES),
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...; CUDA where there is any by default.", rich_help_panel=MODEL)
]
Backend = Annotated[
    str,
    typer.Option(
        help="Who runs it: native (Paceline's own code), hf (transformers), or auto: native where the architecture is "
        "known.",
        autocompletion=_completing(BACKEND_NAMES),
        rich_help_panel=MODEL,
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help=f"Keep its matrices as integers: {', '.join(QUANTIZATION_NAMES)}. Needs torchao.",
        autocompletion=_completing(QUANTIZATION_NAMES),
        rich_help_panel=MODEL,
    ),
]
EnforceEager = Annotated[
    bool,
    typer.Option(
        "--enforce-eager",
        help="Decode by plain torch operations where there is a faster way to the same numbers; for debugging.",
        rich_help_panel=MODEL,
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Refuse a model that does not give the tokens of plain decoding bit for bit, drafted or not.",
        rich_help_panel=MODEL,
    ),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads; torch's own choice by default.", rich_help_panel=MODEL)]
Revision = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit of a Hub id; main by default.", rich_help_panel=MODEL),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let a checkpoint's own code run: its tokenizer's, and its model's where it has no native decoder.",
        rich_help_panel=MODEL,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Texts at once; as many as fit, at most 16, by default. Changes no text.", rich_help_panel=MODEL),
]

Prompt = Annotated[str | None, typer.Argument(help="Text to continue; - or nothing reads all of standard input.")]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        help='One prompt per line; in a .jsonl file {"prompt": ...}, {"tokens": ...}, {"messages": ...}, '
        'each with "params" of its own if wanted.'
    ),
]
Chat = Annotated[bool, typer.Option("--chat", help="The prompt is a user's message, or a JSON list of messages.")]
System = Annotated[str | None, typer.Option(help="With --chat: the system's message.")]

Draft = Annotated[
    str | None,
    typer.Option(
        help="Draft model of the same vocabulary, directory or Hub id; or the directory of a head of the model.",
        rich_help_panel=DRAFTING,
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="Drafter by name, such as ngram, which needs no model, or with options, ngram:max_ngram=4; a "
        "head's directory; or vLLM's speculative_config as JSON.",
        autocompletion=_completing(DRAFTERS),
        rich_help_panel=DRAFTING,
    ),
]
DraftQuantization = Annotated[
    str | None,
    typer.Option(
        help="As --quantization, for the draft model.",
        autocompletion=_completing(QUANTIZATION_NAMES),
        rich_help_panel=DRAFTING,
    ),
]
NumDraftTokens = Annotated[
    int | None, typer.Option(help="Tokens drafted per step; 5 by default.", rich_help_panel=DRAFTING)
]
Verifier = Annotated[
    str,
    typer.Option(
        help="How drafts are checked; coupled gives the text that no drafter at all would give. Options follow the "
        "name: lossy_typical:epsilon=0.3,delta=0.09.",
        autocompletion=_completing(VERIFIERS),
        rich_help_panel=DRAFTING,
    ),
]

Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token.", rich_help_panel=SAMPLING)]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is off.", rich_help_panel=SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Sample among the likeliest that reach this mass; 1 is off.", rich_help_panel=SAMPLING)
]
MinP = Annotated[
    float, typer.Option(help="Drop tokens below this share of the likeliest; 0 is off.", rich_help_panel=SAMPLING)
]
Seed = Annotated[
    int, typer.Option(help="The same seed gives the same text; -1 takes a fresh one.", rich_help_panel=SAMPLING)
]
Samples = Annotated[
    int, typer.Option("--n", "-n", help="Texts per prompt; equal ones at temperature 0.", rich_help_panel=SAMPLING)
]

JsonSchema = Annotated[
    Path | None, typer.Option(help="File of a JSON schema that the text must follow.", rich_help_panel=SAMPLING)
]
Regex = Annotated[
    str | None, typer.Option(help="Regular expression that the whole text must match.", rich_help_panel=SAMPLING)
]
Grammar = Annotated[
    Path | None,
    typer.Option(help="File of a grammar, Lark's or llama.cpp's, that the text must follow.", rich_help_panel=SAMPLING),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(help="The text is this or another choice; may be repeated.", rich_help_panel=SAMPLING),
]

MaxTokens = Annotated[int, typer.Option(help="At most this many tokens.", rich_help_panel=ENDING)]
MinTokens = Annotated[int, typer.Option(help="No end-of-text or stop token before this many.", rich_help_panel=ENDING)]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.", rich_help_panel=ENDING)]
StopTokenId = Annotated[
    list[int] | None, typer.Option(help="End at this token; may be repeated.", rich_help_panel=ENDING)
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on past the model's own end-of-text tokens.", rich_help_panel=ENDING),
]
IncludeStop = Annotated[
    bool, typer.Option("--include-stop", help="Leave the stop text in the text.", rich_help_panel=ENDING)
]

SkipSpecial = Annotated[
    bool,
    typer.Option(
        "--skip-special/--keep-special", help="Special tokens out of the text, or in it.", rich_help_panel=OUTPUT
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        help="With --json or --prompt-file: log-probabilities of every token and of this many of the likeliest.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object per line.", rich_help_panel=OUTPUT)]
Stats = Annotated[
    bool, typer.Option("--stats", help="A table of what drafting did, on standard error.", rich_help_panel=OUTPUT)
]
Output = Annotated[
    Path | None,
    typer.Option(help="Write to this file; - is standard output.", show_default=False, rich_help_panel=OUTPUT),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew where the file exists.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but results and errors.", rich_help_panel=OUTPUT)]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        "-v",
        help=f"{', '.join(LOG_LEVELS)}; warning by default.",
        autocompletion=_completing(LOG_LEVELS),
        rich_help_panel=OUTPUT,
    ),
]
