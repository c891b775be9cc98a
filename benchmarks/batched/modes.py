"""Decoders that draft alike and let their rows advance in three modes. Decides nothing, and prints nothing.

B rows, k draft tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from benchmarks.batched.align import AlignedLM, Alignment
from benchmarks.batched.lock_step import LockStep
from benchmarks.decoders import longest, make_decoder, sequences_of, step
from benchmarks.study import check_counts, plural
from paceline.api import Loaded
from paceline.api.build import build_drafter
from paceline.api.loading import runnable
from paceline.bench.timing import Clock
from paceline.core.request import Request
from paceline.core.stats import Summary
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.models.base import max_sequence_length
from paceline.models.native.decoder import DecoderLM

PER_ROW, LOCK_STEP, REALIGNED = "per row", "lock-step", "realigned"
AGAIN = f"{PER_ROW}, again"  # the control
EAGER, KERNEL = "eager", "kernel"
WARM_UP = 3  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A batch that is decoded in all modes. Raises ValueError for counts that leave no step and unknown runtimes."""

    runtime: str  # what runs forwards: EAGER, or KERNEL, which cannot realign
    num_rows: int
    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_counts(num_rows=self.num_rows, num_draft_tokens=self.num_draft_tokens)
        if self.runtime not in (EAGER, KERNEL):
            raise ValueError(f"runtime={self.runtime!r}: known are {EAGER}, {KERNEL}")

    @property
    def name(self) -> str:
        return f"{self.runtime}, {plural(self.num_rows)}, k = {self.num_draft_tokens}"

    @property
    def modes(self) -> tuple[str, ...]:
        """What is compared."""
        return (PER_ROW, LOCK_STEP, REALIGNED, AGAIN) if self.runtime == EAGER else (PER_ROW, LOCK_STEP, AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What became of one group of prompts."""

    sequences: list[list[int]]  # prompts included
    num_steps: int  # until the last row had ended
    summary: Summary
    aligning: float  # seconds


@final
class Mode:
    """One mode of decoding ``groups`` of requests, one group after another and from the first again."""

    def __init__(
        self, *, decoder: Decoder, alignment: Alignment | None, groups: Sequence[Sequence[Request]], clock: Clock
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
            running = step(self.decoder)
            num_steps += 1
            if running and self.alignment is not None:
                start = self.clock()
                self.alignment.align(self.decoder.batch.length)
                aligning += self.clock() - start
        if not running:
            summary, sequences = self.decoder.stats.summary(), sequences_of(self.decoder)
            self.done.append(Decoded(sequences=sequences, num_steps=num_steps, summary=summary, aligning=aligning))


def prepare(
    cell: Cell, *, target: Loaded, draft: Loaded, prompts: Sequence[Sequence[int]], num_tokens: int, clock: Clock
) -> dict[str, Mode]:
    """The modes of ``cell``, each with a decoder of its own that has taken a few steps.

    Greedy outputs of exactly ``num_tokens`` tokens, B ``prompts`` at a time; ``clock`` times moves. Raises ValueError
    for prompts that make no whole batches, outputs that either model cannot hold, a draft of another vocabulary, and a
    runtime that the target does not have.
    """
    if len(prompts) % cell.num_rows:
        raise ValueError(f"{len(prompts)} prompts make no batches of {cell.num_rows}; give a number that it divides")
    if (runnable(target) is target.lm) != (cell.runtime == EAGER):
        raise ValueError(f"runtime={cell.runtime!r}: this target does not run so here; give the other one")
    requests = [Request(tokens=prompt, max_tokens=num_tokens) for prompt in prompts]
    groups = [requests[at : at + cell.num_rows] for at in range(0, len(requests), cell.num_rows)]
    max_length = longest(prompts) + num_tokens
    reach = max_sequence_length(draft.lm, num_nodes=cell.num_draft_tokens + 1)
    if max_length > reach:
        raise ValueError(f"{max_length} tokens leave the draft's context of {reach}; give fewer tokens")
    modes: dict[str, Mode] = {}
    for name in cell.modes:
        alignment = Alignment(cell.num_rows, target.lm.device) if name == REALIGNED else None
        drafter, lm = build_drafter(draft, target=target), runnable(target)
        if alignment is not None:
            assert isinstance(target.lm, DecoderLM) and isinstance(draft.lm, DecoderLM)
            drafter, lm = ModelDrafter(lm=AlignedLM(draft.lm, alignment)), AlignedLM(target.lm, alignment)
        decoder = make_decoder(
            lm,
            drafter=drafter,
            verifier=LockStep() if name == LOCK_STEP else None,
            num_draft_tokens=cell.num_draft_tokens,
            rows=cell.num_rows,
            max_length=max_length,
            eager=cell.runtime == EAGER,
        )
        modes[name] = mode = Mode(decoder=decoder, alignment=alignment, groups=groups, clock=clock)
        mode.begin()
        mode.decode(most=min(WARM_UP, (num_tokens - 1) // (cell.num_draft_tokens + 1)))
    return modes
