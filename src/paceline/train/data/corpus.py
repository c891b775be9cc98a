"""The corpus that every machine with Python has: its standard library, a tokenizer of it, and both as a token array.

Knows nothing of models, losses or batches.
"""

import hashlib
import pydoc_data.topics
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
EXCLUDED_FOLDERS = frozenset({"site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"})
# Never trained on: validation loss and acceptance are measured on these.
HELD_OUT = frozenset(
    {
        "argparse.py",
        "asyncio/queues.py",
        "bisect.py",
        "calendar.py",
        "collections/__init__.py",
        "csv.py",
        "dataclasses.py",
        "email/message.py",
        "fractions.py",
        "heapq.py",
        "http/cookies.py",
        "json/decoder.py",
        "logging/handlers.py",
        "queue.py",
        "shlex.py",
        "statistics.py",
        "textwrap.py",
        "zipfile.py",
        "zipfile/__init__.py",  # where it moved in Python 3.12
    }
)


@dataclass(frozen=True, slots=True)
class Document:
    """One text with the name it goes by in the manifest."""

    name: str
    text: str
    held_out: bool

    def manifest(self) -> dict[str, object]:
        data = self.text.encode()
        split = "held-out" if self.held_out else "train"
        return {"name": self.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "split": split}


def standard_library() -> list[Document]:
    """Python's own library (source without its tests) and its pydoc topics, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = [Document(f"pydoc/{name}", text, False) for name, text in sorted(pydoc_data.topics.topics.items())]
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if EXCLUDED_FOLDERS & set(name.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a few old modules keep other encodings
            continue
        documents.append(Document(name.as_posix(), text, name.as_posix() in HELD_OUT))
    return documents


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE over ``texts``; id 0 is the end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Iterable[Document]) -> np.ndarray:
    """All documents in one token array, each closed by the end-of-text token."""
    pieces: list[int] = []
    for encoding in tokenizer.encode_batch([document.text for document in documents]):
        pieces.extend(encoding.ids)
        pieces.append(0)
    return np.asarray(pieces, dtype=np.uint16)
