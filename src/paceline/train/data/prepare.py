"""From the section ``data`` to batches: files found, split, tokenised once, cut to rows. Knows nothing of models.

T inputs of a row.
"""

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
from paceline.train.data.documents import Chat, Document, File, Reader, Text, Tokens
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import Assigned, FileRecord, Split
from paceline.train.data.store import Writer, making, read_records

TOGETHER = 256  # texts that are encoded in one call
LAYOUT = 1  # of what is stored: another number, and everything is tokenised anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A tokenised source."""

    source: Source
    folder: Path
    records: tuple[FileRecord, ...]
    assigned: tuple[Assigned, ...]


def tokenise(source: Source, reader: Reader, encoder: Encoder, validation: ValidationConfig, cache: Path) -> Made:
    """The documents of ``source`` as tokens on disk, made now or found there.

    Raises ValueError, naming file and line, for whatever cannot be read or is beyond the vocabulary.
    """
    files = reader.files()
    by_document = [_by_document(file, source, validation) for file in files]
    splits = [
        None if apart else _split(file, source, validation) for file, apart in zip(files, by_document, strict=True)
    ]
    key = {
        "layout": LAYOUT,
        "encoder": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "source": source.model_dump(mode="json", exclude={"share", "paths", "path", "files", "taps"}),
        "validation": validation.model_dump(mode="json"),
        "files": [[file.name, file.sha256] for file in files],
    }
    folder = cache / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    with making(folder) as part:
        if part is not None:
            _write(part, reader, files, splits, encoder, validation)
    assigned = [
        Assigned(
            name=file.name,
            sha256=file.sha256,
            splits=frozenset((Split.TRAIN, Split.VALIDATION) if split is None else (split,)),
        )
        for file, split in zip(files, splits, strict=True)
        if file.num_bytes
    ]
    return Made(source=source, folder=folder, records=tuple(read_records(folder)), assigned=tuple(assigned))


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
    with shown as progress, Writer(part, dtype=_dtype(encoder.vocab_size)) as writer:
        task = progress.add_task("", total=sum(file.num_bytes for file in files))
        for index, file in enumerate(files):
            counts: dict[Split, list[int]] = {}
            for document in _encoded(reader.documents(index), encoder):
                chosen = splits[index]
                split = chosen if chosen is not None else _by_hash(digest(document.tokens), validation.share)
                found = counts.setdefault(split, [0, 0, 0])
                learned = writer.put(split, document)
                for place, count in enumerate((1, len(document.tokens), learned)):
                    found[place] += count
            if not counts:
                counts[splits[index] or Split.TRAIN] = [0, 0, 0]
            records.extend(_record(file, split, *counts[split]) for split in Split if split in counts)
            progress.advance(task, file.num_bytes)
        writer.finish(records)


def _record(file: File, split: Split, num_documents: int, num_tokens: int, num_learned: int) -> FileRecord:
    return FileRecord(
        name=file.name,
        num_bytes=file.num_bytes,
        sha256=file.sha256,
        split=split.value,
        num_documents=num_documents,
        num_tokens=num_tokens,
        num_learned=num_learned,
    )


def _encoded(documents: Iterator[Document], encoder: Encoder) -> Iterator[Tokens]:
    """Every document that has tokens, texts closed by the end-of-text token."""
    while batch := list(islice(documents, TOGETHER)):
        texts = [document for document in batch if isinstance(document, Text)]
        ids = iter(encoder.encode_many([text.text for text in texts]))
        for document in batch:
            found = _tokens(document, ids, encoder)
            if not len(found.tokens):
                continue
            low, high = int(found.tokens.min()), int(found.tokens.max())
            if low < 0 or high >= encoder.vocab_size:
                raise ValueError(
                    f"{found.name}: token id {low if low < 0 else high}, and the vocabulary has {encoder.vocab_size}; "
                    "take tokens of the target's own tokenizer"
                )
            yield found


def _tokens(document: Document, ids: Iterator[np.ndarray], encoder: Encoder) -> Tokens:
    match document:
        case Text(name=name):
            found, end = next(ids), encoder.end_of_text
            if end is not None and (not len(found) or found[-1] != end):
                found = np.append(found, np.asarray([end], dtype=np.int64))
            return Tokens(name=name, tokens=found)
        case Chat(name=name, messages=messages):
            try:
                tokens, learned = encoder.chat(messages)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            return Tokens(name=name, tokens=tokens, learned=learned)
        case Tokens():
            return document


def _dtype(vocab_size: int) -> np.dtype:
    """The smallest that holds every id."""
    return np.min_scalar_type(vocab_size - 1)


def _by_document(file: File, source: Source, validation: ValidationConfig) -> bool:
    return file.split is None and source.split == "auto" and validation.by == "document" and validation.share > 0


def _split(file: File, source: Source, validation: ValidationConfig) -> Split:
    if file.split is not None:
        return file.split
    if source.split != "auto":
        return Split(source.split)
    return _by_hash(file.sha256, validation.share)


def _by_hash(found: str, share: float) -> Split:
    return Split.VALIDATION if int(found[:13], 16) < share * 16**13 else Split.TRAIN


def digest(tokens: np.ndarray) -> str:
    """Hash of token ids [N]."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype=np.int64).data).hexdigest()
