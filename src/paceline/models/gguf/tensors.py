"""Tensors of a GGUF file under the names, and in the layout, of a Hugging Face checkpoint.

llama.cpp changes some on the way (convert_hf_to_gguf.py); ``RESTORE`` undoes it, by architecture.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.models.families import FAMILIES
from paceline.models.gguf.config import READ
from paceline.models.gguf.file import GgufError, GgufFile, GgufTensor
from paceline.models.loading import configure, listing, stored_tensors

Restore = Callable[[str, Tensor, Mapping[str, Any]], Tensor]


@dataclass(frozen=True, slots=True)
class Conversion:
    """One tensor of the checkpoint: ``name`` and ``shape`` there, and where it comes from."""

    name: str
    shape: tuple[int, ...]
    source: GgufTensor
    restore: Callable[[Tensor], Tensor]

    def values(self, dtype: torch.dtype) -> Tensor:
        """Its content, from the file. Raises GgufError for numbers that are not finite in ``dtype``."""
        found = self.restore(self.source.values()).to(dtype).contiguous()
        if not bool(torch.isfinite(found).all()):
            raise GgufError(
                f"{self.source.name} holds numbers that are NaN or infinite in {str(dtype).removeprefix('torch.')}: "
                "give --dtype float32, or fetch the file again"
            )
        return found


def plan(file: GgufFile, config: Mapping[str, Any]) -> list[Conversion]:
    """What ``file`` gives for each tensor of the model that ``config`` describes; reads none.

    Raises GgufError for tensors that lack, that nobody needs or that have another shape, ModelError for a config that
    the native decoder refuses.
    """
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    architecture = str(file.fields["general.architecture"])
    known = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    native = configure(dict(config), file.path)
    names = get_tensor_name_map(known, native.num_layers)
    restore = RESTORE.get(architecture, _as_it_is)
    found: list[Conversion] = []
    missing: list[str] = []
    for name, wanted in stored_tensors(FAMILIES[config["model_type"]], native).items():
        base, _, suffix = name.rpartition(".")
        stored = f"{names.get_name(base)}.{suffix}"
        source = file.tensors.get(stored)
        if source is None:
            missing.append(stored)
            continue

        def restored(tensor: Tensor, stored: str = stored) -> Tensor:
            return restore(stored, tensor, config)

        found.append(Conversion(name, tuple(wanted.shape), source, restored))
    extra = file.tensors.keys() - {conversion.source.name for conversion in found} - READ
    if missing or extra:
        lists = [f"{what} {listing(which)}" for what, which in (("lack", missing), ("hold also", extra)) if which]
        raise GgufError(f"{file.path}: its tensors are not those of a {architecture} model: they {' and '.join(lists)}")
    for conversion in found:
        _check_shape(file, conversion)
    return found


def _check_shape(file: GgufFile, conversion: Conversion) -> None:
    try:
        shape = tuple(conversion.restore(torch.empty(conversion.source.shape, device="meta")).shape)
    except RuntimeError:  # of a layout that cannot be undone
        shape = None
    if shape != conversion.shape:
        raise GgufError(
            f"{file.path}: {conversion.source.name} has shape {conversion.source.shape}, which does not fit its "
            "metadata; fetch it again"
        )


def _as_it_is(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    return tensor


def _unpermuted(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Queries and keys with the two halves of each head one after the other, as rotated by transformers.

    llama.cpp rotates neighbours here, and writes number i of both halves side by side.
    """
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    pairs = tensor.reshape(config[heads], -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _without_offset(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Norms less the 1 that their module adds."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _transposed(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Matrices of the layers as [in, out]."""
    return tensor.t() if name.startswith("blk.") and tensor.dim() == 2 else tensor


def _interleaved(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Query, key and value of each head together."""
    if ".attn_qkv." not in name:
        return tensor
    parts = tensor.reshape(3, config["num_attention_heads"], -1, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape)


RESTORE: dict[str, Restore] = {
    "llama": _unpermuted,
    "granite": _unpermuted,
    "smollm3": _unpermuted,
    "gemma": _without_offset,
    "gpt2": _transposed,
    "gptneox": _interleaved,
}
