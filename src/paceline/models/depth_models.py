"""What a head without attention computes at each depth of a draft, as a list of operations that a kernel can run.

B rows, S size of the state, H size of the stream.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from weakref import WeakValueDictionary

from torch import Tensor, nn


class Place(Enum):
    """Where an operation reads and writes, one row per node."""

    INPUT = "the state [S], and behind it the embedding of the node's token if the depth reads it"
    STREAM = "what the LM head reads [H]"
    INNER = "for what is added to the stream [H]"


@dataclass(frozen=True, slots=True)
class Product:
    """``target`` is ``source``, its first elements, through a linear layer with its bias."""

    layer: nn.Linear
    source: Place
    target: Place


@dataclass(frozen=True, slots=True)
class Normed:
    """``target`` is ``source`` after ``norm``, times ``factor``; an identity copies. Of INPUT it is the state."""

    norm: nn.Module
    source: Place
    target: Place
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Activated:
    """An activation function at ``place``."""

    function: Callable[[Tensor], Tensor]
    place: Place


@dataclass(frozen=True, slots=True)
class Added:
    """``source`` times ``factor`` is added to the stream. Of INPUT it is the embedding."""

    source: Place
    factor: float = 1.0


DepthOperation = Product | Normed | Activated | Added


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthModel:
    """One depth: its operations, run in order, and the LM head that reads the stream then.

    ``next_state`` is where the state of the nodes after is then: in the stream, or in all of INPUT.
    """

    state_size: int
    embedding: nn.Embedding | None  # of the node's token; None: the token is not read
    operations: tuple[DepthOperation, ...]
    next_state: Place
    lm_head: nn.Linear | nn.Embedding
    divisor: float = 1.0  # of the logits

    @property
    def input_size(self) -> int:
        """Of the state with the embedding."""
        return self.state_size + (0 if self.embedding is None else self.embedding.embedding_dim)

    @property
    def stream_size(self) -> int:
        """Of the stream, H."""
        head = self.lm_head
        return head.in_features if isinstance(head, nn.Linear) else head.embedding_dim


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class DepthModels:
    """All depths of a draft, the root's first, and what the logits of each are of.

    The root's begins with the feature as its state, the others with what the one before left.
    """

    depths: tuple[DepthModel, ...]
    draft_ids: Tensor | None = None  # [D] int64 the target ids of the logits; None: the same
    handle: int = field(init=False, default_factory=count().__next__)  # names it where only an integer can

    def __post_init__(self) -> None:
        DEPTH_MODELS[self.handle] = self


DEPTH_MODELS: WeakValueDictionary[int, DepthModels] = WeakValueDictionary()  # by their handles
