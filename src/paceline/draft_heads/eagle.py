"""The EAGLE head of the first two papers: predicts the target's own feature of the next token (2401.15077, 2406.16858).

HASS (2408.15766) is the same head, trained on drafts of several steps. B rows, n pairs, A anchors, D depths, H hidden
size, V vocabulary.
"""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.state_pair import StatePairConfig, StatePairHead
from paceline.models.base import PairInput
from paceline.models.native.decoder import DecoderLM

NOISE_LENGTH = 512  # tokens of a row for which ``noise`` is given


class EagleConfig(StatePairConfig):
    """What an EAGLE head is; the defaults are those of its paper, whose training has a depth of 1."""

    depth: int = Field(default=3, ge=1)
    depth_decay: float = Field(default=1.0, gt=0, le=1)
    normalized: bool = True
    fc_bias: bool = True
    first_norm: bool = False  # of what the first layer reads
    feature_weight: float = Field(default=1.0, ge=0)  # of the distance to the target's feature in the loss
    noise: float = Field(default=0.0, ge=0)  # range of the noise of training on features of the target, in 512 tokens

    @property
    def auxiliary_weights(self) -> Mapping[str, float]:
        return {"feature": self.feature_weight}


@final
class EagleHead(StatePairHead):
    """``fc`` [H, 2 H] joins a token's embedding and a feature; layers make the next feature of it.

    A feature is what the target's LM head reads, and so are the head's: it has neither a norm nor an LM head of its
    own. Its loss has the smooth L1 distance between its features and the target's beside that of distributions.
    """

    kind: ClassVar[str] = "eagle"
    Config: ClassVar[type[DraftHeadConfig]] = EagleConfig

    def __init__(self, config: EagleConfig, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__(config, target, decoder)
        self.options = config
        size = target.config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=config.fc_bias)
        decoder.norm = nn.Identity()
        if not config.first_norm:
            decoder.blocks[0].attention_norm = nn.Identity()

    @property
    def own(self) -> dict[str, nn.Module]:
        return {"fc": self.fc, "blocks": self.decoder.blocks}

    def disturbed(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """With uniform noise in a range of ``noise`` around 0, scaled by 512 / T, as in the authors' training."""
        if not self.options.noise:
            return features
        drawn = torch.rand(features.shape, generator=generator) - 0.5
        return features + drawn.to(features) * (self.options.noise * NOISE_LENGTH / features.shape[1])

    @property
    def products(self) -> tuple[nn.Linear]:
        return (self.fc,)

    def pair(self, feature: Tensor, tokens: Tensor, first: Tensor | None = None) -> Tensor:
        """Embedding and feature, joined: [B, n, H]."""
        return self.multiply(self.fc, torch.cat((self.embed(tokens, feature), feature), dim=-1))

    @property
    def pair_input(self) -> PairInput:
        return PairInput(product=self.fc, draft_ids=self.draft_ids)

    def feedback(self, out: Tensor) -> Tensor:
        """What comes out is the feature."""
        return out

    def auxiliary(self, features: Tensor, known: Tensor, position: Tensor) -> Mapping[str, Tensor] | None:
        """The distance of each drafted feature to the target's at the same position."""
        at = position.flatten(1)[..., None].expand(-1, -1, known.shape[-1])
        goal = known.detach().gather(1, at).view_as(features)
        return {"feature": nn.functional.smooth_l1_loss(features, goal, reduction="none").mean(-1)}
