"""A head that drafts a block of tokens in one forward (DFlash, 2602.06036): masked slots that all see each other.

With a Markov head (DSpark, 2607.05147) the tokens before each add logits of their own, and a confidence head says how
likely each is to be accepted. The layers of DFlash 2 have convolutions.

Every layer also attends to the sequence before the block, whose keys and values are made from the target's hidden
states. B rows, T tokens, n positions, A anchors, D depths, b slots of a block, L layers, S taps, H hidden size, K
key-value heads, E head size, V vocabulary.
"""

from collections.abc import Mapping
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.draft_heads.base import DraftHead, DraftHeadConfig, Unrolled
from paceline.draft_heads.block_config import BlockConfig
from paceline.draft_heads.block_context import BlockAttention, ContextProjection
from paceline.draft_heads.block_convolution import ConvolvedBlock
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.layers import (
    all_learned,
    anchor_positions,
    begin_lm_heads,
    materialize,
    own_tensors,
    random_weights,
    sample_anchors,
)
from paceline.draft_heads.markov import MARKOV_HEADS, MarkovHead, MarkovSizes
from paceline.models.block_input import BlockInput
from paceline.models.native.attention import CausalAttention
from paceline.models.native.blocks import Block
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import RMSNorm
from paceline.models.native.qkv import NormRotateQK

CHUNK = 64  # anchors that are unrolled at once


