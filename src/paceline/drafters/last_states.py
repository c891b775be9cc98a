"""The target's last hidden states before each row's root, kept from step to step. Knows no drafter.

R rows, B admitted rows, s states, N nodes, D depth, H hidden size.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.tree import Outcome, Tree
from paceline.draft_heads.base import DraftHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.hidden_states import path_hidden
from paceline.models.base import Output
from paceline.models.native.decoder import DecoderLM


@final
class LastHiddenStates:
    """The last ``count`` states of every row at one ``tap``; zeros where the text has no so many tokens.

    Of a text that begins with others' tokens the last ``count`` must have been read for it (Drafter.num_reread).
    """

    def __init__(
        self, *, tap: int, count: int, rows: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tap = tap
        self.held = torch.zeros(rows, count, hidden_size, dtype=dtype, device=device)  # [R, s, H]
        self.index = torch.arange(count, device=device)

    def begin(self, admission: Admission, hidden: Mapping[int, Tensor]) -> None:
        """Take those before the roots of the admitted rows from what was read of their prompts (Drafter.prefill)."""
        rows, count, size = len(admission.rows), *self.held.shape[1:]
        fresh = self.held.new_zeros(rows, count, size)
        if self.tap in hidden:  # else nobody had anything to read
            read = hidden[self.tap]
            at = (admission.known - admission.prefix_length)[:, None] - count + self.index  # [B, s]
            found = read.gather(1, at.clamp(min=0)[..., None].expand(-1, -1, size))
            fresh = torch.where((at >= 0)[..., None], found, fresh)
        self.held.index_copy_(0, admission.rows, fresh)

    def advance(self, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Add those of the root and of each row's own accepted path."""
        known = torch.cat((self.held, path_hidden(output, self.tap, tree, outcome)), dim=1)  # [R, s + 1 + D, H]
        last = outcome.num_committed[:, None] + self.index
        self.held.copy_(known.gather(1, last[..., None].expand(-1, -1, known.shape[-1])))


def check_target(head: DraftHead, decoder: DecoderLM, context: DrafterContext) -> None:
    """Raise ValueError for a target that cannot be that of ``head``, which ``decoder`` is a part of."""
    target = context.target
    if (target.num_layers, target.vocab_size) != (head.taps[-1], decoder.vocab_size):
        raise ValueError(
            f"a head of a target of {head.taps[-1]} layers and {decoder.vocab_size} tokens, and the target has "
            f"{target.num_layers} and {target.vocab_size}: give the head's own target"
        )
