"""Edits to train on: drawn from pieces of the library, in tokens, in batches of which only the answers are learned.

B rows, T inputs of a row, P edits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import final

import numpy as np
import torch
from tokenizers import Tokenizer

from paceline.bench.editing import TASKS, Edit, Lengths, Piece, make_edit, pieces_of, prose_pieces
from paceline.train.batches import TrainBatch
from paceline.train.data import LibraryFile

END_OF_TEXT_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EditTokens:
    """Prompt, answer and end of text in rows [P, T + 1]; an answer from ``starts`` [P] to below ``ends`` [P]."""

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def write(self, path: Path) -> None:
        """Save as .npz."""
        np.savez(path, tokens=self.tokens, starts=self.starts, ends=self.ends)

    @classmethod
    def read(cls, path: Path) -> "EditTokens":
        """What ``write`` saved."""
        with np.load(path) as found:
            return cls(tokens=found["tokens"], starts=found["starts"], ends=found["ends"])


@final
class Edits:
    """Batches of edits, one a row. The batch of a step is a function of (seed, step)."""

    def __init__(self, edits: EditTokens, *, rows: int, seed: int) -> None:
        self.tokens = torch.from_numpy(edits.tokens.astype(np.int64))
        at = torch.arange(self.tokens.shape[1])
        starts, ends = torch.from_numpy(edits.starts), torch.from_numpy(edits.ends)
        self.learned = (at >= starts[:, None]) & (at < ends[:, None])
        self._rows, self.seed = rows, seed

    @property
    def rows(self) -> int:
        """Rows of a whole batch."""
        return self._rows

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the step's batch: only answers, with the end of text behind them, are learned."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        chosen = torch.randint(len(self.tokens), (self.rows,), generator=generator)[rows.start : rows.stop]
        return TrainBatch(tokens=self.tokens[chosen], learned=self.learned[chosen])


def pieces_by_task(files: Iterable[LibraryFile], lengths: Mapping[str, Lengths]) -> dict[str, list[Piece]]:
    """What can be edited in ``files``, which are modules and topics of pydoc."""
    found: dict[str, list[Piece]] = {task: [] for task in TASKS}
    for file in files:
        if file.name.startswith("pydoc/"):
            texts = prose_pieces([file.text], lengths["edit-text"])
            found["edit-text"].extend(Piece("edit-text", text) for text in texts)
            continue
        for piece in pieces_of(file.text, file.name.removesuffix(".py").replace("/", "."), lengths):
            found[piece.task].append(piece)
    return found


def draw_edits(pieces: Mapping[str, Sequence[Piece]], count: int, *, seed: int) -> list[Edit]:
    """``count`` edits of random pieces, the tasks in turn."""
    random, found = Random(seed), list[Edit]()
    while len(found) < count:
        edit = make_edit(random.choice(pieces[TASKS[len(found) % len(TASKS)]]), random)
        if edit is not None:
            found.append(edit)
    return found


def tokenized(edits: Sequence[Edit], tokenizer: Tokenizer, length: int) -> EditTokens:
    """``edits`` in rows of ``length`` + 1 tokens, cut there."""
    tokens = np.full((len(edits), length + 1), END_OF_TEXT_ID, dtype=np.uint16)
    starts, ends = np.zeros(len(edits), dtype=np.int64), np.zeros(len(edits), dtype=np.int64)
    for row, edit in enumerate(edits):
        prompt, answer = tokenizer.encode(edit.prompt).ids, tokenizer.encode(edit.answer).ids
        whole = [*prompt, *answer, END_OF_TEXT_ID][: length + 1]
        tokens[row, : len(whole)] = whole
        starts[row], ends[row] = len(prompt), len(whole)
    return EditTokens(tokens=tokens, starts=starts, ends=ends)
