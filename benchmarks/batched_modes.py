"""Decoders that draft alike and let their rows advance in three modes: independently, in lock-step, realigned.

Realigned rows are padded on the left so that all end at one slot, and moved there again after every step (2510.22876).
Elsewhere slots are positions, and rows end independently. There all caches of a decoder share an offset per row, which
mask and slots respect. Token buffers are not moved, which is in favour of this way.

L layers, R rows, S slots, H key-value heads, E head size; B rows of a view, n nodes or slots of a call, N nodes, D path
depth, k draft tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from benchmarks.decoders import longest, make_decoder, sequences_of, step
from benchmarks.study import check_counts, plural
from paceline.api import Loaded
from paceline.api.build import build_drafter
from paceline.api.cross_vocabulary import SAME, choose_exchange
from paceline.api.loading import runnable
from paceline.bench.timing import Clock
from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View, Zeros
from paceline.core.request import Request
from paceline.core.scores import Scores
from paceline.core.stats import Summary
from paceline.core.tree import Draw, Outcome, Tree
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.models.base import max_sequence_length
from paceline.models.native.attention import CacheAttention, ScoreBias, TreeAttention
from paceline.models.native.decoder import DecoderLM
from paceline.verifiers.coupled import Coupled

PER_ROW, LOCK_STEP, REALIGNED = "per row", "lock-step", "realigned"
AGAIN = f"{PER_ROW}, again"  # the control
EAGER, KERNEL = "eager", "kernel"
WARM_UP = 3  # steps


@final
class LockStep:
    """``coupled``, cut to the least that any active row accepts; chains only.

    A row that is cut goes on with the target's own token at that place, which is the one that it had accepted there. So
    outputs are those of plain decoding, and rows that began together stay together.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = Coupled.wants
    branches: ClassVar[bool] = False

    def __init__(self) -> None:
        self.coupled = Coupled()

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """What ``coupled`` decides, cut."""
        full = self.coupled(tree, scores, batch)
        assert full.picks is not None and tree.chain
        accepted = full.num_committed - 1
        least = torch.where(batch.active, accepted, tree.max_depth).min()
        accepted = torch.minimum(accepted, least)  # rows that have ended accept nothing anyway
        depth = torch.arange(1, tree.max_depth + 1, device=accepted.device)
        return Outcome(
            path=torch.where(depth <= accepted[:, None], full.path, -1),
            num_committed=accepted + 1,
            next=full.picks.gather(1, accepted[:, None])[:, 0],  # in a chain a node's number is its depth
            picks=full.picks,
        )


@dataclass(frozen=True, slots=True)
class _Buffers:
    """A cache and a spare one of the same size; a move swaps them."""

    cache: SlotCache
    spare: list[Tensor]


@final
class Alignment:
    """Where the first token of each row is in its caches: at the slot ``offset`` [R]."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.offset = torch.zeros(rows, dtype=torch.int64, device=device)
        self._caches: list[_Buffers] = []

    def keep(self, cache: SlotCache) -> SlotCache:
        """``cache``, moved with the others from now on."""
        self._caches.append(_Buffers(cache, [torch.zeros_like(cache.keys), torch.zeros_like(cache.values)]))
        return cache

    def begin(self, length: Sequence[int]) -> None:
        """Pad empty rows for prompts of ``length`` tokens."""
        given = torch.tensor(length, device=self.offset.device)
        self.offset.copy_(given.max() - given)

    def align(self, length: Tensor) -> None:
        """Move all rows so that texts of ``length`` [R] tokens end at one slot; nothing where they do already."""
        end = length.max()
        offset = end - length
        if torch.equal(offset, self.offset):
            return
        shift = (offset - self.offset)[:, None]
        slot = torch.arange(int(end), device=shift.device)
        for buffers in self._caches:
            cache = buffers.cache
            # What comes from beside a row's slots lies in its padding, which nothing reads.
            source = (slot - shift).clamp(0, cache.capacity - 1)
            former = [cache.keys, cache.values]
            for store, into in zip(former, buffers.spare, strict=True):
                _gather(store, source, into)
            cache.keys, cache.values = buffers.spare
            buffers.spare[:] = former
        self.offset.copy_(offset)

    def attention(
        self, tree: Tree, cache: View, start: int, *, max_positions: int, group: int, bias: ScoreBias | None = None
    ) -> CacheAttention:
        """A AttentionFactory (models/flex) over caches that it keeps."""
        offset = self.offset if cache.rows is None else self.offset[cache.rows]
        return _AlignedAttention(tree, cache, start, offset, max_positions=max_positions, group=group)


def _gather(store: Tensor, source: Tensor, into: Tensor) -> None:
    """Slots ``source`` [R, n] of each row in every layer of ``store`` [L, R + 1, S, H, E] to the first of ``into``."""
    size = store.shape[-1] * store.itemsize
    # Elements are copied one by one: the wider, the fewer.
    wide = next(dtype for dtype in (torch.complex128, torch.float64, store.dtype) if size % dtype.itemsize == 0)
    rows = torch.arange(len(source), device=source.device)[:, None]
    out = into.view(wide)[:, : len(source), : source.shape[1]]
    torch.ops.aten.index.Tensor_out(store.view(wide), [None, rows, source], out=out)


@final
class _AlignedAttention(TreeAttention):
    """Dense attention that leaves out the padding; ``offset`` [B] slots of it."""

    def __init__(self, tree: Tree, cache: View, start: int, offset: Tensor, *, max_positions: int, group: int) -> None:
        CacheAttention.__init__(self, tree, cache, start, max_positions=max_positions)
        self.slots = (self.slots + offset[:, None]).clamp(max=cache.capacity - 1)
        slot = torch.arange(cache.capacity, device=offset.device) - offset[:, None]  # [B, S] in the row's own count
        node = slot - cache.length[:, None]
        index = node.clamp(0, tree.num_nodes - 1)[:, None, :].expand(-1, tree.num_nodes - start, -1)
        own = tree.ancestors[:, start:].gather(2, index) & (node < tree.num_nodes)[:, None, :]
        seen = torch.where((node < 0)[:, None, :], (slot >= 0)[:, None, :], own)
        added = torch.zeros_like(seen, dtype=cache.dtype).masked_fill(~seen, -torch.inf)
        self.mask = added.repeat(1, group, 1)[:, None]


class AlignedLM(DecoderLM):
    """``lm`` on its own weights, over caches that ``alignment`` keeps."""

    def __init__(self, lm: DecoderLM, alignment: Alignment) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(lm.__dict__)  # the very parts
        self.alignment, self.attention = alignment, alignment.attention

    def new_cache(self, rows: int, capacity: int, *, zeros: Zeros | None = None) -> SlotCache:
        """As the decoder's own, and as much memory again."""
        return self.alignment.keep(super().new_cache(rows, capacity, zeros=zeros))


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
    if (way := choose_exchange(target, draft).way) != SAME:
        raise ValueError(
            f"draft {draft.name} has another vocabulary than {target.name} (vocabulary={way}): give another"
        )
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
