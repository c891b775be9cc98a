"""What a language model is to the rest of Paceline. Knows nothing of drafting, verifying or text.

B rows, n nodes of the call, V vocabulary, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.tree import Resume, Tree


class LogitsFor(Enum):
    """Where the output head runs: nowhere, on each row's last valid node, or on every node of the call."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Output:
    """Result of one forward. ``hidden[i]`` is the residual stream after i layers (0 = embeddings)."""

    logits: Tensor | None  # [B, n, V]; [B, 1, V] with Head.LAST; None with Head.NONE
    hidden: dict[int, Tensor]  # tap -> [B, n, H]
    conditional: Tensor | None = None  # under guidance, the logits [B, n, V] of the prompts themselves


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
        head: LogitsFor = LogitsFor.ALL,
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
class InputProjection:
    """What makes another model's hidden states stand for embeddings."""

    norm: nn.Module
    product: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInputs:
    """What a cache lacks of each row up to its root: the newest tokens of its text, or ``states`` in their place."""

    count: Tensor  # [B] int64, without the root; where below 0 the row reads nothing, not even that
    most: int  # static bound on count
    states: Tensor | None = (
        None  # [B, most, H]; with a stem [B, most + 1, H], to whose column count the root's is written
    )
    input_projection: InputProjection | None = None  # of these, not beside a stem


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLayers:
    """The first layers of another model, which read a token before a head goes on from their hidden state.

    D tokens are drafted; of ``hidden`` and ``added`` column d belongs to the one of depth d, column 0 to the root.
    """

    lm: LM
    cache: View  # of these layers; the root is its first scratch node, the token of depth d number d
    hidden: Tensor  # [B, 1 + D, H] contiguous: the residual stream after them, written where a valid token is read
    added: Tensor | None = None  # [B, 1 + D, H] what the head reads beside it


class FusedDrafting(ABC):
    """An LM that can also pick and read several tokens by itself, faster than call by call."""

    @abstractmethod
    def draft_fused(
        self,
        batch: Batch,
        cache: View,
        missing: PendingInputs,
        tokens: Tensor,
        valid: Tensor,
        *,
        greedy: bool,
        stem: SharedLayers | None = None,
    ) -> bool:
        """Read what is ``missing`` and the root of each row of ``batch``, and continue it by the model's own picks.

        ``tokens`` and ``valid`` [B, 1 + D] are contiguous, D at least 1; column 0 is the root. What is valid is written
        to ``tokens``, and all but the last column of it read. What is read lies then in the scratch of ``cache``: what
        was missing, the root, the draft. Tokens are what ``batch.pick`` gives at their positions for processed logits,
        or ``batch.likeliest`` where ``greedy``, ids that the batch does not know excepted. Returns False, and does
        nothing, where it cannot.

        With a ``stem``, that reads each token first, the root too, and the model goes on from what comes of it, as if
        it were ready before the first layer (core/tree.Resume).
        """
        ...


def max_sequence_length(lm: LM, *, num_nodes: int = 0) -> int:
    """Tokens of the longest text that ``lm`` can read with ``num_nodes`` drafted ones behind it; below 1 if none."""
    return lm.max_positions if lm.max_slots is None else min(lm.max_positions, lm.max_slots - num_nodes)
