"""The list of a run's documents: which file each comes from, its hash, its tokens, and what it is used for."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.train.data.manifest import Split
from paceline.train.data.store import open_split
from paceline.train.data.tokenise import TokenisedSource, hash_tokens

DOCUMENTS_FILE = "data_documents.jsonl"


def write_documents(folder: Path, sources: Sequence[TokenisedSource]) -> Path:
    """Write a line for every document that is trained on or held out into ``folder``, in the order of the corpus.

    ``document`` counts from 1 among the documents of its file that have its split; ``sha256`` is of its token ids as
    64-bit integers, so the same document has the same hash in any file. Nothing is held in memory.
    """
    path = folder / DOCUMENTS_FILE
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for source in sources:
            for split in (Split.TRAIN, Split.VALIDATION):
                file.writelines(json.dumps(line) + "\n" for line in _documents(source, split))
    part.replace(path)
    return path


def _documents(source: TokenisedSource, split: Split) -> Iterator[dict[str, object]]:
    stored = open_split(source.folder, split)
    if stored is None:
        return
    start, ends = 0, iter(stored.ends.tolist())
    for record in source.records:
        if record.split != split.value:
            continue
        for number in range(1, record.num_documents + 1):
            end = next(ends)
            yield {
                "file": record.name,
                "document": number,
                "split": split.value,
                "sha256": hash_tokens(stored.tokens[start:end]),
                "num_tokens": end - start,
            }
            start = end
