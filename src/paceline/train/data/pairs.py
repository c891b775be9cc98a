"""Rows of pairs: one pair a row, an output of at most T + 1 tokens and what an encoder reads for it.

T inputs of a row, D documents.
"""

import logging
from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from paceline.train.data.config import SoundsSource
from paceline.train.data.manifest import Split
from paceline.train.data.packing import Packing, Row
from paceline.train.data.pair_encoder import PairEncoder
from paceline.train.data.sources.pairs import SoundFeatures, SoundLines
from paceline.train.data.store import TokenisedSplit
from paceline.train.data.tokenise import TokenisedSource

logger = logging.getLogger("paceline")


@final
class PairPacking(Packing):
    """Pairs whose source has at most ``max_source`` tokens and whose output fits a row, one a row; others are left out.

    ``sound`` (None: sources are tokens) gives the features of a document by its number.
    """

    def __init__(
        self, split: TokenisedSplit, *, length: int, max_source: int, sound: Callable[[int], Tensor] | None = None
    ) -> None:
        self._max_source, self._sound = max_source, sound
        self._source = np.zeros(len(split.ends), np.int64) if split.source is None else split.source  # [D] tokens
        super().__init__(split, length=length, segmented=False)

    @property
    def num_unused(self) -> int:
        """Tokens of pairs that are left out."""
        used = np.searchsorted(self.starts, self._first)
        return int(self.split.ends[-1] - (self.split.ends - self.starts)[used].sum())

    @property
    def left_out(self) -> dict[str, int]:
        """How many pairs are left out, by the reason."""
        long = self._source > self._max_source
        too_long = ~long & (self._sizes() > self.length + 1)
        rest = len(self.starts) - len(self._first) - int(long.sum() + too_long.sum())
        found = {
            f"have more than the {self._max_source} tokens that the encoder reads": int(long.sum()),
            f"have outputs of more than batch.length={self.length} tokens behind the first": int(too_long.sum()),
            "have outputs of which nothing is learned": rest,
        }
        return {reason: count for reason, count in found.items() if count}

    def row(self, index: int) -> Row:
        """A pair. Padding of the output has token 0 and is not learned."""
        first = self._start(index)
        document = int(np.searchsorted(self.split.ends, first, side="right"))
        begin, stop = first + int(self._source[document]), self._stop(first)
        tokens, learned = np.zeros(self.length + 1, np.int64), np.zeros(self.length + 1, bool)
        tokens[: stop - begin] = self.split.tokens[begin:stop]
        learned[: stop - begin] = True if self.split.learned is None else self.split.learned[begin:stop]
        source = (
            torch.from_numpy(self.split.tokens[first:begin].astype(np.int64))
            if self._sound is None
            else self._sound(document)
        )
        return Row(tokens=tokens, learned=learned, segment=np.zeros(self.length + 1, np.int64), source=source)

    def _sizes(self) -> np.ndarray:
        """Of the outputs [D]."""
        return self.split.ends - self.starts - self._source

    def _row_starts(self) -> np.ndarray:
        fits = (self._source <= self._max_source) & (self._sizes() <= self.length + 1)
        if self.split.learned is not None:
            fits &= np.add.reduceat(self.split.learned.view(np.uint8), self.starts, dtype=np.int64) > 0
        return self.starts[fits]

    def _stop(self, first: int) -> int:
        return int(self.split.ends[np.searchsorted(self.split.ends, first, side="right")])

    def _rows_with_learned(self) -> None:
        """All: the others are not among them."""


def pack_pairs(
    part: TokenisedSource, split: Split, tokens: TokenisedSplit, encoder: PairEncoder, *, length: int
) -> PairPacking:
    """The pairs of a split of a source; says how many are left out."""
    sound = _SoundsOf(part, split, tokens, encoder) if isinstance(part.source, SoundsSource) else None
    packing = PairPacking(tokens, length=length, max_source=encoder.model.max_source, sound=sound)
    for reason, count in packing.left_out.items():
        logger.warning(f"{part.records[0].name}: {count} of {len(tokens.ends)} pairs are left out: they {reason}")
    return packing


@final
class _SoundsOf:
    """The features of the sound of each document of a split."""

    def __init__(self, part: TokenisedSource, split: Split, tokens: TokenisedSplit, encoder: PairEncoder) -> None:
        assert isinstance(part.source, SoundsSource)
        lines, self._features = SoundLines(part.source, encoder), SoundFeatures(encoder)
        index = {file.name: at for at, file in enumerate(lines.files())}
        self._paths = []
        origins = iter(tokens.origin.tolist())
        for record in part.records:
            if record.split == split.value:
                sounds = lines.sounds(index[record.name])
                self._paths.extend(sounds[next(origins)] for _ in range(record.num_documents))

    def __call__(self, document: int) -> Tensor:
        return self._features(self._paths[document])
