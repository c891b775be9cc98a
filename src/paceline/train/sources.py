"""Token files as training data. Knows nothing of text.

P prompts, T tokens each.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from paceline.train.batches import Batches
from paceline.train.data import Crops


class TokensSource(BaseModel):
    """Token ids of the target: .npy arrays [N] or [P, T]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["tokens"]
    paths: tuple[str, ...] = Field(min_length=1)
    split: Literal["train", "validation"] = "train"


class DataConfig(BaseModel):
    """Where rows come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: tuple[TokensSource, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Batches to train on, and what is held out."""

    batches: Batches
    held_out: Batches
    manifest: str  # JSON: files and their hashes

    def prompts(self, count: int, length: int) -> np.ndarray:
        """The beginnings of held-out rows: [count, length]."""
        rows, step = [], 0
        while len(rows) < count:
            rows.extend(self.held_out.batch(step, range(self.held_out.rows)).tokens[:, :length].numpy())
            step += 1
        return np.stack(rows[:count])


def make_batches(config: DataConfig, *, rows: int, length: int, seed: int, vocab_size: int) -> Prepared:
    """Read the files. Raises ValueError for files that are missing, and ids beyond the vocabulary."""
    split: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
    files = []
    for source in config.sources:
        for path in map(Path, source.paths):
            tokens = np.load(path, allow_pickle=False)
            if tokens.max(initial=0) >= vocab_size:
                raise ValueError(f"{path} holds token {tokens.max()}; the target knows {vocab_size}: encode it again")
            split[source.split].append(tokens)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            files.append({"name": str(path), "sha256": digest, "split": source.split})
    for name, found in split.items():
        if not found:
            raise ValueError(f"data.sources: none of split {name}; give one, for nothing is measured on trained text")
    train, held_out = (
        Crops([(one, len(one)) for one in found], rows=rows, length=length, seed=own)
        for found, own in ((split["train"], seed), (split["validation"], seed + 1))
    )
    return Prepared(batches=train, held_out=held_out, manifest=json.dumps(files, indent=1))
