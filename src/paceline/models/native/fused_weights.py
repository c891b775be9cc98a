"""Fused weights: matrices that read the same input (query, key, value; gate, up) are one tensor and one GEMM.

So are keys and values of cross-attention.

``split_parts`` gives a decoder's tensors by the names of their parts, ``fuse_parts`` the reverse.
"""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from paceline.models.native.config import DecoderConfig

ATTENTION = ("query", "key", "value")
CROSS = ("key", "value")
FFN = ("gate", "up")
ENCODER = "encoder."  # tensors of the encoder of an encoder-decoder


def split_parts(config: DecoderConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parts of each tensor, as views. Interleaved queries, keys and values are one part."""
    parts: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".attention.qkv." in name and not config.attention.interleaved:
            own = config.encoder.blocks if name.startswith(ENCODER) and config.encoder is not None else config
            kv = own.num_kv_heads * own.head_dim
            sizes = (own.num_heads * own.head_dim, kv, kv)
            parts.update(zip(_siblings(name, "qkv", ATTENTION), tensor.split(sizes), strict=True))
        elif ".cross.key_value." in name:
            parts.update(zip(_siblings(name, "key_value", CROSS), tensor.chunk(2), strict=True))
        elif ".ffn.gate_up." in name:
            parts.update(zip(_siblings(name, "gate_up", FFN), tensor.chunk(2), strict=True))
        else:
            parts[name] = tensor
    return parts


def fused_groups(names: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A decoder's own tensors, each with its parts; an unfused one is its own part."""
    for name in names:
        if ".attention.query." in name:
            yield name.replace(".query.", ".qkv."), _siblings(name, "query", ATTENTION)
        elif ".cross.key." in name:
            yield name.replace(".key.", ".key_value."), _siblings(name, "key", CROSS)
        elif ".ffn.gate." in name:
            yield name.replace(".gate.", ".gate_up."), _siblings(name, "gate", FFN)
        elif not (any(word in name for word in _LATER) or _is_gated_up(name, names)):
            yield name, (name,)


def fuse_parts(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's own tensors from ``split_parts``'s names; those that are fused already pass through.

    Empties ``parts`` on the way, so that at most one tensor is in memory twice.
    """
    state: dict[str, Tensor] = {}
    for whole, names in list(fused_groups(parts)):
        pieces = [parts.pop(name) for name in names]
        state[whole] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return state


_LATER = (".attention.key.", ".attention.value.", ".cross.value.")  # parts that follow the first of their tensor


def _siblings(name: str, one: str, all_names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.replace(f".{one}.", f".{other}.") for other in all_names)


def _is_gated_up(name: str, names: Collection[str]) -> bool:
    return ".ffn.up." in name and name.replace(".up.", ".gate.") in names
