"""Hidden states of a target over documents, into the files that features.py reads. Trains nothing.

B rows of a batch, T tokens of the longest, L layers, H hidden size.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paceline.models.base import LM
from paceline.models.prefill import prefill
from paceline.train.data.features import HIDDEN_FOLDER, META_FILE, ROWS_FILE, sample_path, write_sample
from paceline.train.data.store import Stored

STORED_DTYPE = torch.bfloat16  # as vLLM writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """As much of a document as a row may hold."""

    tokens: np.ndarray  # [T]
    learned: np.ndarray  # [T] bool


def cut(stored: Sequence[Stored], *, length: int) -> list[Piece]:
    """The documents in pieces of at most ``length`` tokens; those of one token teach nothing and are left out."""
    pieces: list[Piece] = []
    for one in stored:
        for start, end in zip(np.append(0, one.ends[:-1]).tolist(), one.ends.tolist(), strict=True):
            for first in range(start, end - 1, length):
                stop = min(end, first + length)
                learned = np.ones(stop - first, bool) if one.learned is None else np.array(one.learned[first:stop])
                learned[0] = False
                pieces.append(Piece(tokens=np.asarray(one.tokens[first:stop], dtype=np.int64), learned=learned))
    return pieces


def check_taps(taps: Sequence[int], lm: LM) -> tuple[int, ...]:
    """``taps`` in their order with the last layer behind them, as the format wants. Raises ValueError for another."""
    for tap in taps:
        if not 0 <= tap <= lm.num_layers:
            raise ValueError(f"tap {tap}: the target has {lm.num_layers} layers; give 0 (the embeddings) to that")
    return (*sorted(set(taps) - {lm.num_layers}), lm.num_layers)


def begin(folder: Path, pieces: Sequence[Piece], *, taps: Sequence[int], identity: Mapping[str, object]) -> list[int]:
    """Write down what ``folder`` is going to hold; the numbers of the rows that are still missing there.

    ``identity`` says which target over which texts. Raises ValueError if the folder holds something else.
    """
    lines = [
        json.dumps({"input_ids": piece.tokens.tolist(), "loss_mask": piece.learned.astype(int).tolist()}) + "\n"
        for piece in pieces
    ]
    rows = "".join(lines)
    meta = {
        "layout": "vllm-project/speculators 0.7.0",
        "taps": list(taps),
        "num_rows": len(pieces),
        "texts": hashlib.sha256(rows.encode()).hexdigest()[:16],
        **identity,
    }
    path = folder / META_FILE
    if path.exists():
        former = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in sorted(former.keys() | meta.keys()) if former.get(name) != meta.get(name)]
        if differing:
            raise ValueError(
                f"{folder} holds hidden states with {differing[0]} {former.get(differing[0])}, and now it is "
                f"{meta.get(differing[0])}: give another --output"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and holds no {META_FILE}: give another --output")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, json.dumps(meta, indent=1) + "\n")  # first: with it the folder is ours to complete
    (folder / HIDDEN_FOLDER).mkdir(exist_ok=True)
    if not (folder / ROWS_FILE).exists():
        _write(folder / ROWS_FILE, rows)
    return [number for number in range(len(pieces)) if not sample_path(folder, number).exists()]


@torch.inference_mode()
def compute(
    lm: LM,
    pieces: Sequence[Piece],
    numbers: Sequence[int],
    *,
    taps: Sequence[int],
    folder: Path,
    batch_size: int,
    done: Callable[[int], None],
) -> None:
    """The hidden states of rows ``numbers``, each file moved into place once it is whole; ``done`` hears how many."""
    for start in range(0, len(numbers), batch_size):
        batch = numbers[start : start + batch_size]
        lengths = [len(pieces[number].tokens) for number in batch]
        text = torch.zeros(len(batch), max(lengths), dtype=torch.long)
        for row, number in enumerate(batch):
            text[row, : lengths[row]] = torch.from_numpy(pieces[number].tokens)
        text, length = text.to(lm.device), torch.tensor(lengths, device=lm.device)
        cache = lm.new_cache(len(batch), max(lengths)).view()
        found = prefill(lm, cache, text, length, max(lengths), taps)
        hidden = torch.stack([found[tap] for tap in taps], dim=2).to(STORED_DTYPE)  # [B, T, L, H]
        for row, number in enumerate(batch):
            write_sample(folder, number, text[row, : lengths[row]], hidden[row, : lengths[row]])
        done(len(batch))


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
