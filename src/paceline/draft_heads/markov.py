"""Heads of a block head that add, to a slot's own logits, logits by the tokens before it.

``after`` [K, r] times what a head makes of the embedding e [r] of the token before, the slot's hidden state, and its
own state, which follows from the slots before. r rank, b slots of a block, H hidden size, V the target's vocabulary, K
the draft's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MarkovKind: TypeAlias = Literal["vanilla", "gated", "rnn", "bilinear", "refiner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovSizes:
    """What the parts of a head are made for."""

    target_vocab: int  # V
    vocab: int  # K
    rank: int  # r
    hidden_size: int  # H
    block_size: int  # b
    first_slot: int  # that predicts a token
    ratio: int  # of a refiner's feed-forward network to its rank


class MarkovHead(nn.Module):
    """``after`` reads e itself: "vanilla" (DSpark, 2607.05147)."""

    parallel = True  # whether no slot needs another's state

    def __init__(self, sizes: MarkovSizes) -> None:
        super().__init__()
        self.first_slot = sizes.first_slot
        self.before = nn.Embedding.from_pretrained(torch.empty(sizes.target_vocab, sizes.rank), freeze=False)
        self.after = nn.Linear(sizes.rank, sizes.vocab, bias=False)

    def begin(self, block: Tensor, known: Tensor) -> Tensor:
        """The state [..., s] before the first slot that predicts, of ``block`` [..., b, H].

        ``known`` [..., 2] are the token before the block, and the block's first. A first slot that predicts nothing
        counts as the others do.
        """
        return block.new_zeros(*known.shape[:-1], 0)

    def make(self, embedded: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What ``after`` reads [..., r], of e ``embedded`` [..., r], and the next state. See ``forward``."""
        return embedded, state

    def forward(self, before: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [..., K] after the tokens ``before`` [...] by ``slot`` [...], and the next state.

        ``hidden`` [..., H] are the states that the LM head reads there, ``state`` [..., s] that of the slot before.
        """
        made, state = self.make(self.before(before), hidden, slot, state)
        return self.after(made), state

    def unroll(self, before: Tensor, block: Tensor, known: Tensor) -> Tensor:
        """Logits [..., D, K] of the last D slots of ``block`` [..., b, H], whose tokens ``before`` [..., D] are known.

        ``known`` is as in ``begin``.
        """
        depth, size = before.shape[-1], block.shape[-2]
        slots = torch.arange(size - depth, size, device=before.device)
        hidden, state = block[..., size - depth :, :], self.begin(block, known)
        if self.parallel:
            return self(before, hidden, slots.expand_as(before), state[..., None, :])[0]
        found: list[Tensor] = []
        for at in range(depth):
            logits, state = self(before[..., at], hidden[..., at, :], slots[at].expand(before.shape[:-1]), state)
            found.append(logits)
        return torch.stack(found, dim=-2)


@final
class GatedHead(MarkovHead):
    """e times a gate by e and the slot's hidden state: "gated" (DSpark)."""

    def __init__(self, sizes: MarkovSizes) -> None:
        super().__init__(sizes)
        self.gate = nn.Linear(sizes.hidden_size + sizes.rank, sizes.rank)

    def make(self, embedded: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(self.gate(torch.cat((hidden, embedded), dim=-1))) * embedded, state


@final
class RecurrentHead(MarkovHead):
    """What a recurrent state gives: "rnn" (DSpark).

    The state follows from its former value, e and the slot's hidden state.
    """

    parallel = False

    def __init__(self, sizes: MarkovSizes) -> None:
        super().__init__(sizes)
        self.joint = nn.Linear(2 * sizes.rank + sizes.hidden_size, 3 * sizes.rank)

    def begin(self, block: Tensor, known: Tensor) -> Tensor:
        state = block.new_zeros(*known.shape[:-1], self.after.in_features)
        if self.first_slot == 0:
            return state
        anchor = known[..., 1]
        return self.make(self.before(anchor), block[..., 0, :], torch.zeros_like(anchor), state)[1]

    def make(self, embedded: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate, out = self.joint(torch.cat((state, embedded, hidden), dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(candidate)


@final
class BilinearHead(MarkovHead):
    """e times a projection of the slot's hidden state, element by element: "bilinear" (the selector of DFlash 2)."""

    def __init__(self, sizes: MarkovSizes) -> None:
        super().__init__(sizes)
        self.project = nn.Linear(sizes.hidden_size, sizes.rank, bias=False)

    def make(self, embedded: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return embedded * self.project(hidden), state


@final
class RefinerHead(MarkovHead):
    """A mixture over the slots up to this one of e, their hidden states and the block's mean: "refiner" (xPress,
    2608.02438).

    It is published with passes over a whole block, each of which reads the tokens of the pass before. Tokens that are
    drafted one after the other are what these passes come to in the end. The state of a slot is the block's mean [r],
    projected, and what the slots so far add to each of the block [b, r].
    """

    parallel = False

    def __init__(self, sizes: MarkovSizes) -> None:
        super().__init__(sizes)
        rank, inner = sizes.rank, sizes.rank * sizes.ratio
        self.block_size = sizes.block_size
        self.down_slot = nn.Linear(sizes.hidden_size, rank, bias=False)
        self.down_block = nn.Linear(sizes.hidden_size, rank, bias=False)
        self.join = nn.Linear(3 * rank, rank, bias=False)
        self.mix = nn.Parameter(torch.empty(rank, sizes.block_size, sizes.block_size))  # [r, to, from]
        self.gate_up = nn.Linear(rank, 2 * inner, bias=False)
        self.down = nn.Linear(inner, rank, bias=False)

    def begin(self, block: Tensor, known: Tensor) -> Tensor:
        mean, before = self.down_block(block.mean(dim=-2)), known[..., 0]
        state = torch.cat((mean, mean.new_zeros(*before.shape, self.block_size * mean.shape[-1])), dim=-1)
        if self.first_slot == 0:
            return state
        return self._mixed(self.before(before), block[..., 0, :], torch.zeros_like(before), state)[1]

    def make(self, embedded: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        mixed, state = self._mixed(embedded, hidden, slot, state)
        gate, up = self.gate_up(mixed).chunk(2, dim=-1)
        return mixed + self.down(F.silu(gate) * up), state

    def _mixed(self, embedded: Tensor, hidden: Tensor, slot: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The slot's own part with those of the slots before it [..., r], and the next state."""
        rank = embedded.shape[-1]
        mean, sums = state[..., :rank], state[..., rank:].unflatten(-1, (self.block_size, rank))
        own = self.join(torch.cat((self.down_slot(hidden), mean, embedded), dim=-1))
        given = self.mix.permute(2, 1, 0)[slot]  # [..., b, r]: to each slot; those before this one are read no more
        sums = sums + given * own[..., None, :]
        here = sums.gather(-2, slot[..., None, None].expand(*slot.shape, 1, rank))[..., 0, :]
        return own + here, torch.cat((mean, sums.flatten(-2)), dim=-1)


MARKOV_HEADS: Mapping[MarkovKind, type[MarkovHead]] = {
    "vanilla": MarkovHead,
    "gated": GatedHead,
    "rnn": RecurrentHead,
    "bilinear": BilinearHead,
    "refiner": RefinerHead,
}
