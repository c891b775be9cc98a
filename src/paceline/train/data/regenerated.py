"""A target's own outputs as training data: rows with a loss mask, or one array of token ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline.text.loops import is_looping
from paceline.train.data.sources.text_files import LEFT_OUT

LOOPS, LONG = "it loops", "it is longer than a window"
TIMED = "it has timestamps, though none were asked for"


def training_row(prompt: Sequence[int], tokens: Sequence[int], *, finish_reason: str) -> dict[str, object]:
    """What training reads of an output: input_ids and loss_mask; or why it is left out."""
    if is_looping(tokens):
        return left_out(LOOPS)
    mask = [0] * len(prompt) + [1] * len(tokens)
    return {"input_ids": [*prompt, *tokens], "loss_mask": mask, "finish_reason": finish_reason}


def left_out(reason: str, **more: object) -> dict[str, object]:
    """What training skips, and why."""
    return {LEFT_OUT: reason, **more}


def save_array(path: Path, rows: Sequence[Mapping[str, list[int]]]) -> None:
    """The ``input_ids`` of all rows in one array, concatenated."""
    ids = np.concatenate([np.asarray(row["input_ids"], dtype=np.int64) for row in rows])
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, ids.astype(np.min_scalar_type(int(ids.max()))))
    part.replace(path)
