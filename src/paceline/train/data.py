"""Text to token arrays: the standard-library corpus, its tokenizer, and batches in a deterministic order.

Knows nothing of models or losses. B rows, T sequence length.
"""

import hashlib
import pydoc_data.topics
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.train.batches import Batches, TrainBatch

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


class Crops:
    """Random crops of token arrays. Batch ``step`` is a function of (seed, step), so resuming needs no state."""

    def __init__(self, sources: list[tuple[np.ndarray, float]], *, rows: int, length: int, seed: int) -> None:
        """``sources``: token arrays with their share of the rows, one text [N] or sequences taken whole [P, T + 1]."""
        total = sum(share for _, share in sources)
        self.sources = [(torch.from_numpy(tokens.astype(np.int32)), share / total) for tokens, share in sources]
        for tokens, _ in self.sources:
            if tokens.dim() == 1 and len(tokens) <= length:
                raise ValueError(f"corpus of {len(tokens)} tokens is shorter than one sequence of {length}")
            if tokens.dim() == 2 and tokens.shape[1] != length + 1:
                raise ValueError(f"sequences of {tokens.shape[1]} tokens: batches of length {length} need {length + 1}")
        self._rows, self.length, self.seed = rows, length, seed

    @property
    def rows(self) -> int:
        """Of a whole batch."""
        return self._rows

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of this step's batch: tokens [B, T + 1], all of them learned."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        shares = torch.tensor([share for _, share in self.sources])
        chosen = torch.multinomial(shares, self.rows, replacement=True, generator=generator)
        crops = []
        for source in chosen.tolist():  # of all rows, because one generator serves them in turn
            tokens = self.sources[source][0]
            last = tokens.shape[0] if tokens.dim() == 2 else tokens.shape[0] - self.length
            start = int(torch.randint(last, (), generator=generator))
            crops.append(tokens[start] if tokens.dim() == 2 else tokens[start : start + self.length + 1])
        tokens = torch.stack([crops[row] for row in rows]).long()
        return TrainBatch(tokens=tokens, learned=torch.ones_like(tokens, dtype=torch.bool))


class Stages:
    """One source of batches after another: each ``(until, batches)`` serves the steps below ``until``."""

    def __init__(self, *stages: tuple[int, Batches]) -> None:
        self.stages = stages

    @property
    def rows(self) -> int:
        """Of the largest batch; a stage of fewer rows gives those that it has."""
        return max(batches.rows for _, batches in self.stages)

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of this step's batch. Raises ValueError beyond the last stage."""
        for until, batches in self.stages:
            if step < until:
                return batches.batch(step, rows[: max(0, batches.rows - rows.start)])
        raise ValueError(f"step {step} is beyond the last stage, which ends at {self.stages[-1][0]}")
