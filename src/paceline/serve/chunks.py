"""How the tokens of a stream are divided into events."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import final

from paceline.api.results import Piece


def _output(piece: Piece) -> tuple[int, int]:
    return piece.index, piece.sample


@final
class Chunks:
    """Gives the pieces of each output together: those of a step, or with ``size`` always so many, the last ones apart.

    How many tokens come at once tells how many were accepted, and so something of the text to whoever sees only the
    sizes of packets (2411.01076); chunks of one size do not.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size
        self._held: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)

    def add(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        """What is to be sent after ``pieces`` have come."""
        for output, group in groupby(pieces, key=_output):
            if self.size is None:
                yield list(group)
                continue
            held = self._held[output]
            for piece in group:
                held.append(piece)
                if len(held) == self.size or piece.finish_reason is not None:
                    yield held.copy()
                    held.clear()

    def rest(self) -> Iterator[list[Piece]]:
        """What is left of outputs that ended without a last piece."""
        yield from (held for held in self._held.values() if held)
