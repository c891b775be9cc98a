"""What a language model is to the rest of Paceline. Knows nothing of drafting, verifying or text.

B rows, n nodes of the call, V vocabulary, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.tree import Resume, Tree


class Head(Enum):
    """Where the output head runs: nowhere, on each row's last valid node, or on every node of the call."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Output:
    """Result of one forward. ``hidden[i]`` is the residual stream after i layers (0 = embeddings)."""

    logits: Tensor | None  # [B, n, V]; [B, 1, V] with Head.LAST; None with Head.NONE
    hidden: dict[int, Tensor]  # tap -> [B, n, H]


class LM(Protocol):
    """An autoregressive model that scores trees against a cache it writes scratch slots of."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def max_slots(self) -> int | None:
        """The most slots per row that ``new_cache`` gives; None where the memory is the only limit."""
        ...

    @property
    def num_layers(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """Memory of one cache slot of one row over all layers, in bytes."""
        ...

    @property
    def device(self) -> torch.device: ...

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """Storage for ``rows`` rows of ``capacity`` slots."""
        ...

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        head: Head = Head.ALL,
        resume: Resume | None = None,
    ) -> Output:
        """Score nodes ``start`` on of ``tree``; earlier nodes are in the cache's scratch from former calls.

        Node i of row b is written to slot length[b] + i and sits at position length[b] + depth[b, i]; it attends to
        the committed slots and its own ancestors. Only ``cache.commit`` makes a slot lasting.

        A view of some layers runs those alone. With ``resume``, of the nodes of this call, those that are ready begin
        after its layers; ``taps`` are then not below these. Raises ValueError where the model cannot do either.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """The first layers of another model, which read a token before a head goes on from their hidden state.

    D tokens are drafted; of ``hidden`` and ``added`` column d belongs to the one of depth d, column 0 to the root.
    """

    lm: LM
    cache: View  # of these layers; the root is its first scratch node, the token of depth d number d
    hidden: Tensor  # [B, 1 + D, H] contiguous: the residual stream after them, written where a valid token is read
    added: Tensor | None = None  # [B, 1 + D, H] what the head reads beside it


class Ahead(ABC):
    """An LM that can also pick and read several tokens by itself, faster than call by call."""

    @abstractmethod
    def run_ahead(
        self,
        batch: Batch,
        cache: View,
        logits: Tensor,
        tokens: Tensor,
        valid: Tensor,
        *,
        greedy: bool,
        stem: Stem | None = None,
    ) -> bool:
        """Continue each row of ``batch`` by its own picks, from the ``logits`` [B, 1, V] after its root.

        ``tokens`` and ``valid`` [B, 1 + D] are contiguous; column 0 is the root, which ``cache`` has read. What is
        valid is written to ``tokens``, and all but the last column of it read into the scratch of ``cache``. Tokens are
        what ``batch.pick`` gives at their positions for processed logits, or ``batch.likeliest`` where ``greedy``. V
        may be larger or smaller than the model's vocabulary: ids that only one of them has are not picked. Returns
        False, and does nothing, where it cannot.

        With a ``stem``, that reads each token first, and the model goes on from what comes of it, as if it were ready
        before the first layer (core/tree.Resume). ``cache`` has committed the root; ``hidden`` has it already.
        """
        ...


def longest_text(lm: LM, *, num_nodes: int = 0) -> int:
    """Tokens of the longest text that ``lm`` can read with ``num_nodes`` drafted ones behind it; below 1 if none."""
    return lm.max_positions if lm.max_slots is None else min(lm.max_positions, lm.max_slots - num_nodes)
