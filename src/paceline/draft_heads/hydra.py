"""Hydra: Medusa heads that also read the tokens drafted before (2402.05109).

B rows, T tokens, N nodes, H the target's hidden size, V vocabulary.
"""

from dataclasses import replace
from typing import ClassVar, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.feature_head import FeatureHead, FeatureHeadConfig, bare_decoder
from paceline.draft_heads.layers import begin_lm_heads, materialize, own_tensors, random_weights
from paceline.models.backend import fastest, pack_weights
from paceline.models.base import LM
from paceline.models.depth_models import Activated, Added, DepthModel, DepthOperation, Normed, Place, Product
from paceline.models.native.attention import CausalAttention
from paceline.models.native.decoder import DecoderLM


class HydraConfig(FeatureHeadConfig):
    """``depth`` MLPs of ``num_blocks`` residual blocks, over the feature and the embeddings of the tokens after it."""

    num_blocks: int = Field(default=1, ge=1)
    shared_blocks: bool = False  # whether the blocks after the first are one, as in heads of the authors' code
    grounded: bool = True  # whether it reads the tokens; else it is a Medusa head with another first block
    head_bias: bool = True  # whether LM heads have a bias
    prefix: bool = False  # whether a layer like the target's reads the states of the sequence first (Hydra++)


class WideBlock(nn.Module):
    """The first block: R x + c + SiLU(W x + b), which maps the feature and the embeddings to one hidden state.

    Where there is the feature alone, R x + c is x.
    """

    def __init__(self, inner: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, size)
        self.residual = nn.Identity() if inner == size else nn.Linear(inner, size)


