"""What the benchmark asks of a peer, and how one is missing. Knows no peer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Protocol

import torch

from paceline.bench.runner import Configuration, Sample
from paceline.bench.sweep import Cell, Ways
from paceline.core import files
from paceline.core.stats import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What all peers are given alike: directories of models, precision, device, threads and the cores they may use.

    ``isa`` is the instruction set that they are limited to; None is whatever they choose.
    """

    target: Path
    draft: Path | None
    dtype: torch.dtype
    device: torch.device
    num_threads: int
    cores: tuple[int, ...]
    isa: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerUnavailable:
    """A peer that is not there; the reason says what would bring it."""

    name: str
    reason: str


class Peer(Protocol):
    """Somebody else's decoder, loaded when its first configuration is made."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def ways(self) -> Ways: ...

    def decoding(self, name: str, cell: Cell, *, prompts: Sequence[Sequence[int]], seed: int) -> Configuration:
        """One of its ways over all ``prompts``, in groups of the cell's batch size that begin together.

        Every text gets exactly the cell's number of tokens, end-of-text or not. Prompt i is sampled with ``seed`` + i
        where the peer takes a seed for each. Raises ValueError for what it cannot do, DecodingFailed where it
        does not start.
        """
        ...

    def close(self) -> None:
        """End what it started; a configuration made before cannot run any more."""
        ...


def counted(tokens: Sequence[Sequence[int]], steps: Sequence[int]) -> Sample:
    """Outputs and the steps that each took, where nothing is known of drafts."""
    texts = tuple(
        Summary(steps=number, emitted=len(text), drafted=[], accepted=[])
        for text, number in zip(tokens, steps, strict=True)
    )
    return Sample(tokens=tuple(map(tuple, tokens)), summary=reduce(add, texts), texts=texts)


def room(cell: Cell, prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of the longest text with a draft behind it."""
    return max(map(len, prompts)) + cell.max_tokens + cell.num_draft_tokens + 1


def cache_folder() -> Path:
    """Where models are kept that were written anew for a peer."""
    return files.cache_folder("peers")
