"""The attention of training-time test: a draft from every anchor of a sequence at once, step by step (2503.01840, 3.2).

B rows, T positions, A anchors, n queries of a call, H key-value heads, G query heads for each, E head size.
"""

from typing import final

import torch
from torch import Tensor

from paceline.models.native.attention import CausalAttention, WithoutSource


@final
class UnrolledAttention(WithoutSource):
    """Step 0 is causal over T positions. In each later step, position a of ``anchors`` sees three kinds of keys:

    those of step 0 up to a, its own of the steps between, and its own of this step, which stands at position a + step.
    That is what a draft from a sees in a cache that has committed step 0 up to a.
    """

    def __init__(self, rows: int, length: int, anchors: Tensor, *, segment: Tensor | None = None) -> None:
        """``anchors`` [B, A] int64; ``segment`` [B, T] as in CausalAttention."""
        self._first = CausalAttention(rows, length, anchors.device, segment)
        self.positions = self._first.positions  # [B, n] of this step's queries
        self._at_anchors = self.positions.gather(1, anchors)
        index = torch.arange(length, device=anchors.device)
        visible = index <= anchors[..., None]
        if segment is not None:
            visible = visible & (segment[:, None, :] == segment.gather(1, anchors)[..., None])
        self._hidden = ~visible[:, None, None]  # [B, 1, 1, A, T]
        self._step = 0
        self._keys: dict[int, list[Tensor]] = {}  # by layer: of step 0 [B, T, H, E], then [B, A, H, E] each
        self._values: dict[int, list[Tensor]] = {}

    def advance(self) -> None:
        """Begin the next step."""
        self._step += 1
        self.positions = self._at_anchors + self._step

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See models/native/attention.Attend; n is T in step 0 and A in all others."""
        self._keys.setdefault(layer, []).append(key)
        self._values.setdefault(layer, []).append(value)
        if self._step == 0:
            return self._first(layer, query, key, value)
        (keys, *own_keys), (values, *own_values) = self._keys[layer], self._values[layer]
        grouped = query.unflatten(2, (key.shape[2], -1))  # [B, A, H, G, E]
        scores = torch.einsum("bahge,bthe->bhgat", grouped, keys).masked_fill(self._hidden, -torch.inf)
        own = torch.stack([torch.einsum("bahge,bahe->bhga", grouped, one) for one in own_keys], dim=-1)
        whole = torch.cat((scores, own), dim=-1) * query.shape[-1] ** -0.5
        shares = whole.softmax(-1, dtype=torch.promote_types(whole.dtype, torch.float32)).to(value.dtype)
        before, drafted = shares.split((keys.shape[1], len(own_keys)), dim=-1)
        out = torch.einsum("bhgat,bthe->bahge", before, values)
        for index, one in enumerate(own_values):
            out = out + torch.einsum("bhga,bahe->bahge", drafted[..., index], one)
        return out.flatten(2, 3)
