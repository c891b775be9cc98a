"""The section ``data`` of a training run: where texts come from, how they become rows. Reads no file.

Units: lengths in tokens, sizes of bytes in bytes.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

SplitName = Literal["auto", "train", "validation"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Source(_Section):
    split: SplitName = "auto"  # auto: by hash, as ``validation`` says
    share: PositiveFloat | None = None  # of the rows, among the shares of all sources; None for all: by their size


class TextSource(_Source):
    """Plain text, UTF-8, a document a file: files, folders (all files below) and globs."""

    kind: Literal["text"]
    paths: tuple[str, ...] = Field(min_length=1)


class JsonlSource(_Source):
    """A JSON object a line, with a text in ``field``."""

    kind: Literal["jsonl"]
    paths: tuple[str, ...] = Field(min_length=1)
    field: str = "text"


class ChatSource(_Source):
    """A JSON object a line, with messages in ``field``; only what the assistant says is learned."""

    kind: Literal["chat"]
    paths: tuple[str, ...] = Field(min_length=1)
    field: str = "messages"


class RowsSource(_Source):
    """A JSON object a line, with ``input_ids`` and, unless all are learned, ``loss_mask``: tokens of the target."""

    kind: Literal["rows"]
    paths: tuple[str, ...] = Field(min_length=1)


class TokensSource(_Source):
    """Token ids of the target: .npy arrays [N] or [P, T], or raw .bin files of ``dtype``."""

    kind: Literal["tokens"]
    paths: tuple[str, ...] = Field(min_length=1)
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = "uint16"


class BytesSource(_Source):
    """The first ``train`` bytes of one file to train on, the next to validate, and more that nobody reads: enwik8."""

    kind: Literal["bytes"]
    path: str
    train: PositiveInt = 90_000_000
    validation: NonNegativeInt = 5_000_000
    test: NonNegativeInt = 5_000_000


class LibrarySource(_Source):
    """Python's standard library, whose held-out files are a fixed list."""

    kind: Literal["standard_library"]


class DatasetsSource(_Source):
    """A data set of the package ``datasets``: a name on the Hub, or its builder (json, parquet, csv ...) and files."""

    kind: Literal["datasets"]
    name: str
    files: tuple[str, ...] = ()
    subset: str | None = None
    part: str = "train"  # what the data set calls its split
    holds: Literal["text", "chat", "rows"] = "text"
    field: str | None = None  # the column of texts or messages; None: text or messages


class FeaturesSource(_Source):
    """Hidden states that were computed before, in the layout of vllm-project/speculators."""

    kind: Literal["features"]
    path: str
    taps: tuple[NonNegativeInt, ...] | None = None  # which layers the file has; None: as features.json says


Source = Annotated[
    TextSource
    | JsonlSource
    | ChatSource
    | RowsSource
    | TokensSource
    | BytesSource
    | LibrarySource
    | DatasetsSource
    | FeaturesSource,
    Field(discriminator="kind"),
]


class ValidationConfig(_Section):
    """What is held out of the sources whose split is auto."""

    share: float = Field(default=0.05, ge=0, lt=1)
    by: Literal["file", "document"] = "file"  # whose hash decides


class DataConfig(_Section):
    """All that decides which rows a run reads, but for its seed and their size."""

    sources: tuple[Source, ...] = Field(min_length=1)
    tokenizer: Literal["target", "bytes"] = "target"
    end_of_text: NonNegativeInt | None = None  # closes each text; None: the target's own, if it has one
    packing: Literal["packed", "documents"] = "packed"
    segments: bool = True  # texts that share a row do not see each other
    validation: ValidationConfig = ValidationConfig()
    cache: Path | None = None  # None: paceline/data in the user's cache folder
