"""The MLP speculator: a state that follows from the one before and the newest token, by one layer each (2404.19124).

N nodes, H the target's hidden size, W the state's width, V vocabulary.
"""

import math
from typing import ClassVar, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.feature_head import FeatureHead, FeatureHeadConfig, bare_decoder
from paceline.draft_heads.layers import materialize, own_tensors
from paceline.models.native.decoder import DecoderLM

EPS = 1e-6


class MLPSpeculatorConfig(FeatureHeadConfig):
    """``depth`` stages of width ``inner_size`` (None: the target's)."""

    depth: int = Field(default=3, ge=1)
    inner_size: int | None = Field(default=None, ge=1)
    scaled_input: bool = False  # whether the feature is normed, without weights, and divided by the root of 2
    tied: bool = False  # whether stages share embedding, norm and LM head, and those after the first their projection


class ScaledNorm(nn.Module):
    """Root-mean-square norm with weight and bias, or with neither."""

    def __init__(self, size: int, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size)) if affine else None
        self.bias = nn.Parameter(torch.zeros(size)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        x = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
        return x if self.weight is None or self.bias is None else x * self.weight + self.bias


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
        self.norms = nn.ModuleList(ScaledNorm(width) for _ in range(count))
        self.lm_heads = nn.ModuleList(nn.Linear(width, self.draft_vocab_size, bias=False) for _ in range(count))
        self.input_norm = ScaledNorm(size, affine=False)
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
        return self.input_norm(feature) * 0.5**0.5 if self.options.scaled_input else feature

    def advance(self, states: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """See FeatureHead."""
        stage = 0 if self.options.tied else depth
        projection = self.projections[min(depth, 1) if self.options.tied else depth]
        added = self.embeddings[stage](tokens) * self.token_factor
        return F.gelu(self.norms[stage](self.multiply(projection, states) + added))

    def hidden_of(self, states: Tensor, depth: int) -> Tensor:
        """The state itself."""
        return states

    def lm_head_of(self, depth: int) -> nn.Module:
        """See FeatureHead."""
        return self.lm_heads[0 if self.options.tied else depth]
