"""How a block head drafts, for a kernel that drafts a whole chain in one call.

H hidden size of the target and of the head, S taps, L layers, K key-value heads, E head size, V the target's
vocabulary, D the draft's, r rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakValueDictionary

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class BlockInput:
    """Keys and values of a sequence are made of the target's states, those of a block by the layers of the head.

    States go through ``product`` and ``norm``, and then for all layers at once through ``keys_values``, whose outputs
    are [L, 2, K, E]. Slot 0 reads the root, the others ``mask``; the first draft token is predicted by ``first_slot``.
    """

    num_slots: int
    first_slot: int
    product: nn.Linear  # [H, S * H]
    norm: nn.Module
    keys_values: nn.Linear
    key_norms: Sequence[nn.Module]  # of each layer, over E; empty: none
    mask: Tensor  # [H] contiguous
    markov: tuple[nn.Embedding, nn.Linear] | None = None  # [V, r] of the token before, [D, r] added to the logits
    confidence: nn.Linear | None = None  # [1, H or H + r] of the state that the LM head reads, and the token before
    whole: bool = True  # whether logits follow from these parts alone; else others add to them
    draft_ids: Tensor | None = None  # [D] int64 the target ids of the head's logits; None: the same
    handle: int = field(init=False, default_factory=count().__next__)  # names it where only an integer can

    def __post_init__(self) -> None:
        BLOCK_INPUTS[self.handle] = self


BLOCK_INPUTS: WeakValueDictionary[int, BlockInput] = WeakValueDictionary()  # by their handles
