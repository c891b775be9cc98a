"""Medusa: several tokens from one hidden state, each by residual blocks and an LM head of its own (2401.10774).

A depth does not depend on the tokens drafted before it. N nodes, H the target's hidden size, V vocabulary.
"""

from typing import ClassVar, Literal, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.feature_head import FeatureHead, FeatureHeadConfig, bare_decoder
from paceline.draft_heads.layers import begin_lm_heads, materialize, own_tensors
from paceline.models.depth_models import Activated, Added, DepthModel, DepthOperation, Normed, Place, Product
from paceline.models.native.decoder import DecoderLM

DECAY = 0.8  # of the weights of the depths' losses


class MedusaConfig(FeatureHeadConfig):
    """``depth`` heads of ``num_blocks`` residual blocks each, x + SiLU(W x + b)."""

    num_blocks: int = Field(default=1, ge=1)
    shared_blocks: bool = False  # whether the blocks of a depth are one, run num_blocks times, as published heads are
    block_bias: bool = True
    lm_head: Literal["own", "shared", "target"] = "own"  # one per depth; one for all depths; the target's own

    @property
    def depth_weights(self) -> tuple[float, ...] | None:
        """0.8 to the power of the depth, as in the paper."""
        return tuple(DECAY**at for at in range(self.depth))


@final
class MedusaHead(FeatureHead):
    """New blocks add nothing and new LM heads are the target's: at first every depth repeats the target's prediction.

    The target's divisor of logits, where it has one, is in the weights of a new LM head. ``make`` raises ValueError
    for a draft vocabulary with the target's own LM head.
    """

    kind: ClassVar[str] = "medusa"
    Config: ClassVar[type[DraftHeadConfig]] = MedusaConfig
    reads_tokens: ClassVar[bool] = False

    def __init__(
        self, config: MedusaConfig, num_layers: int, decoder: DecoderLM, draft_vocab: DraftVocab | None
    ) -> None:
        super().__init__(config, num_layers, decoder, draft_vocab)
        self.options = config
        size = decoder.config.hidden_size
        different = 1 if config.shared_blocks else config.num_blocks
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(size, size, bias=config.block_bias) for _ in range(different))
            for _ in range(config.depth)
        )
        count = {"own": config.depth, "shared": 1, "target": 0}[config.lm_head]
        self.lm_heads = nn.ModuleList(nn.Linear(size, self.draft_vocab_size, bias=False) for _ in range(count))

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, MedusaConfig)
        if config.lm_head == "target" and config.draft_vocab_size is not None:
            raise ValueError(
                f"draft_vocab_size={config.draft_vocab_size} with lm_head='target', which has all tokens of the "
                "target: leave the former out, or give lm_head 'own' or 'shared'"
            )
        vocab = DraftVocab.make(config.draft_vocab_size, target)
        decoder = bare_decoder(target)
        with torch.device("meta"):
            head = cls(config, target.num_layers, decoder, vocab)
        materialize(head.own, {name: torch.zeros(one.shape) for name, one in own_tensors(head.own).items()}, target)
        begin_lm_heads(head.lm_heads_of_rows, target, vocab)
        return head

    @property
    def own(self) -> dict[str, nn.Module]:
        return {"blocks": self.blocks, "lm_heads": self.lm_heads}

    @property
    def lm_heads_of_rows(self) -> tuple[nn.Module, ...]:
        return tuple(self.lm_heads)

    def advance(self, states: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """The same state at every depth: the feature."""
        return states

    def hidden_of(self, states: Tensor, depth: int) -> Tensor:
        """See FeatureHead."""
        for block in self._blocks_of(depth):
            states = states + F.silu(self.multiply(block, states))
        return states

    def depth_model(self, depth: int) -> DepthModel:
        """See FeatureHead."""
        operations: list[DepthOperation] = [Normed(nn.Identity(), Place.INPUT, Place.STREAM)]
        for block in self._blocks_of(depth):
            operations += [
                Product(block, Place.STREAM, Place.INNER),
                Activated(F.silu, Place.INNER),
                Added(Place.INNER),
            ]
        return DepthModel(
            state_size=self.hidden_size,
            embedding=None,
            operations=tuple(operations),
            next_state=Place.INPUT,
            lm_head=self.lm_head_of(depth),
            divisor=self._divisor,
        )

    def lm_head_of(self, depth: int) -> nn.Linear | nn.Embedding:
        """See FeatureHead."""
        if self.options.lm_head == "target":
            return self.decoder.embed if self.decoder.head is None else self.decoder.head
        head = self.lm_heads[depth if self.options.lm_head == "own" else 0]
        assert isinstance(head, nn.Linear)
        return head

    def logits_of(self, states: Tensor, depth: int) -> Tensor:
        logits = super().logits_of(states, depth)
        return logits if self._divisor == 1.0 else logits / self._divisor

    @property
    def _divisor(self) -> float:
        """Of its logits, which are the target's if the LM head is: others have it in their weights."""
        return self.decoder.logits_divisor if self.options.lm_head == "target" else 1.0

    def _blocks_of(self, depth: int) -> list[nn.Linear]:
        """The blocks of ``depth`` in the order they run."""
        found, count = self.blocks[depth], self.options.num_blocks
        assert isinstance(found, nn.ModuleList)
        different = [block for block in found if isinstance(block, nn.Linear)]
        return different * count if self.options.shared_blocks else different
