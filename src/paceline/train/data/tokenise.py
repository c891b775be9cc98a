"""Assigns the documents of a source to splits and tokenises them into the cache."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.train.data.config import Source, ValidationConfig
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import FileRecord, FileSplits, Split
from paceline.train.data.sources.documents import Chat, Document, File, Reader, Text, Tokens
from paceline.train.data.store import TokenWriter, create_once, read_records

BATCH_SIZE = 256  # documents that are encoded in one call
CACHE_VERSION = 1  # another number tokenises everything again


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedSource:
    """A source in the cache."""

    source: Source
    folder: Path
    records: tuple[FileRecord, ...]
    splits: tuple[FileSplits, ...]


def tokenise(
    source: Source, reader: Reader, encoder: Encoder, validation: ValidationConfig, cache: Path
) -> TokenisedSource:
    """The documents of ``source`` as tokens in ``cache``, tokenised now unless they are there.

    Raises ValueError, naming file and line, for whatever cannot be read or is outside the vocabulary.
    """
    files = reader.files()
    splits = [_split(file, source, validation) for file in files]
    key = {
        "layout": CACHE_VERSION,
        "encoder": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "source": source.model_dump(mode="json", exclude={"share", "paths", "path", "files", "taps"}),
        "validation": validation.model_dump(mode="json"),
        "files": [[file.name, file.sha256] for file in files],
    }
    folder = cache / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    with create_once(folder) as part:
        if part is not None:
            _write(part, reader, files, splits, encoder, validation)
    file_splits = [
        FileSplits(
            name=file.name,
            sha256=file.sha256,
            splits=frozenset((Split.TRAIN, Split.VALIDATION) if split is None else (split,)),
        )
        for file, split in zip(files, splits, strict=True)
        if file.num_bytes
    ]
    return TokenisedSource(source=source, folder=folder, records=tuple(read_records(folder)), splits=tuple(file_splits))


def _write(
    part: Path,
    reader: Reader,
    files: Sequence[File],
    splits: Sequence[Split | None],
    encoder: Encoder,
    validation: ValidationConfig,
) -> None:
    records: list[FileRecord] = []
    columns = (TextColumn("tokenising"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
    with shown as progress, TokenWriter(part, dtype=np.min_scalar_type(encoder.vocab_size - 1)) as writer:
        task = progress.add_task("", total=sum(file.num_bytes for file in files))
        for index, file in enumerate(files):
            counts: dict[Split, tuple[int, int, int]] = {}
            for document in _encode(reader.documents(index), encoder):
                split = splits[index] or _split_by_hash(hash_tokens(document.tokens), validation.share)
                num_learned = writer.put(split, document)
                documents, tokens, learned = counts.get(split, (0, 0, 0))
                counts[split] = (documents + 1, tokens + len(document.tokens), learned + num_learned)
            if not counts:
                counts[splits[index] or Split.TRAIN] = (0, 0, 0)
            for split in Split:
                if split in counts:
                    documents, tokens, learned = counts[split]
                    records.append(
                        FileRecord(
                            name=file.name,
                            num_bytes=file.num_bytes,
                            sha256=file.sha256,
                            split=split.value,
                            num_documents=documents,
                            num_tokens=tokens,
                            num_learned=learned,
                        )
                    )
            progress.advance(task, file.num_bytes)
        writer.finish(records)


def _encode(documents: Iterator[Document], encoder: Encoder) -> Iterator[Tokens]:
    """Every document that has tokens; the end-of-text token is appended to texts."""
    while batch := list(islice(documents, BATCH_SIZE)):
        texts = [document for document in batch if isinstance(document, Text)]
        ids = iter(encoder.encode_many([text.text for text in texts]))
        for document in batch:
            tokens = _to_tokens(document, ids, encoder)
            if not len(tokens.tokens):
                continue
            low, high = int(tokens.tokens.min()), int(tokens.tokens.max())
            if low < 0 or high >= encoder.vocab_size:
                raise ValueError(
                    f"{tokens.name}: token id {low if low < 0 else high}, and the vocabulary has {encoder.vocab_size}; "
                    "take tokens of the target's own tokenizer"
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
