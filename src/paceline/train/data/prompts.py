"""Beginnings of rows, to be continued by a model. Continues nothing.

T tokens of a prompt.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.train.data.order import Shuffle
from paceline.train.data.packing import Packing


def choose_prompts(packings: Sequence[Packing], *, length: int, seed: int) -> Iterator[np.ndarray]:
    """A prompt [length] of every row that has one, in an order that ``seed`` decides; all are int64."""
    ends = np.cumsum([packing.num_rows for packing in packings])
    order = Shuffle(size=max(1, int(ends[-1]) if len(ends) else 0), seed=seed, epoch=0)
    for number in range(int(ends[-1]) if len(ends) else 0):
        index = order[number]
        which = int(np.searchsorted(ends, index, side="right"))
        before = int(ends[which - 1]) if which else 0
        yield from _prompt(packings[which], index - before, length)


def _prompt(packing: Packing, index: int, length: int) -> Iterator[np.ndarray]:
    row, span = packing.row(index), packing.spans(index)[0]
    stop, size = length, span.stop - span.start
    if packing.stored.learned is not None and row.learned[:size].any():
        stop = max(length, int(np.argmax(row.learned)))
    if stop < size:  # something of the document is left to be said
        yield row.tokens[stop - length : stop]
