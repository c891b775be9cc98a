"""Options of ``paceline data prepare``, ``data regenerate`` and ``data features``."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.cli.options import (
    AT_LEAST_1,
    MODEL,
    OUTPUT,
    POSITIONAL,
    SAMPLING,
    BatchSize,
    DraftOptions,
    Json,
    LogLevel,
    ModelOptions,
    Overwrite,
    PromptFile,
    Quiet,
    one_of,
)
from paceline.cli.sampling_options import IgnoreEos, MaxTokens, MinP, TopK, TopP

HELP = "Prepare training data: tokens, outputs of the target, its hidden states."
SPLITS = ("train", "validation")
CORPUS = Group("Corpus", sort_key=0)
Length = Annotated[
    int | None, Parameter(help="Tokens per row; from the configuration, or 512, by default."), AT_LEAST_1
]


@Parameter(name="*", group=CORPUS)
@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """What is read: a configuration, or files."""

    config: Annotated[Path | None, POSITIONAL] = None
    """YAML file: a training run, or only its section data."""
    _: KW_ONLY
    text: tuple[str, ...] = ()
    """Plain text: a file, folder or glob; may be repeated."""
    jsonl: tuple[str, ...] = ()
    """Lines of {"text": ...}; may be repeated."""
    chat: tuple[str, ...] = ()
    """Lines of {"messages": ...}; may be repeated."""
    tokens: tuple[str, ...] = ()
    """Token ids, .npy or 16-bit .bin; may be repeated."""
    library: bool = False
    """Python's standard library."""
    bytes: bool = False
    """Bytes as tokens, without a tokenizer."""
    validation_share: float = 0.0
    """Fraction of the files given by options that is held out; a configuration has its own setting."""
    cache: Path | None = None
    """Cache of token ids; paceline/data in the user's cache by default."""

    @property
    def given(self) -> bool:
        """Whether there is anything to read."""
        return self.config is not None or bool(self.sources())

    def sources(self) -> list[dict[str, object]]:
        """The files, as the section ``data`` of a configuration names them."""
        named: dict[str, Sequence[str]] = {
            "text": self.text,
            "jsonl": self.jsonl,
            "chat": self.chat,
            "tokens": self.tokens,
        }
        found: list[dict[str, object]] = [{"kind": kind, "paths": paths} for kind, paths in named.items() if paths]
        return [*found, {"kind": "standard_library"}] if self.library else found


@dataclass(frozen=True, slots=True)
class DataPrepare:
    """Tokenise a corpus, pack it into rows and print counts, before anything is trained.

    A training run does the same by itself; token ids are cached. Errors in a corpus are reported with file and line.

    Examples:

        paceline data prepare run.yaml
        paceline data prepare --text 'corpus/**/*.txt' --model DIR --length 1024
        paceline data prepare --library --bytes --json
    """

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    _: KW_ONLY
    model: Annotated[str | None, Parameter(group=MODEL)] = None
    """The target: directory or Hub id; from the configuration by default."""
    length: Length = None
    manifest: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write name, hash and counts of every file to this file."""
    json: Json = False


@dataclass(frozen=True, slots=True)
class DataRegenerate:
    """Generate training data with the target itself.

    A drafter learns best from the target's own outputs, which differ from the corpus. Prompts are the lines of a file,
    as in `paceline generate`, or the beginnings of texts. Outputs that loop are left out and counted. After an
    interruption of any kind, the same command continues where it stopped.

    Examples:

        paceline data regenerate --model DIR --text 'corpus/*.txt' --output own.jsonl
        paceline data regenerate --model DIR --prompt-file questions.txt --as-chat --output own.jsonl
        paceline data regenerate --model DIR run.yaml --num-prompts 4096 --draft SMALL_DIR --output own.npy
    """

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    _: KW_ONLY
    model: ModelOptions
    output: Annotated[Path, Parameter(group=OUTPUT)]
    """FILE.jsonl: one output per line; FILE.npy: an array of token ids."""
    num_prompts: Annotated[int, AT_LEAST_1] = 1024
    """Number of prompts cut from the texts."""
    prompt_tokens: Annotated[int, AT_LEAST_1] = 48
    """Tokens of each prompt."""
    prompt_file: PromptFile = None
    as_chat: bool = False
    """A line of the prompt file is a user message."""
    system: str | None = None
    """With --as-chat: the system message."""
    max_tokens: MaxTokens = 208
    temperature: Annotated[str, Parameter(group=SAMPLING)] = "0,0.4,0.7,1"
    """Temperatures, taken in turn from prompt to prompt."""
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    seed: Annotated[int, Parameter(group=SAMPLING)] = 0
    """Seed of the choice of prompts and of sampling."""
    ignore_eos: IgnoreEos = False
    drafting: DraftOptions = field(default_factory=DraftOptions)
    batch_size: BatchSize = None
    overwrite: Overwrite = False
    quiet: Quiet = False
    log_level: LogLevel = None


@dataclass(frozen=True, slots=True)
class DataFeatures:
    """Compute hidden states of the target once, in the format of vllm-project/speculators.

    One file per text, in bfloat16: a text of 1,000 tokens takes 2 MB for each 1,000 of hidden size and layer. After an
    interruption, the same command continues where it stopped. With the package `datasets`, speculators' own trainer
    reads the folder.

    Examples:

        paceline data features --model DIR --jsonl own.jsonl --taps 2,8,13 --output hidden
        paceline data features --model DIR run.yaml --split validation --taps 8 --output hidden_validation
    """

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    _: KW_ONLY
    model: ModelOptions
    output: Annotated[Path, Parameter(group=OUTPUT)]
    """Folder for the hidden states."""
    taps: str
    """After how many layers, such as 2,16,29; the last layer is always included."""
    split: Annotated[str, one_of(SPLITS)] = "train"
    """train or validation: which documents."""
    length: Length = None
    batch_size: Annotated[int, AT_LEAST_1, Parameter(group=MODEL)] = 8
    """Sequences per batch."""
    quiet: Quiet = False
