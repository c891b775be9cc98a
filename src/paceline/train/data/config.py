"""The section ``data`` of a training configuration: sources, tokenisation, packing and what is held out."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

SplitName = Literal["auto", "train", "validation"]


class Section(BaseModel):
    """A section of a configuration: immutable, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Source(Section):
    split: SplitName = "auto"  # auto: by hash, as ``validation`` says
    share: PositiveFloat | None = None  # of the rows; None for all sources: by their size


class FilesSource(_Source):
    """Files, folders (all files below) and globs."""

    paths: tuple[str, ...] = Field(min_length=1)


class TextSource(FilesSource):
    """UTF-8 files; one document per file."""

    kind: Literal["text"]


class JsonlSource(FilesSource):
    """One JSON object per line, with a string in ``field``."""

    kind: Literal["jsonl"]
    field: str = "text"


class ChatSource(FilesSource):
    """One JSON object per line, with messages in ``field``; only the assistant's tokens are learned."""

    kind: Literal["chat"]
    field: str = "messages"


class RowsSource(FilesSource):
    """One JSON object per line, with ``input_ids`` and, unless all are learned, ``loss_mask``."""

    kind: Literal["rows"]


class TokensSource(FilesSource):
    """Token ids of the target: .npy arrays [N] or [P, T], or raw .bin files of ``dtype``."""

    kind: Literal["tokens"]
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = "uint16"


class BytesSource(_Source):
    """One file split at fixed bytes into train, validation and test, such as enwik8."""

    kind: Literal["bytes"]
    path: str
    train: PositiveInt = 90_000_000
    validation: NonNegativeInt = 5_000_000
    test: NonNegativeInt = 5_000_000


class LibrarySource(_Source):
    """Python's standard library; the held-out files are a fixed list."""

    kind: Literal["standard_library"]


class DatasetsSource(_Source):
    """A dataset of the package ``datasets``: a name on the Hub, or a builder (json, parquet, csv ...) and files."""

    kind: Literal["datasets"]
    name: str
    files: tuple[str, ...] = ()
    subset: str | None = None
    part: str = "train"  # the split of the dataset
    holds: Literal["text", "chat", "rows"] = "text"
    field: str | None = None  # the column of texts or messages; None: text or messages
    streaming: bool = False  # read the rows as they arrive, without a copy of the whole dataset on disk
    take: PositiveInt | None = None  # only so many rows, from the first


class FeaturesSource(_Source):
    """Precomputed hidden states, in the layout of vllm-project/speculators."""

    kind: Literal["features"]
    path: str
    taps: tuple[NonNegativeInt, ...] | None = None  # the layers that the files hold; None: as in features.json


class PairsSource(FilesSource):
    """One JSON object per line for an encoder-decoder: a text that the encoder reads, and one that is the output.

    In place of ``output`` a line may have the target's tokens as ``paceline data regenerate`` writes them: input_ids
    and loss_mask.
    """

    kind: Literal["pairs"]
    source: str = "source"
    output: str = "output"


class SoundsSource(FilesSource):
    """The same for Whisper: a path of sound, from the file's folder, and its transcript."""

    kind: Literal["sounds"]
    audio: str = "audio"
    output: str = "output"
    language: str | None = None  # of transcripts; None: the checkpoint's own
    task: Literal["transcribe", "translate"] = "transcribe"


Source = Annotated[
    TextSource
    | JsonlSource
    | ChatSource
    | RowsSource
    | TokensSource
    | BytesSource
    | LibrarySource
    | DatasetsSource
    | FeaturesSource
    | PairsSource
    | SoundsSource,
    Field(discriminator="kind"),
]


class ValidationConfig(Section):
    """What is held out of sources whose split is auto."""

    share: float = Field(default=0.05, ge=0, lt=1)
    by: Literal["file", "document"] = "file"  # whose hash decides


class DataConfig(Section):
    """Everything that decides the rows of a run, except seed and row length."""

    sources: tuple[Source, ...] = Field(min_length=1)
    tokenizer: Literal["target", "bytes"] = "target"
    end_of_text: NonNegativeInt | None = None  # appended to each text; None: the target's own, if it has one
    packing: Literal["packed", "documents"] = "packed"
    segments: bool = True  # documents that share a row do not attend to each other
    validation: ValidationConfig = ValidationConfig()
    cache: Path | None = None  # None: paceline/data in the user's cache folder

    @property
    def is_paired(self) -> bool:
        """Whether its rows are pairs of what an encoder reads and an output."""
        return any(isinstance(source, PairsSource | SoundsSource) for source in self.sources)

    @model_validator(mode="after")
    def _pairs_alone(self) -> Self:
        if not self.is_paired:
            return self
        kinds = {source.kind for source in self.sources}
        if len(kinds) > 1:
            raise ValueError(f"sources of kind {' and '.join(sorted(kinds))}: pairs are not mixed with others")
        if self.tokenizer != "target":
            raise ValueError(f"tokenizer {self.tokenizer} with pairs: they are of the target's tokens; leave it out")
        if self.packing != "documents":
            raise ValueError(f"packing {self.packing} with pairs: a row is one of them; give packing: documents")
        return self
