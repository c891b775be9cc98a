"""Draft heads that read pairs: a feature of the target at one token, and the token after it (EAGLE, MTP).

Pair t is (feature t, token t + 1); what comes out predicts token t + 2 and is the feature of the next pair of a draft.
B rows, T tokens, n pairs, A anchors, D depths, H hidden size of the target, W of the head, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from paceline.draft_heads.base import DraftHead, DraftHeadConfig, Unrolled
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.layers import (
    all_learned,
    anchor_positions,
    materialize,
    own_tensors,
    random_weights,
    sample_anchors,
)
from paceline.draft_heads.unrolled_attention import UnrolledAttention
from paceline.models.base import PairInput
from paceline.models.families.base import rotary
from paceline.models.native.config import AttentionConfig, DecoderConfig, FFNConfig, Multipliers, NormSpan
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import OffsetRMSNorm, RMSNorm, RotaryConfig


class PairConfig(DraftHeadConfig):
    """Sizes and training of a head over pairs; sizes of None are the target's."""

    num_layers: int = Field(default=1, ge=1)
    ffn_size: int | None = Field(default=None, ge=1)
    num_heads: int | None = Field(default=None, ge=1)
    num_kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=2)
    norm_eps: float | None = Field(default=1e-6, gt=0)  # None: the target's
    norm_offset: bool = False  # norms multiply by one plus their weight, as Gemma's
    qk_norm: bool = False  # norms of queries and keys, per head
    attention_bias: bool = False  # of queries, keys and values
    output_bias: bool = False  # of the attention's output
    rope_theta: float | None = Field(default=10000.0, gt=0)  # None: the target's rotary embedding
    rope_scaling: dict[str, Any] | None = None  # as rope_parameters of a config.json, without the base
    depth: int = Field(default=5, ge=1)  # steps that training unrolls; it may draft more
    depth_decay: float = Field(default=0.8, gt=0, le=1)  # of the loss, per step
    anchors: int | None = Field(default=None, ge=1)  # drawn per row in training; None: all
    detach_steps: bool = False  # whether a step's gradient stops at what the step before gave (HASS, 2408.15766)

    @property
    def trained_depth(self) -> int | None:
        return self.depth

    @property
    def depth_weights(self) -> tuple[float, ...] | None:
        return tuple(self.depth_decay**step for step in range(self.depth))

    def decoder(self, target: DecoderConfig, *, hidden_size: int | None = None) -> DecoderConfig:
        """The configuration of its blocks. Raises ValueError for heads that no key-value heads can be shared among, and
        for those that the target's rotary embedding is not of.
        """
        width = hidden_size or target.hidden_size
        head_dim = self.head_dim or target.head_dim
        num_heads = self.num_heads or target.num_heads
        num_kv_heads = self.num_kv_heads or (num_heads if self.num_heads else target.num_kv_heads)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads={num_heads} and num_kv_heads={num_kv_heads}: give a divisor of the former")
        return DecoderConfig(
            vocab_size=target.vocab_size,
            hidden_size=width,
            num_layers=self.num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            ffn_size=self.ffn_size or target.ffn_size,
            max_positions=target.max_positions,
            norm_eps=self.norm_eps or target.norm_eps,
            rotary=self._rotary(head_dim, width, num_heads, target),
            norm=OffsetRMSNorm if self.norm_offset else RMSNorm,
            attention=AttentionConfig(
                bias=self.attention_bias,
                output_bias=self.output_bias,
                norm_span=NormSpan.HEAD if self.qk_norm else None,
            ),
            ffn=FFNConfig(),
            multipliers=Multipliers(logits=target.multipliers.logits),
        )

    def _rotary(self, head_dim: int, width: int, num_heads: int, target: DecoderConfig) -> RotaryConfig:
        theta = self.rope_theta
        if theta is None:
            if self.rope_scaling is not None:
                raise ValueError(f"rope_scaling={self.rope_scaling} without rope_theta: give both, or none of them")
            if target.rotary is not None and head_dim != target.head_dim:
                raise ValueError(
                    f"head_dim={head_dim}: the target's rotary embedding is of heads of {target.head_dim}, so give "
                    "rope_theta"
                )
            if target.rotary is not None:
                return target.rotary
            theta = 10000.0
        if self.rope_scaling is None:
            return RotaryConfig(tuple(theta ** (-i / head_dim) for i in range(0, head_dim - 1, 2)))
        fields: dict[str, object] = {
            "model_type": "llama",
            "hidden_size": width,
            "num_attention_heads": num_heads,
            "head_dim": head_dim,
            "max_position_embeddings": target.max_positions,
            "rope_parameters": {**self.rope_scaling, "rope_theta": theta},
        }
        return rotary(fields, head_dim)


