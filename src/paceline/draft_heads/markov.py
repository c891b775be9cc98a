"""The Markov head of a block head: logits that the tokens before a slot add to the slot's own (DSpark, 2607.05147).

r rank, H hidden size, V the target's vocabulary, K the draft's.
"""

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn

MarkovKind: TypeAlias = Literal["vanilla", "gated", "rnn"]


@final
class MarkovHead(nn.Module):
    """``after`` [K, r] times what is made of the embedding e [r] of the token before.

    That is e itself ("vanilla"); e times a gate that reads it and the slot's hidden state ("gated"); or what a
    recurrent state of the block gives, which follows from its former value, e and the slot's hidden state ("rnn").
    """

    def __init__(self, target_vocab: int, vocab: int, rank: int, hidden_size: int, kind: MarkovKind) -> None:
        super().__init__()
        self.before = nn.Embedding.from_pretrained(torch.empty(target_vocab, rank), freeze=False)
        self.after = nn.Linear(rank, vocab, bias=False)
        self.gate = nn.Linear(hidden_size + rank, rank) if kind == "gated" else None
        self.joint = nn.Linear(2 * rank + hidden_size, 3 * rank) if kind == "rnn" else None

    def begin(self, hidden: Tensor) -> Tensor:
        """The state [..., r] before the first slot, of ``hidden`` [..., H]; [..., 0] where there is none."""
        return hidden.new_zeros(*hidden.shape[:-1], 0 if self.joint is None else self.after.in_features)

    def forward(self, before: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [..., K] after the tokens ``before`` [...] by slots of ``hidden`` [..., H], and the next state.

        ``hidden`` are the states that the LM head reads, ``state`` [..., r] that of the slot before.
        """
        embedded = self.before(before)
        if self.gate is not None:
            return self.after(torch.sigmoid(self.gate(torch.cat((hidden, embedded), dim=-1))) * embedded), state
        if self.joint is None:
            return self.after(embedded), state
        gate, candidate, out = self.joint(torch.cat((state, embedded, hidden), dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return self.after(torch.tanh(out)), gate * state + (1 - gate) * torch.tanh(candidate)

    def unroll(self, before: Tensor, hidden: Tensor) -> Tensor:
        """Logits [..., D, K] of all slots, whose tokens ``before`` [..., D] are known, by ``hidden`` [..., D, H]."""
        if self.joint is None:
            return self(before, hidden, self.begin(hidden))[0]
        state, found = self.begin(hidden[..., 0, :]), list[Tensor]()
        for slot in range(before.shape[-1]):
            logits, state = self(before[..., slot], hidden[..., slot, :], state)
            found.append(logits)
        return torch.stack(found, dim=-2)
