"""The tensors of a view of a cache, as the CPU kernel takes them.

R rows of the storage, B of the view, L layers, S slots, X states of a source, K key-value heads, E head size.
"""

from typing import NamedTuple

from torch import Tensor

from paceline.core.cache import View
from paceline.models.native.attention import SOURCE_KEYS, SOURCE_LENGTH, SOURCE_VALUES


class KVView(NamedTuple):
    """Keys and values of the rows' own tokens, and of the encoder's states that they read; None without an encoder."""

    keys: Tensor  # [L, R, S, K, E]
    values: Tensor
    length: Tensor  # [B]
    rows: Tensor | None  # [B] of the storage; None: all of them
    source_keys: Tensor | None = None  # [R, L, X, K, E]
    source_values: Tensor | None = None
    source_length: Tensor | None = None  # [R]

    @staticmethod
    def of(cache: View) -> "KVView":
        storage = cache.storage
        own = (storage.keys, storage.values, cache.length, cache.rows)
        if SOURCE_KEYS not in storage.row_state:
            return KVView(*own)
        return KVView(*own, *(storage.row_state[name] for name in (SOURCE_KEYS, SOURCE_VALUES, SOURCE_LENGTH)))
