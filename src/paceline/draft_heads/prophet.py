"""A small decoder over the target's last hidden states and the tokens after them (the prophet transformer).

Its sequence is [state o - s + 1, ..., state o, token o + 1, token o + 2, ...]: it sees the sequence through s states
alone, so the cost of a draft does not depend on its length. B rows, T tokens, A anchors, D depths, s states, H the
target's hidden size, W the prophet's width, V vocabulary."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHead, DraftHeadConfig, ReducibleConfig, Unrolled
from paceline.draft_heads.layers import (
    all_learned,
    anchor_positions,
    gather_preceding,
    materialize,
    own_tensors,
    random_weights,
    sample_anchors,
)
from paceline.models.base import LogitsFor
from paceline.models.native.config import AttentionConfig, DecoderConfig, FFNConfig, Multipliers
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import RMSNorm, RotaryConfig

ROTARY_BASE = 10000.0
NORM_EPS = 1e-6


class ProphetConfig(ReducibleConfig):
    """Sizes of a prophet; None follows the target, scaled to the width."""

    num_states: int = Field(default=2, ge=1)
    num_blocks: int = Field(default=1, ge=1)
    width: int | None = Field(default=None, ge=2)  # None: the target's, whose embedding and head it shares
    ffn_size: int | None = Field(default=None, ge=1)
    num_heads: int | None = Field(default=None, ge=1)
    num_kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=2)
    norm_eps: float = Field(default=NORM_EPS, gt=0)
    depth: int = Field(default=5, ge=1)  # tokens that it learns to predict; it may draft more
    anchors: int | None = Field(default=None, ge=1)  # drawn per row in training; None: all

    @property
    def trained_depth(self) -> int | None:
        return self.depth

    def decoder(self, target: DecoderConfig) -> DecoderConfig:
        """The configuration of its decoder: plain blocks, for any kind of target.

        Raises ValueError for heads that no key-value heads can be shared among.
        """
        width = target.hidden_size if self.width is None else self.width
        head_dim = self.head_dim or min(target.head_dim, width)
        num_heads = self.num_heads or max(1, target.num_heads * width // target.hidden_size)
        group = target.num_heads // target.num_kv_heads
        num_kv_heads = self.num_kv_heads or (num_heads // group if num_heads % group == 0 else num_heads)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads={num_heads} and num_kv_heads={num_kv_heads}: give a divisor of the former")
        factors = target.multipliers if self.width is None else Multipliers()
        turned = range(0, head_dim - 1, 2)
        return DecoderConfig(
            vocab_size=target.vocab_size,
            hidden_size=width,
            num_layers=self.num_blocks,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            ffn_size=self.ffn_size or max(1, target.ffn_size * width // target.hidden_size),
            max_positions=max(target.max_positions, self.num_states + self.depth),
            norm_eps=self.norm_eps,
            rotary=RotaryConfig(tuple(ROTARY_BASE ** (-i / head_dim) for i in turned)),
            norm=RMSNorm,
            attention=AttentionConfig(),
            ffn=FFNConfig(),
            multipliers=replace(factors, residual=1.0),
            tied_head=self.width is not None or target.tied_head,
        )


@final
class ProphetHead(DraftHead):
    """Runs ``project(norm(state))`` and embedded tokens through ``decoder``, which may share the target's embedding."""

    kind: ClassVar[str] = "prophet"
    Config: ClassVar[type[DraftHeadConfig]] = ProphetConfig

    def __init__(self, config: ProphetConfig, target: DecoderConfig, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.sizes = config
        self._taps = (target.num_layers,)
        self.norm = RMSNorm(target.hidden_size, config.norm_eps)
        self.project = nn.Linear(target.hidden_size, decoder.config.hidden_size, bias=False)
        self.decoder = decoder

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, ProphetConfig)
        with torch.device("meta"):
            decoder = DecoderLM(config.decoder(target.config))
            head = cls(config, target.config, decoder)
        if config.width is None:
            decoder.embed, decoder.head = target.embed, target.head
        # outputs to the residual stream, scaled down with its depth
        small = ("attention.output.weight", "ffn.down.weight")
        factor = (2 * config.num_blocks) ** -0.5
        materialize(
            head.own,
            {
                name: part * factor if name.endswith(small) else part
                for name, part in random_weights(own_tensors(head.own), generator).items()
            },
            target,
        )
        assert decoder.rotary is not None
        decoder.rotary.to(target.device)
        head.choose_vocab(config, target)
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        """The residual stream after the target's last layer."""
        return self._taps

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        return self.project.in_features

    @property
    def own(self) -> dict[str, nn.Module]:
        own = {"norm": self.norm, "project": self.project}
        own |= {"decoder.blocks": self.decoder.blocks, "decoder.norm": self.decoder.norm}
        return own if self.sizes.width is None else {**own, "decoder.embed": self.decoder.embed}

    def embed_states(self, states: Tensor) -> Tensor:
        """The inputs [B, s, W] of ``states`` [B, s, H]; zeros for zeros."""
        return self.project(self.norm(states))

    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """See DraftHead. Anchor a is the token that is the root: its draft sees the s states before it.

        A block mask over one long row would be the same; as all blocks have one length it is a matter of shape.
        """
        config, stream = self.sizes, self.sizes.num_blocks
        anchors, share = sample_anchors(all_learned(tokens, learned), config.anchors, generator)  # [B, A]
        position, weight = anchor_positions(anchors, config.depth, segment, length=tokens.shape[1])
        before = gather_preceding(hidden[self._taps[0]], anchors, config.num_states, segment)  # [B, A, s, H]
        drafted = tokens.gather(1, position.flatten(1)).view(-1, config.depth)  # [B * A, D]
        embedded = self.decoder.embed_inputs(drafted, torch.zeros_like(drafted))
        sequence = torch.cat((self.embed_states(before.flatten(0, 1)), embedded), dim=1)  # [B * A, s + D, W]
        found = self.decoder.causal_from_embeds(sequence, taps=(stream,), logits_for=LogitsFor.NONE).hidden[stream]
        logits = self.decoder.compute_logits(found[:, config.num_states :], self.draft_ids)
        return Unrolled(
            logits=logits.view(*position.shape, -1),
            position=position,
            weight=weight * share[..., None],
            draft_ids=self.draft_ids,
        )
