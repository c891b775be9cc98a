"""The first layer of an EAGLE-3 head: queries, keys and values of a token's embedding beside a feature.

B rows, n nodes, H hidden size; inside, the residual stream is [B * n, H].
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.models.native.attention import Attend
from paceline.models.native.blocks import Block, Part
from paceline.models.native.config import DecoderConfig
from paceline.models.native.qkv import RotaryTable


@final
class PairBlock(Block):
    """Reads [B * n, 2 H], an embedding and a feature, and writes the residual stream [B * n, H] (2503.01840).

    ``attention_norm`` normalises the embedding and ``feature_norm`` the feature; attention reads both. The residual is
    the feature, or the normalised one.
    """

    def __init__(self, config: DecoderConfig, *, norm_before_residual: bool) -> None:
        super().__init__(config, 0)
        self.norm_before_residual = norm_before_residual
        self.feature_norm = config.norm(config.hidden_size, config.norm_eps)
        qkv = self.attention.qkv
        self.attention.qkv = nn.Linear(2 * config.hidden_size, qkv.out_features, bias=config.attention.bias)

    def forward(
        self, x: Tensor, layer: int, attend: Attend, table: RotaryTable, dropout: float, parts: Part = Part.BOTH
    ) -> Tensor:
        embedded, feature = x.chunk(2, dim=-1)
        normed = self.feature_norm(feature)
        x = normed if self.norm_before_residual else feature
        if Part.ATTENTION in parts:
            both = torch.cat((self.attention_norm(embedded), normed), dim=-1)
            added = self.attention(both, layer, attend, table)
            x = x + (F.dropout(added, dropout) if dropout else added)
        if Part.FFN in parts:
            added = self.ffn(self.ffn_norm(x))
            x = x + (F.dropout(added, dropout) if dropout else added)
        return x
