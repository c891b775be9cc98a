"""The ``LM`` protocol: a forward over a token tree and a slot cache, and the inputs of fused drafting.

B rows, n nodes of the call, V vocabulary, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.context import ContextInput
from paceline.core.tree import Draw, Resume, Tree
from paceline.models.block_input import BlockInput
from paceline.models.depth_models import DepthModels


class LogitsFor(Enum):
    """Which nodes of the call get logits: none, each row's last valid node, or all."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Output:
    """Result of one forward. ``hidden[i]`` is the residual stream after i layers (0 = embeddings)."""

    logits: Tensor | None  # [B, n, V]; [B, 1, V] with LogitsFor.LAST; None with LogitsFor.NONE
    hidden: dict[int, Tensor]  # tap -> [B, n, H]
    conditional: Tensor | None = None  # under guidance, the logits [B, n, V] of the prompts themselves

    def first(self, num_nodes: int) -> "Output":
        """Of the first nodes alone, as views."""
        of = (None if one is None else one[:, :num_nodes] for one in (self.logits, self.conditional))
        logits, conditional = of
        return Output(logits, {tap: states[:, :num_nodes] for tap, states in self.hidden.items()}, conditional)


class LM(Protocol):
    """An autoregressive model that scores token trees against a cache; it writes scratch slots only."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def max_slots(self) -> int | None:
        """The largest capacity that ``new_cache`` accepts; None if memory is the only limit."""
        ...

    @property
    def num_layers(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """Memory of one cache slot of one row over all layers, in bytes."""
        ...

    @property
    def context_bytes(self) -> int:
        """Memory of what one row keeps of its context, in bytes."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def context_inputs(self) -> Mapping[str, ContextInput]:
        """What it reads beside tokens, by name. A request to it as the target gives exactly these, maybe none."""
        ...

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """Storage for ``rows`` rows of ``capacity`` slots."""
        ...

    def admit(self, cache: View, admission: Admission) -> View:
        """Begin the admitted rows of ``cache``, a view of all rows; the view of these rows to read their prompts into.

        Called once per admission, before a prompt is read. Prefixes are copied, and the state of a row's context with
        them (``SlotCache.begin``); this state is computed and stored for the rows of ``admission.new_contexts``.
        """
        ...

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
    ) -> Output:
        """Score nodes ``start`` on of ``tree``; earlier nodes are in the cache's scratch from former calls.

        Node i of row b is written to slot length[b] + i and has position length[b] + depth[b, i]; it attends to the
        committed slots and its own ancestors. Only ``cache.commit`` makes a slot permanent.

        Of the taps, those of each row's last ``last_states`` valid nodes are read (None: of all nodes); others may hold
        anything. A view of some layers runs those alone. With ``resume``, nodes of this call that are ready start
        after its layers; ``taps`` must not be below these. Raises ValueError where the model supports neither.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class InputProjection:
    """A norm and a linear layer that map another model's hidden states to this model's input embeddings."""

    norm: nn.Module
    product: nn.Linear
    handle: int = field(init=False, default_factory=count().__next__)  # names it where only an integer can

    def __post_init__(self) -> None:
        INPUT_PROJECTIONS[self.handle] = self


INPUT_PROJECTIONS: WeakValueDictionary[int, InputProjection] = WeakValueDictionary()  # by their handles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class PairInput:
    """How a head reads pairs of a token's embedding and a feature, both as wide as its residual stream.

    ``embedding_norm`` and ``feature_norm`` (None: nothing) are applied to the two, and ``product`` joins them to the
    stream; None: the first block reads both, the embedding first (models/native/pair_block).
    """

    embedding_norm: nn.Module | None = None
    feature_norm: nn.Module | None = None
    product: nn.Linear | None = None
    embedding_first: bool = True  # in what ``product`` reads
    zero_first: bool = False  # the embedding at position 0 is zero
    normed_output: bool = False  # drafted tokens are paired with what the last norm gives, not with what it reads
    draft_ids: Tensor | None = None  # [D] int64 the target ids of the head's logits; None: the same
    handle: int = field(init=False, default_factory=count().__next__)  # names it where only an integer can

    def __post_init__(self) -> None:
        PAIR_INPUTS[self.handle] = self


PAIR_INPUTS: WeakValueDictionary[int, PairInput] = WeakValueDictionary()  # by their handles


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInputs:
    """Inputs of each row up to its root that are not in the cache yet: its newest tokens, or ``states`` instead.

    With ``pairs`` or ``depth_models``, ``states`` are features, each paired with the token after it; the last one's is
    the root, which ``count`` and ``max_count`` include then, and a row with a count of 0 reads nothing. With ``block``
    they are the target's states at the taps, and the cache takes nothing but these.
    """

    count: Tensor  # [B] int64, without the root; a row with a negative count reads nothing, not even the root
    max_count: int  # static bound on count
    states: Tensor | None = (
        None  # [B, max_count, H]; with shared layers [B, max_count + 1, H]: the root's state is written to column count
    )
    input_projection: InputProjection | None = None  # applied to states; not with shared layers
    pairs: PairInput | None = None  # neither with shared layers nor an input projection
    depth_models: DepthModels | None = None  # in place of the LM, with one state per row; with nothing of the above
    block: BlockInput | None = None  # how the head reads them and drafts all depths at once; with nothing of the above
    own_ids: Tensor | None = None  # [D] int64 the target ids of the LM's logits; None: the same

    @property
    def draft_ids(self) -> Tensor | None:
        """The target ids of the logits [D]; None: the same."""
        reads = self.pairs or self.depth_models or self.block
        return self.own_ids if reads is None else reads.draft_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLayers:
    """The first layers of the target, run on each token before a draft head continues from their hidden state.

    D tokens are drafted; column d of ``hidden`` and ``added`` belongs to depth d, column 0 to the root.
    """

    lm: LM
    cache: View  # of these layers; the root is its first scratch node, the token of depth d is node d
    hidden: Tensor  # [B, 1 + D, H] contiguous: the residual stream after these layers, written for valid tokens
    added: Tensor | None = None  # [B, 1 + D, H] added to it before the draft head reads it


class FusedDrafting(ABC):
    """An LM that can also draft several tokens in one call, which is faster than one call per token."""

    # Draws whose tokens it gives. Who makes one that draws by recorded probabilities adds these to the tree.
    fused_draws: frozenset[Draw] = frozenset({Draw.FIXED, Draw.SHARED})

    @abstractmethod
    def draft_fused(
        self,
        batch: Batch,
        cache: View,
        pending: PendingInputs,
        tokens: Tensor,
        valid: Tensor,
        *,
        greedy: bool,
        shared_layers: SharedLayers | None = None,
    ) -> bool:
        """Read the ``pending`` inputs and the root of each row of ``batch``, then draft a chain with the model's picks.

        ``tokens`` and ``valid`` [B, 1 + D] are contiguous, D at least 1; column 0 is the root. Valid drafted tokens are
        written to ``tokens``; all but the last column is read by the model. Where ``batch.early_stop`` ends a chain,
        the rest of it is cleared in ``valid``, as is the draft of a row without a pending pair. The scratch of
        ``cache`` then holds the pending inputs, the root and the draft. Tokens are those of ``batch.pick`` at their
        positions on processed logits, or of ``batch.likeliest`` if ``greedy``; ids outside the batch's vocabulary are
        excluded. Returns False, and does nothing, where the model cannot do this.

        With ``shared_layers``, these read each token first, the root included, and the model continues from their
        hidden state, as if it were ready before the first layer (core/tree.Resume).
        """
        ...


class BlockReading(ABC):
    """An LM that can also read what a block head waits to read, and a block after it, in one call."""

    @abstractmethod
    def read_block(self, cache: View, pending: PendingInputs, tokens: Tensor, valid: Tensor) -> Output:
        """The states of ``pending``, whose keys and values are written to the scratch of ``cache``, and then a block.

        Column 0 of ``tokens`` and ``valid`` [B, 1 + D], which are contiguous, is the root. Gives the logits [B, b, V]
        of the b slots, 0 for those that draft nothing valid, and the hidden states after the last layer.
        """
        ...


def max_sequence_length(lm: LM, *, num_nodes: int = 0) -> int:
    """Tokens of the longest sequence that ``lm`` can read with ``num_nodes`` draft nodes after it; below 1 if none."""
    return lm.max_positions if lm.max_slots is None else min(lm.max_positions, lm.max_slots - num_nodes)
