"""The options that several commands share. A field's name, type, default and help make the option. Loads no torch."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.drafters import DRAFTERS
from paceline.verifiers import VERIFIERS

DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64", "auto")
BACKEND_NAMES = ("auto", "native", "hf")
QUANTIZATION_NAMES = ("int8", "int4")
LOG_LEVELS = ("debug", "info", "warning", "error")

MODEL, DRAFTING, SAMPLING, BIASES, FILTERS, STOPPING, OUTPUT = (
    Group(title, sort_key=number)
    for number, title in enumerate(
        ("Model", "Drafting", "Sampling", "Biases and penalties", "Further filters", "Stopping", "Output"), start=1
    )
)


def completing(words: Iterable[str]) -> Parameter:
    """Shell completion among ``words``, which are looked up when the shell asks."""
    return Parameter(completer=lambda _: list(words))


def one_of(words: tuple[str, ...]) -> Parameter:
    """A value that must be one of ``words``."""

    def check(_: object, value: str | None) -> None:
        if value is not None and value not in words:
            raise ValueError(f"{value}: known are {', '.join(words)}")

    return Parameter(completer=lambda _: words, validator=check)


def at_least(minimum: int) -> Parameter:
    """A number with a lower bound."""

    def check(_: object, value: int | None) -> None:
        if value is not None and value < minimum:
            raise ValueError(f"{value}: give at least {minimum}")

    return Parameter(validator=check)


# A positional argument: a word that begins with a hyphen is an option, known or not.
POSITIONAL = Parameter(allow_leading_hyphen=False)
AT_LEAST_1 = at_least(1)

Dtype = Annotated[
    str | None,
    Parameter(help=f"{', '.join(DTYPE_NAMES)}; as stored by default.", group=MODEL),
    one_of(DTYPE_NAMES),
]
Device = Annotated[
    str | None, Parameter(help="cpu, cuda, cuda:1 ...; CUDA by default where it is available.", group=MODEL)
]
Threads = Annotated[int | None, Parameter(help="CPU threads; PyTorch's choice by default.", group=MODEL), AT_LEAST_1]
Backend = Annotated[
    str,
    Parameter(
        help="Model code: native (Paceline's own), hf (transformers), or auto: native where the architecture is known.",
        group=MODEL,
    ),
    one_of(BACKEND_NAMES),
]
Quantization = Annotated[
    str | None,
    Parameter(help=f"Quantize the weights: {', '.join(QUANTIZATION_NAMES)}. Needs torchao.", group=MODEL),
    one_of(QUANTIZATION_NAMES),
]
Revision = Annotated[str | None, Parameter(help="Branch, tag or commit of a Hub id; main by default.", group=MODEL)]
TrustRemoteCode = Annotated[
    bool,
    Parameter(
        help="Run the checkpoint's own code: its tokenizer's, and its model's where there is no native decoder.",
        group=MODEL,
    ),
]
BatchSize = Annotated[
    int | None,
    Parameter(
        help="Sequences per batch; as many as fit, at most 16, by default. Does not change the output.", group=MODEL
    ),
    AT_LEAST_1,
]
DraftQuantization = Annotated[
    str | None,
    Parameter(help="As --quantization, for the draft model.", group=DRAFTING),
    one_of(QUANTIZATION_NAMES),
]
Verifier = Annotated[
    str,
    Parameter(
        help="How drafts are verified; coupled gives the same output as decoding without a drafter. Options follow "
        "the name: lossy_typical:epsilon=0.3,delta=0.09.",
        group=DRAFTING,
    ),
    completing(VERIFIERS),
]
PromptFile = Annotated[
    Path | None,
    Parameter(
        help='One prompt per line; in a .jsonl file {"prompt": ...}, {"tokens": ...} or {"messages": ...}, each with '
        'its own "params" if needed.'
    ),
]
Json = Annotated[bool, Parameter(help="JSON, one object per line.", group=OUTPUT)]
Overwrite = Annotated[bool, Parameter(help="Start over where the file exists.", group=OUTPUT)]
Quiet = Annotated[bool, Parameter(alias="-q", help="Print only results and errors.", group=OUTPUT)]
LogLevel = Annotated[
    str | None,
    Parameter(alias="-v", help=f"{', '.join(LOG_LEVELS)}; warning by default.", group=OUTPUT),
    one_of(LOG_LEVELS),
]


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model is loaded, and how."""

    model: Annotated[str, POSITIONAL]
    """Directory (config.json, safetensors, tokenizer.json) or Hub id (owner/name)."""
    _: KW_ONLY
    dtype: Dtype = None
    device: Device = None
    threads: Threads = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    backend: Backend = "auto"
    enforce_eager: bool = False
    """Use plain PyTorch operations only, for debugging."""
    exact: bool = False
    """Refuse a model whose drafted output is not bitwise equal to plain decoding."""
    quantization: Quantization = None


@Parameter(name="*", group=DRAFTING)
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What drafts, and how drafts are verified."""

    draft: str | None = None
    """Draft model with the same vocabulary (directory or Hub id), or the directory of a draft head."""
    drafter: Annotated[str | None, completing(DRAFTERS)] = None
    """Drafter by name, such as ngram, which needs no model, or with options: ngram:max_ngram=4; the directory of a
    draft head; or vLLM's speculative_config as JSON."""
    num_draft_tokens: int | None = None
    """Tokens drafted per step; 5 by default."""
    draft_quantization: DraftQuantization = None
    verifier: Verifier = "coupled"


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Where results go, and what is printed beside them."""

    json: Json = False
    stats: bool = False
    """Print a table of drafting statistics on standard error."""
    output: Path | None = None
    """Write to this file; - is standard output."""
    overwrite: Overwrite = False
    quiet: Quiet = False
    log_level: LogLevel = None
