"""Cuts a window's output at its timestamps into segments, and says how far the next window is: as transformers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.speech.checkpoint import STRIDE, Checkpoint

STEP = 0.02  # seconds between two timestamps, and between two positions of the encoder
FRAME = 0.01  # seconds between two frames of features


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Token ids of a segment, with its timestamps, and its start and end in seconds from the sound's beginning."""

    start: float
    end: float
    tokens: tuple[int, ...]


def cut(tokens: Sequence[int], *, seek: int, frames: int, checkpoint: Checkpoint) -> tuple[list[Cut], int]:
    """The segments of a window's ``tokens``, without end-of-text, and by how many frames the next window is later.

    The window begins at frame ``seek`` and has ``frames`` of sound. Two timestamps in a row end one segment and open
    the next. What follows the last pair is dropped and decoded again by the next window, unless a single timestamp
    ends it: then no speech follows. A window that ends where it begins is passed over whole, in which transformers
    would decode it for ever.
    """
    first = checkpoint.first_timestamp
    offset = seek * STEP / STRIDE
    stamps = [token >= first for token in tokens]
    single_end = stamps[-2:] == [False, True]
    ends = [at + 1 for at in range(len(stamps) - 1) if stamps[at] and stamps[at + 1]]
    if not ends:
        last = int(torch.tensor(frames) * FRAME / STEP)  # in float32, by which transformers rounds
        given = [token for token in tokens if token >= first]
        if given and given[-1] != first:
            last = given[-1] - first
        return [Cut(start=offset, end=offset + last * STEP, tokens=tuple(tokens))], frames
    if single_end:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # the last segment keeps the timestamp after its end, which says that it is no single one
    cuts: list[Cut] = []
    begin = 0
    for number, end in enumerate(ends):
        own = tuple(tokens[begin:end])
        closing = own[-1] if number < len(ends) - 1 or single_end else own[-2]
        cuts.append(Cut(start=offset + (own[0] - first) * STEP, end=offset + (closing - first) * STEP, tokens=own))
        begin = end
    if single_end:
        return cuts, frames
    return cuts, STRIDE * (tokens[begin - 2] - first) or frames


def cut_all(tokens: Sequence[int], *, seek: int, frames: int, checkpoint: Checkpoint) -> list[Cut]:
    """As ``cut``, of an output that was interrupted: its last segment, which nothing ends, ends with the window."""
    cuts, _ = cut(tokens, seek=seek, frames=frames, checkpoint=checkpoint)
    rest = tuple(tokens[sum(len(one.tokens) for one in cuts) :])
    if any(token < checkpoint.eos for token in rest):
        offset = seek * STEP / STRIDE
        cuts.append(Cut(start=cuts[-1].end, end=offset + frames * FRAME, tokens=rest))
    return cuts