class PairHead(DraftHead):
    """Runs pairs through ``decoder``, whose last residual stream is both the next feature and the source of logits.

    Subclasses say what a feature is, how a pair enters, and what of the output goes on as a feature.
    """

    sizes: PairConfig  # the config
    num_layers: int  # of the target
    target_vocab: int

    @abstractmethod
    def feature(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Features [B, n, W] of tokens whose ``hidden`` states [B, n, H] lie at ``taps``."""

    @property
    def copied_tap(self) -> int | None:
        """The tap whose states are the features as they are; None where features are computed of them."""
        return None

    @abstractmethod
    def pair(self, feature: Tensor, tokens: Tensor, first: Tensor | None = None) -> Tensor:
        """What the first block reads of each ``feature`` [B, n, W] with the one of ``tokens`` [B, n] after it.

        ``first`` bool [B, n] are the pairs that begin a sequence (None: none).
        """

    def drafted_pair(self, feature: Tensor, tokens: Tensor) -> Tensor:
        """The same of drafted ``tokens``, each with what came out before it."""
        return self.pair(feature, tokens)

    @abstractmethod
    def feedback(self, out: Tensor) -> Tensor:
        """The features [B, n, W] that drafted tokens are paired with, of the stream ``out`` [B, n, W] after all
        blocks.
        """

    @property
    def pair_input(self) -> PairInput | None:
        """How pairs are read, for kernels that draft chains in one call; None if these cannot."""
        return None

    def disturbed(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """The target's ``features`` [B, T, W] as training reads them, with what ``generator`` draws."""
        return features

    @property
    def width(self) -> int:
        """Of features."""
        return self.decoder.config.hidden_size

    def auxiliary(self, features: Tensor, known: Tensor, position: Tensor) -> Mapping[str, Tensor] | None:
        """More losses [B, A, D] of drafted ``features`` [B, A, D, W]; ``known`` [B, T, W] are the target's."""
        return None

    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """See DraftHead. Anchor a is the token that is the root, the second of the first pair: a is at least 1.

        Step s pairs the token s after the root with what came out of step s - 1, at anchors alone.
        """
        config, rows, num_pairs = self.sizes, len(tokens), tokens.shape[1] - 1
        known = self.feature(hidden)
        roots = all_learned(tokens, learned)[:, 1:]
        if segment is not None:  # the feature is of the root's own sequence
            roots = roots & (segment[:, 1:] == segment[:, :-1])
        anchors, share = sample_anchors(roots, config.anchors, generator)  # of pairs: the root is one more
        segments = None if segment is None else segment[:, :-1]
        attend = UnrolledAttention(rows, num_pairs, anchors, segment=segments)
        position, weight = anchor_positions(anchors + 1, config.depth, segment, length=tokens.shape[1])
        drafted = tokens.gather(1, position.flatten(1)).view_as(position)  # [B, A, D]
        at = anchors[..., None].expand(-1, -1, self.width)
        first = torch.arange(num_pairs, device=tokens.device).eq(0).expand(rows, -1)
        if segments is not None:
            first = first | segments.diff(dim=1, prepend=segments[:, :1]).ne(0)
        read = known if generator is None else self.disturbed(known, generator)
        out = self.decoder.run_blocks(self.pair(read[:, :-1], tokens[:, 1:], first), attend)
        outs = [out.gather(1, at)]
        for step in range(1, config.depth):
            attend.advance()
            fed = self.feedback(outs[-1].detach() if config.detach_steps else outs[-1])
            outs.append(self.decoder.run_blocks(self.drafted_pair(fed, drafted[..., step]), attend))
        stream = torch.stack(outs, dim=2)  # [B, A, D, W]
        logits = self.decoder.compute_logits(stream.flatten(1, 2), self.read_ids)
        return Unrolled(
            logits=logits.view(*position.shape, -1),
            position=position,
            weight=weight * share[..., None],
            draft_ids=self.draft_ids,
            auxiliary=self.auxiliary(stream, known, position),
        )


def fill(head: PairHead, target: DecoderLM, generator: torch.Generator) -> None:
    """Give the own modules of ``head``, which are on the meta device, new weights; biases are zeros."""
    small = ("attention.output.weight", "ffn.down.weight")  # outputs to the residual stream
    factor = (2 * head.sizes.num_layers) ** -0.5
    drawn = random_weights(own_tensors(head.own), generator)
    for name, part in drawn.items():
        if name.endswith(small):
            drawn[name] = part * factor
        elif name.endswith("bias") or (part.dim() == 1 and head.sizes.norm_offset):
            drawn[name] = torch.zeros_like(part)
    materialize(head.own, drawn, target)
    assert head.decoder.rotary is not None
    head.decoder.rotary.to(target.device)


def own_head_config(config: DecoderConfig, vocab: DraftVocab | None) -> DecoderConfig:
    """``config`` with an LM head of its own over ``vocab``, and no divisor of the logits."""
    size = config.vocab_size if vocab is None else len(vocab.ids)
    return replace(config, vocab_size=size, multipliers=Multipliers(), tied_head=False)
