"""The MLP speculator: a state that follows from the one before and the newest token, by one layer each (2404.19124).

N nodes, H the target's hidden size, W the state's width, V vocabulary.
"""

import math
from typing import ClassVar, NamedTuple, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.feature_head import FeatureHead, FeatureHeadConfig, bare_decoder
from paceline.draft_heads.layers import materialize, own_tensors
from paceline.models.depth_models import Activated, Added, DepthModel, DepthOperation, Normed, Place, Product
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import BiasedRMSNorm

EPS = 1e-6
INPUT_FACTOR = 0.5**0.5  # of a scaled input


class MLPSpeculatorConfig(FeatureHeadConfig):
    """``depth`` stages of width ``inner_size`` (None: the target's)."""

    depth: int = Field(default=3, ge=1)
    inner_size: int | None = Field(default=None, ge=1)
    scaled_input: bool = False  # whether the feature is normed, without weights, and divided by the root of 2
    tied: bool = False  # whether stages share embedding, norm and LM head, and those after the first their projection


class DepthParts(NamedTuple):
    """What leads from one state to the next."""

    projection: nn.Linear
    embedding: nn.Embedding
    norm: nn.Module


@final
class MLPSpeculatorHead(FeatureHead):
    """s_d = GELU(norm_d(W_d s_(d-1) + r E_d[token_d])), and an LM head reads s_d; the root is token_0.

    The factor r weighs the token against a state that is scaled down by 0.5^(0.5 / D) in each of D stages, so that both
    have the same variance in the end.
    """

    kind: ClassVar[str] = "mlp_speculator"
    Config: ClassVar[type[DraftHeadConfig]] = MLPSpeculatorConfig
    reads_tokens: ClassVar[bool] = True

    def __init__(
        self, config: MLPSpeculatorConfig, num_layers: int, decoder: DecoderLM, draft_vocab: DraftVocab | None
    ) -> None:
        super().__init__(config, num_layers, decoder, draft_vocab)
        self.options = config
        size = decoder.config.hidden_size
        width = size if config.inner_size is None else config.inner_size
        count = 1 if config.tied else config.depth
        self.embeddings = nn.ModuleList(nn.Embedding(decoder.vocab_size, width) for _ in range(count))
        projections = min(config.depth, 2) if config.tied else config.depth
        self.projections = nn.ModuleList(
            nn.Linear(size if at == 0 else width, width, bias=False) for at in range(projections)
        )
        self.norms = nn.ModuleList(BiasedRMSNorm(width, EPS) for _ in range(count))
        self.lm_heads = nn.ModuleList(nn.Linear(width, self.draft_vocab_size, bias=False) for _ in range(count))
        self.input_norm = BiasedRMSNorm(size, EPS, affine=False)
        state_factor = 0.5 ** (0.5 / config.depth)
        self.token_factor = math.sqrt((1 - state_factor**2) * width / 2) / state_factor

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, MLPSpeculatorConfig)
        vocab = DraftVocab.make(config.draft_vocab_size, target)
        with torch.device("meta"):
            head = cls(config, target.num_layers, bare_decoder(target), vocab)
        width = target.config.hidden_size if config.inner_size is None else config.inner_size
        state: dict[str, Tensor] = {}
        for name, part in own_tensors(head.own).items():
            if part.dim() == 1:
                state[name] = torch.ones(part.shape) if name.endswith("weight") else torch.zeros(part.shape)
            else:
                state[name] = torch.randn(part.shape, generator=generator) * width**-0.5
        materialize(head.own, state, target)
        return head

    @property
    def own(self) -> dict[str, nn.Module]:
        return {
            "embeddings": self.embeddings,
            "projections": self.projections,
            "norms": self.norms,
            "lm_heads": self.lm_heads,
        }

    def begin(self, feature: Tensor) -> Tensor:
        """See FeatureHead."""
        return self.input_norm(feature) * INPUT_FACTOR if self.options.scaled_input else feature

    @property
    def first_operations(self) -> tuple[DepthOperation, ...]:
        """See FeatureHead."""
        scaled = Normed(self.input_norm, Place.INPUT, Place.INPUT, INPUT_FACTOR)
        return (*super().first_operations, scaled) if self.options.scaled_input else super().first_operations

    def advance(self, states: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """See FeatureHead."""
        parts = self._parts(depth)
        added = parts.embedding(tokens) * self.token_factor
        return F.gelu(parts.norm(self.multiply(parts.projection, states) + added))

    def depth_model(self, depth: int) -> DepthModel:
        """See FeatureHead."""
        parts = self._parts(depth)
        return DepthModel(
            state_size=parts.projection.in_features,
            embedding=parts.embedding,
            operations=(
                Product(parts.projection, Place.INPUT, Place.STREAM),
                Added(Place.INPUT, self.token_factor),
                Normed(parts.norm, Place.STREAM, Place.STREAM),
                Activated(F.gelu, Place.STREAM),
            ),
            next_state=Place.STREAM,
            lm_head=self.lm_head_of(depth),
        )

    def hidden_of(self, states: Tensor, depth: int) -> Tensor:
        """The state itself."""
        return states

    def lm_head_of(self, depth: int) -> nn.Linear | nn.Embedding:
        """See FeatureHead."""
        head = self.lm_heads[0 if self.options.tied else depth]
        assert isinstance(head, nn.Linear)
        return head

    def _parts(self, depth: int) -> DepthParts:
        tied = self.options.tied
        embedding, norm = (parts[0 if tied else depth] for parts in (self.embeddings, self.norms))
        projection = self.projections[min(depth, 1) if tied else depth]
        assert isinstance(projection, nn.Linear) and isinstance(embedding, nn.Embedding)
        return DepthParts(projection, embedding, norm)
