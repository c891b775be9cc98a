"""Computes hidden states of a target over documents, into the files that features.py reads.

B rows of a batch, T tokens of the longest, L layers, H hidden size.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paceline.models.base import LM
from paceline.models.prefill import prefill
from paceline.train.data.sources.features import HIDDEN_FOLDER, META_FILE, ROWS_FILE, sample_path, write_sample
from paceline.train.data.store import TokenisedSplit
from paceline.train.files import write_atomic

STORED_DTYPE = torch.bfloat16  # as vLLM writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive tokens of a document, at most as many as a row holds."""

    tokens: np.ndarray  # [T]
    learned: np.ndarray  # [T] bool


def chunk_documents(splits: Sequence[TokenisedSplit], *, length: int) -> list[Chunk]:
    """All documents in chunks of at most ``length`` tokens; chunks of one token are left out."""
    chunks: list[Chunk] = []
    for split in splits:
        for start, end in zip(np.append(0, split.ends[:-1]).tolist(), split.ends.tolist(), strict=True):
            for first in range(start, end - 1, length):
                stop = min(end, first + length)
                learned = np.ones(stop - first, bool) if split.learned is None else np.array(split.learned[first:stop])
                learned[0] = False
                chunks.append(Chunk(tokens=np.asarray(split.tokens[first:stop], dtype=np.int64), learned=learned))
    return chunks


def check_taps(taps: Sequence[int], lm: LM) -> tuple[int, ...]:
    """``taps`` sorted, with the last layer at the end, as the format requires. Raises ValueError for an unknown tap."""
    for tap in taps:
        if not 0 <= tap <= lm.num_layers:
            raise ValueError(f"tap {tap}: the target has {lm.num_layers} layers; give 0 (the embeddings) to that")
    return (*sorted(set(taps) - {lm.num_layers}), lm.num_layers)


def prepare_folder(
    folder: Path, chunks: Sequence[Chunk], *, taps: Sequence[int], identity: Mapping[str, object]
) -> list[int]:
    """Write what ``folder`` is to contain; returns the numbers of the rows that are missing.

    ``identity`` describes target and data. Raises ValueError if the folder contains something else.
    """
    rows = "".join(
        json.dumps({"input_ids": chunk.tokens.tolist(), "loss_mask": chunk.learned.astype(int).tolist()}) + "\n"
        for chunk in chunks
    )
    meta = {
        "layout": "vllm-project/speculators 0.7.0",
        "taps": list(taps),
        "num_rows": len(chunks),
        "texts": hashlib.sha256(rows.encode()).hexdigest()[:16],
        **identity,
    }
    path = folder / META_FILE
    if path.exists():
        former = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in sorted(former.keys() | meta.keys()) if former.get(name) != meta.get(name)]
        if changed:
            raise ValueError(
                f"{folder} holds hidden states with {changed[0]} {former.get(changed[0])}, and now it is "
                f"{meta.get(changed[0])}: give another --output"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and holds no {META_FILE}: give another --output")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(meta, indent=1) + "\n")  # first, so that an interrupted run can be completed
    (folder / HIDDEN_FOLDER).mkdir(exist_ok=True)
    if not (folder / ROWS_FILE).exists():
        write_atomic(folder / ROWS_FILE, rows)
    return [number for number in range(len(chunks)) if not sample_path(folder, number).exists()]


@torch.inference_mode()
def compute_hidden_states(
    lm: LM,
    chunks: Sequence[Chunk],
    numbers: Sequence[int],
    *,
    taps: Sequence[int],
    folder: Path,
    batch_size: int,
    done: Callable[[int], None],
) -> None:
    """Write the hidden states of rows ``numbers``, each file renamed once complete; calls ``done`` per batch."""
    for start in range(0, len(numbers), batch_size):
        batch = numbers[start : start + batch_size]
        lengths = [len(chunks[number].tokens) for number in batch]
        tokens = torch.zeros(len(batch), max(lengths), dtype=torch.long)
        for row, number in enumerate(batch):
            tokens[row, : lengths[row]] = torch.from_numpy(chunks[number].tokens)
        tokens, length = tokens.to(lm.device), torch.tensor(lengths, device=lm.device)
        cache = lm.new_cache(len(batch), max(lengths)).view()
        states = prefill(lm, cache, tokens, length, max(lengths), taps)
        hidden = torch.stack([states[tap] for tap in taps], dim=2).to(STORED_DTYPE)  # [B, T, L, H]
        for row, number in enumerate(batch):
            write_sample(folder, number, tokens[row, : lengths[row]], hidden[row, : lengths[row]])
        done(len(batch))
