"""Assigns the documents of a source to splits and tokenises them into the cache."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.train.data.config import DataConfig, Source, ValidationConfig
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import File, FileRecord, Split
from paceline.train.data.sources.documents import Chat, Document, Reader, Text, Tokens
from paceline.train.data.sources.readers import open_reader
from paceline.train.data.store import TokenWriter, create_once, default_cache, read_records

BATCH_SIZE = 256  # documents that are encoded in one call
CACHE_VERSION = 1  # another number tokenises everything again
# Fields of a source that change no token of its files, or whose effect is in the hashes of its files.
NOT_IN_KEY = {"share", "paths", "path", "files", "taps", "streaming", "take"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedSource:
    """A source in the cache."""

    source: Source
    folder: Path
    files: tuple[File, ...]  # without empty ones
    records: tuple[FileRecord, ...]

    def num_tokens(self, split: Split) -> int:
        """Tokens of ``split``."""
        return sum(record.num_tokens for record in self.records if record.split == split.value)


def tokenise_sources(config: DataConfig, encoder: Encoder) -> list[TokenisedSource]:
    """The documents of every source as tokens in the cache, tokenised now unless they are there.

    Raises ValueError, naming file and line, for whatever cannot be read or is outside the vocabulary.
    """
    cache = config.cache or default_cache()
    return [
        tokenise(source, open_reader(source, encoder), encoder, config.validation, cache) for source in config.sources
    ]


def tokenise(
    source: Source, reader: Reader, encoder: Encoder, validation: ValidationConfig, cache: Path
) -> TokenisedSource:
    """The documents of one source, as above."""
    files = [replace(file, split=_split(file, source, validation)) for file in reader.files()]
    key = {
        "layout": CACHE_VERSION,
        "encoder": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "source": source.model_dump(mode="json", exclude=NOT_IN_KEY),
        "validation": validation.model_dump(mode="json"),
        "files": [[file.name, file.sha256] for file in files],
    }
    folder = cache / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    with create_once(folder) as part:
        if part is not None:
            _write(part, reader, files, encoder, validation)
    sized = tuple(file for file in files if file.num_bytes)
    return TokenisedSource(source=source, folder=folder, files=sized, records=tuple(read_records(folder)))


def _write(part: Path, reader: Reader, files: Sequence[File], encoder: Encoder, validation: ValidationConfig) -> None:
    records: list[FileRecord] = []
    columns = (TextColumn("tokenising"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
    dtype = np.min_scalar_type(max(encoder.vocab_size, encoder.source_vocab) - 1)
    with shown as progress, TokenWriter(part, dtype=dtype) as writer:
        task = progress.add_task("", total=sum(file.num_bytes for file in files))
        for index, file in enumerate(files):
            counts: dict[Split, Counter[str]] = {}
            for document in encode_documents(reader.documents(index), encoder):
                split = file.split or _split_by_hash(hash_tokens(document.tokens), validation.share)
                num_learned = writer.put(split, document)
                counted = {"num_documents": 1, "num_tokens": len(document.tokens), "num_learned": num_learned}
                counts.setdefault(split, Counter()).update(counted)
            if not counts:
                counts[file.split or Split.TRAIN] = Counter()
            for split in filter(counts.__contains__, Split):
                of_split = {name: counts[split][name] for name in ("num_documents", "num_tokens", "num_learned")}
                records.append(FileRecord(**{**asdict(file), "split": split.value, **of_split}))
            progress.advance(task, file.num_bytes)
        writer.finish(records)


def encode_documents(documents: Iterator[Document], encoder: Encoder) -> Iterator[Tokens]:
    """Every document that has tokens; the end-of-text token is appended to texts."""
    while batch := list(islice(documents, BATCH_SIZE)):
        texts = [document for document in batch if isinstance(document, Text)]
        ids = iter(encoder.encode_many([text.text for text in texts]))
        for document in batch:
            tokens = _to_tokens(document, ids, encoder)
            if not len(tokens.tokens):
                continue
            source, own = np.split(tokens.tokens, [tokens.num_source])
            for part, size in ((source, encoder.source_vocab), (own, encoder.vocab_size)):
                low, high = (int(part.min()), int(part.max())) if len(part) else (0, 0)
                if low < 0 or high >= size:
                    raise ValueError(
                        f"{tokens.name}: token id {low if low < 0 else high}, and the vocabulary has {size}; take "
                        "tokens of the target's own tokenizer"
                    )
            yield tokens


def _to_tokens(document: Document, ids: Iterator[np.ndarray], encoder: Encoder) -> Tokens:
    match document:
        case Text(name=name):
            tokens, end = next(ids), encoder.end_of_text
            if end is not None and (not len(tokens) or tokens[-1] != end):
                tokens = np.append(tokens, np.asarray([end], dtype=np.int64))
            return Tokens(name=name, tokens=tokens)
        case Chat(name=name, messages=messages):
            try:
                tokens, learned = encoder.chat(messages)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            return Tokens(name=name, tokens=tokens, learned=learned)
        case Tokens():
            return document


def _split(file: File, source: Source, validation: ValidationConfig) -> Split | None:
    """The split of a whole file; None if each document has its own."""
    if file.split is not None:
        return file.split
    if source.split != "auto":
        return Split(source.split)
    if validation.by == "document" and validation.share > 0:
        return None
    return _split_by_hash(file.sha256, validation.share)


def _split_by_hash(sha256: str, share: float) -> Split:
    return Split.VALIDATION if int(sha256[:13], 16) < share * 16**13 else Split.TRAIN


def hash_tokens(tokens: np.ndarray) -> str:
    """SHA-256 of token ids [N]."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype=np.int64).data).hexdigest()
