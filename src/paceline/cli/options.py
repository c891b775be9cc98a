"""The options that several commands share. A field's name, type, default and help make the option. Loads no torch."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Group, Parameter

from paceline.hardware.processor import check_threads
from paceline.models.directory import ModelError, check_path, is_head
from paceline.verifiers import VERIFIERS

if TYPE_CHECKING:
    from paceline.api import Loaded

DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64", "auto")
BACKEND_NAMES = ("auto", "native", "hf")
QUANTIZATION_NAMES = ("int8", "int4")
NUM_DRAFT_TOKENS = 5  # where drafting cannot be turned off
DraftLength: TypeAlias = int | Literal["auto"]
COLORS = ("always", "never", "auto")
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


def check_model(_: object, value: str | Path | None) -> None:
    """Raise ValueError for a path or Hub id that cannot be of a model."""
    if value is not None:
        try:
            check_path(value)
        except ModelError as error:
            raise ValueError(f"cannot be loaded: {error}") from error


def _check_model_or_head(_: object, value: str | Path | None) -> None:
    if value is not None and not is_head(value):
        check_model(_, value)


def _check_threads(_: object, value: int | None) -> None:
    if value is not None:
        check_threads(value, str(value))


# A directory or a Hub id: a mistyped path is refused before torch is loaded.
MODEL_PATH = Parameter(validator=check_model)
MODEL_OR_HEAD_PATH = Parameter(validator=_check_model_or_head)
# A positional argument: a word that begins with a hyphen is an option, known or not.
POSITIONAL = Parameter(allow_leading_hyphen=False)
AT_LEAST_1 = at_least(1)
WITHIN_CORES = Parameter(validator=_check_threads)

Dtype = Annotated[
    str | None,
    Parameter(help=f"{', '.join(DTYPE_NAMES)}; as stored by default.", group=MODEL),
    one_of(DTYPE_NAMES),
]
Device = Annotated[
    str | None, Parameter(help="cpu, cuda, cuda:1 ...; CUDA by default where it is available.", group=MODEL)
]
Threads = Annotated[int | None, Parameter(help="CPU threads; PyTorch's choice by default.", group=MODEL), WITHIN_CORES]
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
Pickles = Annotated[
    bool,
    Parameter(
        help="Read a draft head's pickled weights (*.bin, *.pt) too, by torch's weights-only loader.", group=MODEL
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
Profile = Annotated[
    Path | None,
    Parameter(
        help="What draft lengths are chosen by at first: a file that paceline advise wrote; by default the one in the "
        "cache, if any.",
        group=DRAFTING,
    ),
]
Json = Annotated[bool, Parameter(help="JSON, one object per line.", group=OUTPUT)]
Overwrite = Annotated[bool, Parameter(help="Start over where the file exists.", group=OUTPUT)]
Color = Annotated[
    str, Parameter(help=f"{', '.join(COLORS)}: on a terminal, unless NO_COLOR is set.", group=OUTPUT), one_of(COLORS)
]
ShowRejected = Annotated[
    bool,
    Parameter(
        help="Show the draft tokens that were rejected too: struck through on a terminal, as [-text-] elsewhere.",
        group=OUTPUT,
    ),
]
Quiet = Annotated[bool, Parameter(alias="-q", help="Print only results and errors.", group=OUTPUT)]
LogLevel = Annotated[
    str | None,
    Parameter(alias="-v", help=f"{', '.join(LOG_LEVELS)}; warning by default.", group=OUTPUT),
    one_of(LOG_LEVELS),
]


def check_profile(profile: Path | None) -> None:
    """Raise ValueError for a file that is missing."""
    if profile is not None and not profile.is_file():
        raise ValueError(f"--profile {profile}: no such file; paceline advise writes profiles")


def check_draft_quantization(scheme: str | None, *, draft: str | None) -> None:
    """Raise ValueError for a scheme without a draft model."""
    if scheme is not None and draft is None:
        raise ValueError(f"--draft-quantization {scheme}: it needs a draft model, give --draft DIR")


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model is loaded, and how."""

    model: Annotated[str, POSITIONAL, MODEL_PATH]
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

    def load(self) -> "Loaded":
        """The model. Raises what ``paceline.load`` raises."""
        from paceline.api import load

        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return load(options.pop("model"), **options)


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Where results go, and what is printed beside them."""

    json: Json = False
    stats: bool = False
    """Print a table of drafting statistics on standard error."""
    explain: bool = False
    """Print on standard error how much was drafted when, and what steps cost by their draft length."""
    output: Path | None = None
    """Write to this file; - is standard output."""
    overwrite: Overwrite = False
    color: Color = "auto"
    show_rejected: ShowRejected = False
    quiet: Quiet = False
    log_level: LogLevel = None
