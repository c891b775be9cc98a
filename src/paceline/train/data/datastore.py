"""Builds the datastore that the drafter ``retrieval`` copies from.

N tokens and separators, T tokens.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.token_index import SEPARATOR
from paceline.drafters.datastore import HEADER, PLACES, TOKENS, Header, is_datastore
from paceline.train.data.corpus import Corpus, read_vocabulary
from paceline.train.data.encoders import make_encoder
from paceline.train.data.sources.documents import Reader, Tokens
from paceline.train.data.sources.readers import open_reader
from paceline.train.data.tokenise import encode_documents

SORTED_IN_32_BITS = 2**31 - 1
Progress = Callable[[str, int, int], None]  # what is done, bytes read, bytes of all files


def build_datastore(
    corpus: Corpus,
    *,
    model: str,
    output: Path,
    overwrite: bool = False,
    progress: Progress = lambda *_: None,
    library: Any = None,
) -> Header:
    """Tokenise ``corpus`` for ``model`` and write the datastore ``output``, all of it or nothing.

    ``library`` (None: pydivsufsort) sorts suffixes of bytes. Raises ValueError where it is missing, for an output that
    is there, and for whatever is wrong with the corpus or the model.
    """
    sorter = library or import_sorter()
    check_output(output, overwrite=overwrite)
    vocabulary, data = read_vocabulary(corpus, model), corpus.data
    encoder = make_encoder(
        data, tokenizer=vocabulary.tokenizer, vocab_size=vocabulary.size, end_of_text=vocabulary.end_of_text
    )
    readers = [open_reader(source, encoder) for source in data.sources]
    documents = encode_documents(_read_all(readers, progress), encoder)
    with replacing(output) as part:
        return write_datastore(
            part,
            documents,
            vocab_size=vocabulary.size,
            vocabulary=None if vocabulary.tokenizer is None else vocabulary.tokenizer.digest,
            library=sorter,
            sorting=lambda: progress("sorting", 1, 1),
        )


def import_sorter() -> Any:
    """The library that sorts suffixes. Raises ValueError where it is missing."""
    try:
        return import_module("pydivsufsort")
    except ImportError as error:
        raise ValueError(
            "a datastore is sorted by the package pydivsufsort, which is missing: pip install 'paceline[retrieval]'"
        ) from error


def check_output(output: Path, *, overwrite: bool) -> None:
    """Raise ValueError unless a datastore can be written to ``output``."""
    if output.exists() and not overwrite:
        raise ValueError(f"{output} exists: give --overwrite, or another directory")
    if output.exists() and not is_datastore(output):
        raise ValueError(f"{output} exists and is no datastore, so it is not overwritten: give another directory")


def write_datastore(
    folder: Path,
    documents: Iterator[Tokens],
    *,
    vocab_size: int,
    vocabulary: str | None,
    library: Any,
    sorting: Callable[[], None] = lambda: None,
) -> Header:
    """Write the files of a datastore. Raises ValueError where there are no tokens."""
    num_documents, largest, separator = 0, -1, np.asarray([SEPARATOR], dtype=np.int32)
    with (folder / TOKENS).open("wb") as file:
        file.write(separator.data)
        for document in documents:
            file.write(np.ascontiguousarray(document.tokens, dtype=np.int32).data)
            file.write(separator.data)
            num_documents, largest = num_documents + 1, max(largest, int(document.tokens.max()))
    if not num_documents:
        raise ValueError("there are no tokens in these texts: give others")
    sorting()
    tokens = np.fromfile(folder / TOKENS, dtype=np.int32)
    places = sort_places(tokens, library=library)
    places.tofile(folder / PLACES)
    header = Header(
        vocab_size=vocab_size,
        vocabulary=vocabulary,
        num_tokens=len(places),
        num_documents=num_documents,
        largest=largest,
        place_bytes=places.dtype.itemsize,
        sha256={name: hash_file(folder / name) for name in (TOKENS, PLACES)},
    )
    (folder / HEADER).write_text(header.to_json(), encoding="utf-8")
    return header


def sort_places(tokens: np.ndarray, *, library: Any) -> np.ndarray:
    """The places [T] of ``tokens`` [N] but its separators, sorted by what ends there, the last token first.

    Bytes are what the library sorts: a token is as many of them as the largest needs, the highest first, and its
    suffixes are those that begin at a token.
    """
    shifted = (tokens[::-1].astype(np.int64) + 1).astype(">u4")  # the separator, the lowest, is 0
    width = max(1, (int(shifted.max()).bit_length() + 7) // 8)
    data = np.ascontiguousarray(shifted.view(np.uint8).reshape(-1, 4)[:, 4 - width :]).reshape(-1)
    order = library.divsufsort(data)
    if width > 1:
        order = order[order % width == 0] // width
    places = len(tokens) - 1 - order[int((tokens == SEPARATOR).sum()) :]  # the separators come first
    return places.astype(np.int32 if len(tokens) <= SORTED_IN_32_BITS else np.int64)


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """A temporary directory beside ``output`` that takes its place on success, and is removed otherwise."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{output.name}.part-", dir=output.parent))
    try:
        part.chmod(0o755)
        yield part
        if output.exists():
            former = Path(tempfile.mkdtemp(prefix=f"{output.name}.old-", dir=output.parent))
            output.rename(former / output.name)
            part.rename(output)
            shutil.rmtree(former, ignore_errors=True)
        else:
            part.rename(output)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _read_all(readers: Sequence[Reader], progress: Progress) -> Iterator[Any]:
    listed = [(reader, reader.files()) for reader in readers]
    total, done = sum(file.num_bytes for _, files in listed for file in files), 0
    for reader, files in listed:
        for index, file in enumerate(files):
            yield from reader.documents(index)
            done += file.num_bytes
            progress("tokenising", done, total)
