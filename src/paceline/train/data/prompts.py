"""Prompts: prefixes of rows.

T tokens of a prompt.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.train.data.order import Shuffle
from paceline.train.data.packing import Packing


def choose_prompts(packings: Sequence[Packing], *, length: int, seed: int) -> Iterator[np.ndarray]:
    """A prompt [length] of every row that has one, int64, in an order that depends on ``seed``."""
    ends = np.cumsum([packing.num_rows for packing in packings])
    num_rows = int(ends[-1]) if len(ends) else 0
    order = Shuffle(size=max(1, num_rows), seed=seed, epoch=0)
    for number in range(num_rows):
        index = order[number]
        which = int(np.searchsorted(ends, index, side="right"))
        before = int(ends[which - 1]) if which else 0
        yield from _prompt(packings[which], index - before, length)


def _prompt(packing: Packing, index: int, length: int) -> Iterator[np.ndarray]:
    row, span = packing.row(index), packing.spans(index)[0]
    stop, size = length, span.stop - span.start
    if packing.split.learned is not None and row.learned[:size].any():
        stop = max(length, int(np.argmax(row.learned)))
    if stop < size:  # the document goes on after the prompt
        yield row.tokens[stop - length : stop]
