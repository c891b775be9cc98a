"""Peers that are programs: held open between the configurations that use them. Knows no particular one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar, final

from paceline.bench.peers.base import PeerSettings, room
from paceline.bench.runner import Configuration, Sample
from paceline.bench.sweep import Cell, Ways

Key: TypeAlias = tuple[str, int, int, int]  # way, draft length, batch size, tokens of the longest text


class Program(Protocol):
    """What is held."""

    @property
    def has_ended(self) -> bool: ...

    def close(self) -> None: ...


P = TypeVar("P", bound=Program)


@final
class ProgramPool(Generic[P]):
    """At most ``limit`` programs, each under a key that says how it was started; the oldest is closed for a new one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._programs: dict[object, P] = {}

    def get(self, key: object, start: Callable[[], P]) -> P:
        """The program of this key; started where there is none, or it has ended."""
        found = self._programs.get(key)
        if found is not None and not found.has_ended:
            return found
        if found is not None:
            self._programs.pop(key).close()
        while len(self._programs) >= self._limit:
            self._programs.pop(next(iter(self._programs))).close()
        self._programs[key] = start()
        return self._programs[key]

    @property
    def last(self) -> P:
        """The one that was started last."""
        return list(self._programs.values())[-1]

    def close(self) -> None:
        """Close all."""
        while self._programs:
            self._programs.popitem()[1].close()


@dataclass(slots=True, kw_only=True)
class ProgramPeer(ABC, Generic[P]):
    """A peer whose program is started anew for every way, draft length, batch size and length of text."""

    plain: ClassVar[str]  # the way without a draft, which is the peer's own name too
    drafts: ClassVar[tuple[str, ...]]  # the ways that need a draft model

    setting: PeerSettings
    version: str
    copies: tuple[str, ...]  # the ways that draft from the text itself
    programs: ProgramPool[P]

    @property
    def name(self) -> str:
        return self.plain

    @property
    def ways(self) -> Ways:
        """It drafts for whole batches."""
        drafting = () if self.setting.draft is None else self.drafts
        return Ways(plain=self.plain, drafting=(*drafting, *self.copies), batches=True, programs=True)

    def decoding(self, name: str, cell: Cell, *, prompts: Sequence[Sequence[int]], seed: int) -> Configuration:
        """One of its ways over all ``prompts``; a group is one call."""
        key = (cell.drafter, cell.num_draft_tokens, cell.batch_size, room(cell, prompts))
        program = self.programs.get(key, lambda: self.start(key))

        def part(at: int) -> Sample:
            group = [list(prompt) for prompt in prompts[at : at + cell.batch_size]]
            return self.decode(program, cell, group, seed + at)

        return Configuration(name=name, parts=[partial(part, at) for at in range(0, len(prompts), cell.batch_size)])

    def close(self) -> None:
        """End its programs."""
        self.programs.close()

    @abstractmethod
    def start(self, key: Key) -> P:
        """A program for what is timed alike. Raises DecodingFailed where it does not start."""

    @abstractmethod
    def decode(self, program: P, cell: Cell, prompts: list[list[int]], seed: int) -> Sample:
        """What it emits for ``prompts``, in its turn; ``seed`` is that of the first."""
