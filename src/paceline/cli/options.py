"""The options that several commands share. A field's name, type, default and help make the option. Loads no torch."""

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Group, Parameter

from paceline.drafters import DRAFTERS
from paceline.models.directory import ModelError, check_path
from paceline.verifiers import VERIFIERS

if TYPE_CHECKING:
    from paceline.api import Loaded
    from paceline.api.build import DrafterLike

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


def _check_model(_: object, value: str | Path | None) -> None:
    if value is not None:
        try:
            check_path(value)
        except ModelError as error:
            raise ValueError(f"cannot be loaded: {error}") from error


# The directory of a model or a draft head, or a Hub id: a mistyped path is refused before torch is loaded.
MODEL_PATH = Parameter(validator=_check_model)
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
Quiet = Annotated[bool, Parameter(alias="-q", help="Print only results and errors.", group=OUTPUT)]
LogLevel = Annotated[
    str | None,
    Parameter(alias="-v", help=f"{', '.join(LOG_LEVELS)}; warning by default.", group=OUTPUT),
    one_of(LOG_LEVELS),
]


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


@Parameter(name="*", group=DRAFTING)
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What drafts, and how drafts are verified."""

    draft: Annotated[str | None, MODEL_PATH] = None
    """Draft model with the same vocabulary (directory or Hub id), or the directory of a draft head."""
    drafter: Annotated[str | None, completing(DRAFTERS)] = None
    """Drafter by name, such as ngram, which needs no model, or with options: ngram:max_ngram=4; FILE.py:NAME, one of
    your own; the directory of a draft head; or vLLM's speculative_config as JSON. Beside --draft: another candidate,
    chosen where it pays more."""
    num_draft_tokens: DraftLength | None = None
    """Tokens drafted per step; by default auto: as many as pay, at most 8, and none where drafting would be slower."""
    draft_quantization: DraftQuantization = None
    verifier: Verifier = "coupled"

    def check(self) -> None:
        """Raise ValueError for options that contradict each other, before any model is loaded."""
        from paceline.api import build_verifier
        from paceline.api.build import check_drafter
        from paceline.api.draft_heads import is_head
        from paceline.api.named import name_of
        from paceline.api.speculative_config import is_speculative_config, read_speculative_config

        given = self.drafter
        build_verifier(self.verifier)
        check_draft_quantization(self.draft_quantization, draft=self.draft)
        if self.draft is not None and self.draft_quantization is not None and is_head(self.draft):
            raise ValueError(
                f"--draft-quantization {self.draft_quantization}: {self.draft} is a draft head, which takes "
                "the target's precision; leave it out"
            )
        if self.several and self.num_draft_tokens not in (None, "auto"):
            raise ValueError(
                f"--num-draft-tokens {self.num_draft_tokens} with --drafter {given} and --draft {self.draft}: give one "
                "of the two drafters, or leave it out, so that one of them is chosen for every step"
            )
        if given is not None and name_of(given) == "model":
            if self.draft is None:
                raise ValueError(f"--drafter {given}: it needs a draft model, give --draft DIR")
            return
        if given is not None and is_speculative_config(given):
            if read_speculative_config(given).num_draft_tokens is not None and self.num_draft_tokens is not None:
                raise ValueError(
                    f"--num-draft-tokens {self.num_draft_tokens} and num_speculative_tokens in --drafter: give one of "
                    "them"
                )
            return
        if given is None or (name_of(given) not in DRAFTERS and is_head(given)):
            return
        if not check_drafter(given):
            raise ValueError(
                f"unknown drafter {given!r}; known: {', '.join(DRAFTERS)}, FILE.py:NAME for one of your own, the "
                "directory of a draft head, or vLLM's speculative_config as JSON; a draft model is given by --draft"
            )

    @property
    def several(self) -> bool:
        """Whether two drafters are given, of which one drafts in each step."""
        return self.draft is not None and self.drafter not in (None, "model")

    def choose(self, target: "Loaded") -> "DrafterLike":
        """The drafter, or both, loaded where it is a model; a draft head stays a path."""
        from paceline.api import load
        from paceline.api.draft_heads import is_head

        if self.draft is None:
            return self.drafter
        draft: Loaded | str = self.draft
        if not is_head(self.draft):
            draft = load(draft, dtype=target.dtype, device=target.lm.device, quantization=self.draft_quantization)
        return [self.drafter, draft] if self.several and self.drafter is not None else draft

    @property
    def count(self) -> DraftLength:
        """How many tokens to draft per step, unless the drafter's own configuration says so."""
        return "auto" if self.num_draft_tokens is None else self.num_draft_tokens


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
    show_rejected: bool = False
    """Show the draft tokens that were rejected too: struck through on a terminal, as [-text-] elsewhere."""
    quiet: Quiet = False
    log_level: LogLevel = None


def as_options(message: str) -> str:
    """A message of the library in the words of the command line: --num-draft-tokens for num_draft_tokens."""
    names = [one.name for kind in (ModelOptions, DraftOptions) for one in fields(kind) if "_" in one.name]
    return re.sub(rf"(?<![\w-])({'|'.join(names)})\b", lambda found: f"--{found[1].replace('_', '-')}", message)
