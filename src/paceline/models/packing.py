"""Matrices that read the same input lie in one tensor, so that one product serves them. Knows no checkpoint's names.

``unpack`` gives a decoder's tensors by the names of their parts (query, key, value; gate, up), ``pack`` the reverse.
"""

import torch
from torch import Tensor

from paceline.models.decoder import DecoderConfig

ATTENTION = ("query", "key", "value")
FFN = ("gate", "up")


def unpack(config: DecoderConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Part by part; the parts are views."""
    kv = config.num_kv_heads * config.head_dim
    parts: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".attention.qkv." in name:
            sizes = (config.num_heads * config.head_dim, kv, kv)
            parts.update(_named(name, "qkv", ATTENTION, tensor.split(sizes)))
        elif ".ffn.gate_up." in name:
            parts.update(_named(name, "gate_up", FFN, tensor.chunk(2)))
        else:
            parts[name] = tensor
    return parts


def pack(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's own tensors from ``unpack``'s names."""
    state: dict[str, Tensor] = {}
    for name, tensor in parts.items():
        if ".attention.query." in name:
            state[name.replace("query", "qkv")] = _joined(parts, name, ATTENTION)
        elif ".ffn.gate." in name:
            state[name.replace("gate", "gate_up")] = _joined(parts, name, FFN)
        elif not (".attention.key." in name or ".attention.value." in name or _is_gated_up(name, parts)):
            state[name] = tensor
    return state


def _named(name: str, whole: str, parts: tuple[str, ...], pieces: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {name.replace(f".{whole}.", f".{part}."): piece for part, piece in zip(parts, pieces, strict=True)}


def _joined(parts: dict[str, Tensor], name: str, names: tuple[str, ...]) -> Tensor:
    return torch.cat([parts[name.replace(f".{names[0]}.", f".{other}.")] for other in names])


def _is_gated_up(name: str, parts: dict[str, Tensor]) -> bool:
    return ".ffn.up." in name and name.replace(".up.", ".gate.") in parts