@final
class BlockHead(DraftHead):
    """``decoder`` holds the layers of the block; its embedding is the target's, and its LM head without a draft
    vocabulary.

    ``norm(fc(states))`` of the concatenated taps is what keys and values of the sequence are made from, by the same
    projections in which a layer's own are.
    """

    kind: ClassVar[str] = "block"
    Config: ClassVar[type[DraftHeadConfig]] = BlockConfig

    def __init__(self, config: BlockConfig, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.options = config
        self.num_target_layers, self.target_vocab = target.num_layers, target.vocab_size
        size = target.config.hidden_size
        self.fc = nn.Linear(len(self.taps) * size, size, bias=False)
        self.norm = RMSNorm(size, config.norm_eps)
        own_mask = config.mask_token_id is None
        self.mask = nn.Embedding.from_pretrained(torch.empty(1, size), freeze=False) if own_mask else None
        rank, self.markov = config.markov_rank, None
        if rank:
            sizes = MarkovSizes(
                target_vocab=target.vocab_size,
                vocab=decoder.vocab_size,
                rank=rank,
                hidden_size=size,
                block_size=config.block_size,
                first_slot=config.first_slot,
                ratio=config.markov_ratio,
            )
            self.markov = MARKOV_HEADS[config.markov_head](sizes)
        width = size + (rank if config.confidence_with_markov else 0)
        self.confidence = nn.Linear(width, 1) if config.confidence else None
        self.decoder = decoder

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        """See DraftHead. Its config says what ``config`` leaves to the target."""
        assert isinstance(config, BlockConfig)
        config = config.resolved(target.config)
        vocab = DraftVocab.make(config.draft_vocab_size, target)
        layers = config.decoder(target.config)
        with torch.device("meta"):
            decoder = DecoderLM(layers)
            if config.conv_taps:
                for at in range(config.num_layers):
                    decoder.blocks[at] = ConvolvedBlock(
                        layers,
                        at,
                        block_size=config.block_size,
                        num_taps=config.conv_taps,
                        group_size=config.conv_group_size,
                    )
            head = cls(config, target, decoder)
        head.draft_vocab, decoder.embed = vocab, target.embed
        if vocab is None:
            decoder.head = target.head
        small = ("attention.output.weight", "ffn.down.weight")  # written to the residual stream
        factor = (2 * config.num_layers) ** -0.5
        drawn = random_weights(own_tensors(head.own), generator)
        drawn = {name: part * factor if name.endswith(small) else part for name, part in drawn.items()}
        for name, part in drawn.items():  # what begins as nothing, or as passing a slot on as it is
            if name in ("markov.after.weight", "markov.mix") or name.endswith("_conv.project.weight"):
                part.zero_()
            if name.endswith("_conv.base"):
                part.zero_()[:, 0] = 1
        biases = {name: torch.zeros_like(part) for name, part in drawn.items() if name.endswith(".bias")}
        materialize(head.own, {**drawn, **biases}, target)
        begin_lm_heads(head.lm_heads_of_rows, target, vocab)
        assert decoder.rotary is not None
        decoder.rotary.to(target.device)
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        assert self.options.taps is not None
        return self.options.taps

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        return self.fc.out_features

    @property
    def own(self) -> dict[str, nn.Module]:
        own: dict[str, nn.Module] = {"fc": self.fc, "norm": self.norm}
        own |= {"decoder.blocks": self.decoder.blocks, "decoder.norm": self.decoder.norm}
        if self.draft_vocab is not None:
            assert self.decoder.head is not None
            own["decoder.head"] = self.decoder.head
        more = {"mask": self.mask, "markov": self.markov, "confidence": self.confidence}
        return own | {name: part for name, part in more.items() if part is not None}

    @property
    def lm_heads_of_rows(self) -> tuple[nn.Module, ...]:
        """That of a draft vocabulary; else it is the target's own."""
        return () if self.draft_vocab is None or self.decoder.head is None else (self.decoder.head,)

    @property
    def products(self) -> tuple[nn.Linear]:
        return (self.fc,)

    def mask_embedding(self) -> Tensor:
        """What masked slots read [H]."""
        if self.mask is not None:
            return self.mask.weight[0]
        token = torch.full((1, 1), self.options.mask_token_id or 0, device=self.decoder.device)
        return self.decoder.embed_inputs(token, torch.zeros_like(token))[0, 0]

    def context_projection(self) -> ContextProjection:
        """The weights by which ``project_context`` makes keys and values for all layers at once."""
        return ContextProjection.of(self.decoder, kernels=self.uses_kernels)

    def project_context(
        self, states: Tensor, positions: Tensor, projection: ContextProjection
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [B, n, L, K, E] at ``positions`` [B, n] from the taps' ``states`` [B, n, S * H]."""
        assert self.decoder.rotary is not None
        table = self.decoder.rotary(positions, states.dtype)
        return projection(self.norm(self.multiply(self.fc, states)), table)

    def block_input(self, projection: ContextProjection) -> BlockInput | None:
        """How a kernel reads states and blocks, and drafts, by the weights that it has now; None where it cannot."""
        options, markov = self.options, self.markov
        if projection.layer is None or options.conv_taps:
            return None
        simple = markov is None or (type(markov) is MarkovHead and options.candidates is None)
        heads = [block.attention.heads for block in self.decoder.blocks if isinstance(block, Block)]
        return BlockInput(
            num_slots=options.block_size,
            first_slot=options.first_slot,
            product=self.fc,
            norm=self.norm,
            keys_values=projection.layer,
            key_norms=[one.key_norm for one in heads if isinstance(one, NormRotateQK)],
            mask=self.mask_embedding().contiguous(),
            markov=(markov.before, markov.after) if markov is not None and simple else None,
            confidence=self.confidence if simple else None,
            whole=simple,
            draft_ids=self.draft_ids,
        )

    def predict_confidence(self, states: Tensor, before: Tensor) -> Tensor:
        """Log odds [...] of acceptance of tokens after ``before`` [...] by ``states`` [..., H] after the last layer.

        The tokens themselves are not read.
        """
        assert self.confidence is not None
        read = self.decoder.norm(states)
        if self.options.confidence_with_markov:
            assert self.markov is not None
            read = torch.cat((read, self.markov.before(before)), dim=-1)
        return self.confidence(read)[..., 0]

    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """See DraftHead. Anchor a is the token that is the root: its block sees the states of the tokens before it."""
        anchors, share = sample_anchors(all_learned(tokens, learned), self.options.anchors, generator)  # [B, A]
        position, weight = anchor_positions(anchors, self.options.depth, segment, length=tokens.shape[1])
        decay = torch.arange(self.options.depth, device=weight.device) / -self.options.gamma
        positions = CausalAttention(len(tokens), tokens.shape[1], tokens.device, segment).positions
        states = torch.cat([hidden[tap] for tap in self.taps], dim=-1)
        keys, values = self.project_context(states, positions, self.context_projection())
        found: list[Tensor] = []
        parts = anchors.split(CHUNK, dim=1)
        for part in parts:
            given = (tokens, part, positions, segment, keys, values)
            if len(parts) == 1 or not torch.is_grad_enabled():
                found.append(self._blocks(*given))
            else:
                again = checkpoint(self._blocks, *given, use_reentrant=False, preserve_rng_state=False)
                assert isinstance(again, Tensor)
                found.append(again)
        blocks, before = torch.cat(found, dim=1), tokens.gather(1, position.flatten(1)).view_as(position)
        streams = blocks[:, :, self.options.first_slot :]
        logits = self.decoder.compute_logits(streams.flatten(1, 2)).view(*position.shape, -1)
        if self.markov is not None:
            logits = logits + self.markov.unroll(before, self.decoder.norm(blocks), _known(tokens, anchors, segment))
        return Unrolled(
            logits=logits,
            confidence=None if self.confidence is None else self.predict_confidence(streams, before),
            position=position,
            weight=weight * share[..., None] * decay.exp(),
            stops_at_unlearned=True,
            draft_ids=self.draft_ids,
        )

    def _blocks(
        self, tokens: Tensor, anchors: Tensor, positions: Tensor, segment: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        """The states [B, A, b, H] after the last layer of all slots, in the blocks of ``anchors``."""
        rows, count = anchors.shape
        size, slots = self.options.block_size, torch.arange(self.options.block_size, device=tokens.device)
        attend = BlockAttention(
            keys=keys,
            values=values,
            anchors=anchors,
            positions=positions.gather(1, anchors)[..., None] + slots,
            segment=segment,
        )
        pending = self.decoder.embed_inputs(tokens.gather(1, anchors), torch.zeros_like(anchors))[:, :, None]
        masked = self.mask_embedding().expand(rows, count, size - 1, -1)
        found = self.decoder.run_blocks(torch.cat((pending, masked), dim=2).flatten(1, 2), attend)
        return found.view(rows, count, size, -1)


def _known(tokens: Tensor, anchors: Tensor, segment: Tensor | None) -> Tensor:
    """The tokens [B, A, 2] before ``anchors``, or where a sequence begins its first again, and those at ``anchors``."""
    places = (anchors - 1).clamp(min=0)
    if segment is not None:
        places = torch.where(segment.gather(1, places) == segment.gather(1, anchors), places, anchors)
    return torch.stack((tokens.gather(1, places), tokens.gather(1, anchors)), dim=-1)
