"""Relative position biases (1910.10683): numbers added to attention scores by the distance of query and key.

B rows, n queries, m keys, H heads.
"""

import math

import torch
from torch import Tensor, nn

from paceline.models.native.config import RelativeBias


class RelativePositions(nn.Module):
    """A number for each bucket of distances and each head. ``both_ways``: keys may follow their queries."""

    def __init__(self, config: RelativeBias, num_heads: int, *, both_ways: bool) -> None:
        super().__init__()
        self.config, self.both_ways = config, both_ways
        self.weight = nn.Parameter(torch.empty(config.num_buckets, num_heads))

    def forward(self, distance: Tensor) -> Tensor:
        """What is added [B, H, n, m] at ``distance`` [B, n, m], the position of the query less that of the key."""
        return self.weight[self.buckets(distance)].permute(0, 3, 1, 2)

    def buckets(self, distance: Tensor) -> Tensor:
        """The bucket of each distance, of any shape. One way, keys that follow their queries count as beside them."""
        count, most = self.config.num_buckets, self.config.max_distance
        after = torch.zeros_like(distance)
        if self.both_ways:
            count //= 2
            after, distance = torch.where(distance < 0, count, 0), distance.abs()
        distance = distance.clamp(min=0)
        exact = count // 2
        # In float32, as in transformers: a distance at an edge must fall on the same side.
        wide = (distance.clamp(min=1).float() / exact).log() / math.log(most / exact) * (count - exact)
        return after + torch.where(distance < exact, distance, (exact + wide.long()).clamp(max=count - 1))

    def buckets_by_distance(self) -> Tensor:
        """The bucket [max_distance + 1] int64 of each distance of a key before its query; further ones as the last."""
        return self.buckets(torch.arange(self.config.max_distance + 1, device=self.weight.device))
