"""Decoders that draft alike and let their rows advance in three ways. Decides nothing, and prints nothing.

B rows, k draft tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from benchmarks.batched.align import AlignedLM, Alignment
from benchmarks.batched.lockstep import LockStep
from paceline.api import Loaded
from paceline.api.build import build_drafter
from paceline.api.loading import runnable
from paceline.bench.timing import Clock
from paceline.core.batch import Finish
from paceline.core.parts import Parts
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.stats import Summary
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.engine.runner import parts_for
from paceline.models.base import max_sequence_length
from paceline.models.native.decoder import DecoderLM
from paceline.verifiers.coupled import Coupled

PER_ROW, LOCK_STEP, REALIGNED = "per row", "lock-step", "realigned"
AGAIN = f"{PER_ROW}, again"  # the control
EAGER, KERNEL = "eager", "kernel"
WARM_UP = 3  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A batch that all ways decode. Raises ValueError for counts that leave no step and for unknown runtimes."""

    runtime: str  # what runs forwards: EAGER, or KERNEL, which cannot realign
    num_rows: int
    num_draft_tokens: int

    def __post_init__(self) -> None:
        for name in ("num_rows", "num_draft_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")
        if self.runtime not in (EAGER, KERNEL):
            raise ValueError(f"runtime={self.runtime!r}: known are {EAGER}, {KERNEL}")

    @property
    def name(self) -> str:
        rows = f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}"
        return f"{self.runtime}, {rows}, k = {self.num_draft_tokens}"

    @property
    def ways(self) -> tuple[str, ...]:
        """What is compared."""
        return (PER_ROW, LOCK_STEP, REALIGNED, AGAIN) if self.runtime == EAGER else (PER_ROW, LOCK_STEP, AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What became of one group of prompts."""

    texts: list[list[int]]  # prompts included
    num_steps: int  # until the last row had ended
    summary: Summary
    aligning: float  # seconds


@final
class Way:
    """One way through ``groups`` of requests, one group after another and from the first again."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        alignment: Alignment | None,
        groups: Sequence[Sequence[Request]],
        clock: Clock,
    ) -> None:
        self.decoder, self.alignment, self.groups, self.clock = decoder, alignment, groups, clock
        self.done: list[Decoded] = []

    def begin(self) -> None:
        """Read the prompts of the next group."""
        group = self.groups[len(self.done) % len(self.groups)]
        if self.alignment is not None:
            self.alignment.begin([len(request.tokens) for request in group])
        self.decoder.admit(group, range(len(group)))

    def decode(self, *, most: int | None = None) -> None:
        """Decode them until the last row has ended, or for ``most`` steps, of which nothing is kept."""
        num_steps, aligning, running = 0, 0.0, True
        while running and num_steps != most:
            self.decoder.step()
            running = Finish.RUNNING in self.decoder.read().finish
            num_steps += 1
            if running and self.alignment is not None:
                start = self.clock()
                self.alignment.align(self.decoder.batch.length)
                aligning += self.clock() - start
        if not running:
            summary = self.decoder.stats.summary()
            self.done.append(Decoded(texts=self._texts(), num_steps=num_steps, summary=summary, aligning=aligning))

    def _texts(self) -> list[list[int]]:
        batch = self.decoder.batch
        rows = zip(batch.tokens.tolist(), batch.length.tolist(), strict=True)
        return [text[:length] for text, length in rows]


def prepare(
    cell: Cell, *, target: Loaded, draft: Loaded, prompts: Sequence[Sequence[int]], num_tokens: int, clock: Clock
) -> dict[str, Way]:
    """The ways of ``cell``, each with a decoder of its own that has taken a few steps.

    Greedy continuations of exactly ``num_tokens`` tokens, B ``prompts`` at a time; ``clock`` times moves. Raises
    ValueError for prompts that make no whole batches, texts that either model cannot hold, a draft of another
    vocabulary, and a runtime that the target does not have.
    """
    if len(prompts) % cell.num_rows:
        raise ValueError(f"{len(prompts)} prompts make no batches of {cell.num_rows}; give a number that it divides")
    _check_runtime(cell, target)
    requests = [Request(tokens=prompt, max_tokens=num_tokens) for prompt in prompts]
    groups = [requests[at : at + cell.num_rows] for at in range(0, len(requests), cell.num_rows)]
    max_length = max(map(len, prompts)) + num_tokens
    _check_draft(draft, max_length, cell.num_draft_tokens)
    ways: dict[str, Way] = {}
    for name in cell.ways:
        alignment = Alignment(cell.num_rows, target.lm.device) if name == REALIGNED else None
        decoder = _decoder(cell, target, draft, max_length, alignment, locked=name == LOCK_STEP)
        ways[name] = way = Way(decoder=decoder, alignment=alignment, groups=groups, clock=clock)
        way.begin()
        way.decode(most=min(WARM_UP, (num_tokens - 1) // (cell.num_draft_tokens + 1)))
    return ways


def _decoder(
    cell: Cell, target: Loaded, draft: Loaded, max_length: int, alignment: Alignment | None, *, locked: bool
) -> Decoder:
    drafter, lm = build_drafter(draft, target=target), runnable(target)
    if alignment is not None:
        assert isinstance(target.lm, DecoderLM) and isinstance(draft.lm, DecoderLM)
        drafter, lm = ModelDrafter(lm=AlignedLM(draft.lm, alignment)), AlignedLM(target.lm, alignment)
    return Decoder(
        target=lm,
        drafter=drafter,
        verifier=LockStep() if locked else Coupled(),
        plan=Fixed(cell.num_draft_tokens),
        rows=cell.num_rows,
        max_length=max_length,
        parts=Parts() if cell.runtime == EAGER else parts_for(target.lm.device),
    )


def _check_runtime(cell: Cell, target: Loaded) -> None:
    if (runnable(target) is target.lm) != (cell.runtime == EAGER):
        raise ValueError(f"runtime={cell.runtime!r}: this target does not run so here; give the other one")


def _check_draft(draft: Loaded, max_length: int, num_draft_tokens: int) -> None:
    reach = max_sequence_length(draft.lm, num_nodes=num_draft_tokens + 1)
    if max_length > reach:
        raise ValueError(f"texts of {max_length} tokens leave the draft's context of {reach}; give fewer tokens")