@final
class HydraHead(FeatureHead):
    """A node's state is the feature followed by the embeddings of its path, which are the target's.

    New blocks pass the feature on and new LM heads are the target's, so that at first every depth repeats the target's
    last prediction, as new Medusa heads do.

    With ``prefix`` the feature is what a layer over the target's states of the whole sequence, and a norm, make of the
    last one. It is of the target's sizes, and adds nothing at first.
    """

    kind: ClassVar[str] = "hydra"
    Config: ClassVar[type[DraftHeadConfig]] = HydraConfig
    reads_tokens: ClassVar[bool] = True

    def __init__(
        self, config: HydraConfig, num_layers: int, decoder: DecoderLM, draft_vocab: DraftVocab | None
    ) -> None:
        super().__init__(config, num_layers, decoder, draft_vocab)
        self.options = config
        size = decoder.config.hidden_size
        more = min(config.num_blocks - 1, 1) if config.shared_blocks else config.num_blocks - 1
        self.first_blocks = nn.ModuleList(
            WideBlock((at + 2) * size if config.grounded else size, size) for at in range(config.depth)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(size, size) for _ in range(more)) for _ in range(config.depth)
        )
        self.lm_heads = nn.ModuleList(
            nn.Linear(size, self.draft_vocab_size, bias=config.head_bias) for _ in range(config.depth)
        )
        self.prefix = DecoderLM(replace(decoder.config, num_layers=1)) if config.prefix else None
        self._fastest_prefix: LM | None = None

    @property
    def reads_all_states(self) -> bool:
        return self.prefix is not None

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, HydraConfig)
        vocab = DraftVocab.make(config.draft_vocab_size, target)
        with torch.device("meta"):
            head = cls(config, target.num_layers, bare_decoder(target), vocab)
        state = {
            name: torch.eye(*one.shape) if name.endswith("residual.weight") else torch.zeros(one.shape)
            for name, one in own_tensors(head.own).items()
        }  # the feature comes first
        if head.prefix is not None:
            state |= _new_prefix(head.prefix, generator)
            # What it does not use.
            head.prefix.embed, head.prefix.head, head.prefix.position = target.embed, target.head, target.position
        materialize(head.own, state, target)
        if head.prefix is not None and head.prefix.rotary is not None:
            head.prefix.rotary.to(target.device)
        begin_lm_heads(head.lm_heads_of_rows, target, vocab)
        return head

    @property
    def own(self) -> dict[str, nn.Module]:
        own: dict[str, nn.Module] = {"first_blocks": self.first_blocks, "blocks": self.blocks}
        own |= {"lm_heads": self.lm_heads}
        if self.prefix is not None:
            own |= {"prefix.blocks": self.prefix.blocks, "prefix.norm": self.prefix.norm}
        return own

    @property
    def products(self) -> list[nn.Linear | nn.Embedding]:
        """Those of FeatureHead, but for the prefix layer's."""
        others = set[nn.Module]() if self.prefix is None else set(self.prefix.blocks.modules())
        return [layer for layer in super().products if layer not in others]

    def use_kernels(self) -> None:
        """See DraftHead; the prefix layer too."""
        super().use_kernels()
        if self.prefix is not None:
            pack_weights(self.prefix, beside=self.decoder)
            quick = fastest(self.prefix)
            self._fastest_prefix = None if quick is self.prefix else quick

    @property
    def prefix_lm(self) -> LM | None:
        """What runs the prefix layer over the states of a sequence; None without one."""
        return self._fastest_prefix or self.prefix

    def in_context(self, hidden: Tensor, segment: Tensor | None) -> Tensor:
        """See FeatureHead."""
        if self.prefix is None:
            return hidden
        attend = CausalAttention(len(hidden), hidden.shape[1], hidden.device, segment)
        return self.prefix.norm(self.prefix.run_blocks(self.read_states(hidden), attend))

    def read_states(self, hidden: Tensor) -> Tensor:
        """What the prefix layer, or without one a feature, is made from."""
        return super().read_feature(hidden)

    def read_feature(self, hidden: Tensor) -> Tensor:
        """See FeatureHead; what comes out of the prefix layer is the feature itself."""
        return hidden if self.prefix is not None else self.read_states(hidden)

    @property
    def first_operations(self) -> tuple[DepthOperation, ...]:
        return super().first_operations if self.prefix is None else ()

    @property
    def lm_heads_of_rows(self) -> tuple[nn.Module, ...]:
        return tuple(self.lm_heads)

    def advance(self, states: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """See FeatureHead; states grow by H per depth."""
        if not self.options.grounded:
            return states
        return torch.cat((states, self.decoder.embed(tokens)), dim=-1)

    def hidden_of(self, states: Tensor, depth: int) -> Tensor:
        """See FeatureHead."""
        first = self._first_block(depth)
        x = self.multiply(first.residual, states) + F.silu(self.multiply(first.linear, states))  # identities too
        for block in self._blocks_of(depth):
            x = x + F.silu(self.multiply(block, x))
        return x

    def depth_model(self, depth: int) -> DepthModel:
        """See FeatureHead."""
        first, grounded = self._first_block(depth), self.options.grounded
        residual, operations = first.residual, list[DepthOperation]()
        if isinstance(residual, nn.Linear):
            operations.append(Product(residual, Place.INPUT, Place.STREAM))
        else:
            operations.append(Normed(residual, Place.INPUT, Place.STREAM))
        for block in (first.linear, *self._blocks_of(depth)):
            source = Place.INPUT if block is first.linear else Place.STREAM
            operations += [Product(block, source, Place.INNER), Activated(F.silu, Place.INNER), Added(Place.INNER)]
        return DepthModel(
            state_size=self.hidden_size * (1 + (depth if grounded else 0)),
            embedding=self.decoder.embed if grounded else None,
            operations=tuple(operations),
            next_state=Place.INPUT,
            lm_head=self.lm_head_of(depth),
        )

    def lm_head_of(self, depth: int) -> nn.Linear | nn.Embedding:
        """See FeatureHead."""
        head = self.lm_heads[depth]
        assert isinstance(head, nn.Linear)
        return head

    def _first_block(self, depth: int) -> WideBlock:
        block = self.first_blocks[depth]
        assert isinstance(block, WideBlock)
        return block

    def _blocks_of(self, depth: int) -> list[nn.Linear]:
        """The blocks of ``depth`` after the first, in the order they run."""
        found, count = self.blocks[depth], self.options.num_blocks - 1
        assert isinstance(found, nn.ModuleList)
        different = [block for block in found if isinstance(block, nn.Linear)]
        return different * count if self.options.shared_blocks else different


def _new_prefix(prefix: DecoderLM, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights by which the layer adds nothing to the residual stream; what is read of it learns first."""
    state = random_weights(own_tensors({"prefix.blocks": prefix.blocks, "prefix.norm": prefix.norm}), generator)
    for name, part in state.items():
        if name.endswith(("attention.output.weight", "ffn.down.weight", "bias")):
            part.zero_()
    return state
