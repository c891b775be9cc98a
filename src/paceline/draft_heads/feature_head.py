"""The base of heads that draft from one hidden state of the target without attention: Medusa, Hydra, MLP speculator.

B rows, T tokens, A anchors, D depths, N independent nodes, H the target's hidden size, W the width of a node's state, V
vocabulary.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHead, DraftHeadConfig, Unrolled
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.layers import (
    all_learned,
    anchor_positions,
    gather_preceding,
    sample_anchors,
)
from paceline.models.depth_models import DepthModel, DepthModels, DepthOperation, Normed, Place
from paceline.models.native.decoder import DecoderLM


class FeatureHeadConfig(DraftHeadConfig):
    """What every such head says of itself."""

    depth: int = Field(default=4, ge=1)  # draft tokens that it predicts, and the most that it drafts
    normalized: bool = True  # whether the feature is the state after the target's final norm, or the one before it
    draft_vocab_size: int | None = Field(default=None, ge=1)  # tokens that it drafts, of the target's; None: all
    anchors: int | None = Field(default=None, ge=1)  # drawn per row in training; None: all

    @property
    def trained_depth(self) -> int | None:
        return self.depth


class FeatureHead(DraftHead):
    """A state per node of the draft, which follows from the state of its parent and its own token.

    The draft begins with the feature: the target's state of the token before the root, which is what the target itself
    predicted the root from. Depth 0 is the root, whose logits predict the first drafted token. ``decoder`` is the
    target without its layers, for the norm, the embedding and the LM head.
    """

    reads_tokens: ClassVar[bool]  # whether a node's logits depend on its token and those before it
    sizes: FeatureHeadConfig

    def __init__(
        self, config: FeatureHeadConfig, num_layers: int, decoder: DecoderLM, draft_vocab: DraftVocab | None
    ) -> None:
        super().__init__()
        self.config = self.sizes = config
        self.draft_vocab = draft_vocab
        self._taps = (num_layers,)
        self.decoder = decoder

    @property
    def reads_all_states(self) -> bool:
        """Whether the feature depends on the target's states before its own."""
        return False

    @abstractmethod
    def advance(self, states: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """The states [N, W] of nodes at ``depth`` from those of their parents [N, W] and their ``tokens`` [N].

        The root's parent has the state that ``begin`` gives.
        """

    @abstractmethod
    def hidden_of(self, states: Tensor, depth: int) -> Tensor:
        """What the LM head of ``depth`` reads, from the states [N, W] of nodes there."""

    @abstractmethod
    def lm_head_of(self, depth: int) -> nn.Linear | nn.Embedding:
        """The LM head of ``depth``: a linear layer, or the embedding that it is tied to."""

    @abstractmethod
    def depth_model(self, depth: int) -> DepthModel:
        """What ``advance``, ``hidden_of`` and ``lm_head_of`` do at ``depth``, for kernels."""

    @property
    def depth_models(self) -> DepthModels:
        """All depths, with what ``read_feature`` and ``begin`` do before the first, by the weights that it has now."""
        first, *others = (self.depth_model(depth) for depth in range(self.sizes.depth))
        return DepthModels(
            depths=(replace(first, operations=(*self.first_operations, *first.operations)), *others),
            draft_ids=self.draft_ids,
        )

    @property
    def first_operations(self) -> tuple[DepthOperation, ...]:
        """What ``read_feature`` and ``begin`` do."""
        return (Normed(self.decoder.norm, Place.INPUT, Place.INPUT),) if self.sizes.normalized else ()

    def begin(self, feature: Tensor) -> Tensor:
        """The state [N, W] that the root's follows from, of the ``feature`` [N, H]."""
        return feature

    def in_context(self, hidden: Tensor, segment: Tensor | None) -> Tensor:
        """What is kept of the target's ``hidden`` states [B, T, H] of whole sequences: these, or what has read them.

        ``segment`` [B, T] as in models/attention.CausalAttention.
        """
        return hidden

    def read_feature(self, hidden: Tensor) -> Tensor:
        """The feature [N, H] of what ``in_context`` gives."""
        return self.decoder.norm(hidden) if self.sizes.normalized else hidden

    def logits_of(self, states: Tensor, depth: int) -> Tensor:
        """The draft logits [N, V] after nodes at ``depth`` with these ``states`` [N, W]."""
        return self.multiply(self.lm_head_of(depth), self.hidden_of(states, depth))

    @property
    def products(self) -> list[nn.Linear | nn.Embedding]:
        """All that are its own, and the LM heads."""
        heads = [self.lm_head_of(depth) for depth in range(self.sizes.depth)]
        own = [layer for part in self.own.values() for layer in part.modules() if isinstance(layer, nn.Linear)]
        return [*own, *heads]

    @property
    def taps(self) -> tuple[int, ...]:
        """The residual stream after the target's last layer."""
        return self._taps

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        return self.decoder.config.hidden_size

    @property
    def draft_vocab_size(self) -> int:
        """Tokens that its logits are of."""
        return self.decoder.vocab_size if self.draft_vocab is None else len(self.draft_vocab.ids)

    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """See DraftHead. Anchor a is the token that is the root: its draft sees the state before it."""
        depth = self.sizes.depth
        anchors, share = sample_anchors(all_learned(tokens, learned), self.sizes.anchors, generator)
        position, weight = anchor_positions(anchors, depth, segment, length=tokens.shape[1])
        known = self.in_context(hidden[self._taps[0]], segment)
        before = gather_preceding(known, anchors, 1, segment)  # [B, A, 1, H]
        drafted = tokens.gather(1, position.flatten(1)).view(-1, depth)  # [B * A, D]
        states, logits = self.begin(self.read_feature(before.flatten(0, 2))), []
        for at in range(depth):
            states = self.advance(states, drafted[:, at], at)
            logits.append(self.logits_of(states, at))
        return Unrolled(
            logits=torch.stack(logits, dim=1).view(*position.shape, -1),
            position=position,
            weight=weight * share[..., None],
            draft_ids=self.draft_ids,
        )


def bare_decoder(target: DecoderLM) -> DecoderLM:
    """``target`` without its layers, on the same weights."""
    with torch.device("meta"):
        decoder = DecoderLM(target.config.apart(num_layers=0))
    decoder.share_ends(target)
    return decoder
