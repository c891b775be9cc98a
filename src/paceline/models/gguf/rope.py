"""``rope_parameters`` of a GGUF file: scaling from the metadata, and Llama 3's from the factors that it stores."""

import math
from typing import Any

import torch
from torch import Tensor

from paceline.models.gguf.file import GgufError, GgufFile

ROPE_FREQS = "rope_freqs.weight"
THETA = 10000.0  # where the file is silent
LOW, HIGH = 1.0, 4.0  # of every published model with Llama 3's scaling; only their ratios to the length have an effect
LENGTHS = tuple(2**power for power in (13, *range(4, 13), *range(14, 21)))  # 8192 first: that of Llama 3


def rope_parameters(file: GgufFile, architecture: str, head_dim: int) -> dict[str, Any]:
    """What transformers calls so. Raises GgufError for a scaling that cannot be said in its words, or not exactly."""
    keys = f"{architecture}.rope."
    theta, kind = file.fields.get(f"{keys}freq_base", THETA), file.fields.get(f"{keys}scaling.type", "none")
    factor, length = (file.fields.get(f"{keys}scaling.{key}") for key in ("factor", "original_context_length"))
    older = file.fields.get(f"{keys}scale_linear")
    plain = {"rope_type": "default", "rope_theta": _short(theta)}
    if ROPE_FREQS in file.tensors:
        return {**plain, **_llama3(file, plain["rope_theta"], head_dim)}
    if kind in ("none", "linear") and older is not None:
        kind, factor = "linear", older
    if kind == "none" and "rope_factors_long.weight" not in file.tensors:
        return plain
    if kind == "linear" and factor is not None:
        return {**plain, "rope_type": "linear", "factor": _short(factor)}
    unknown = [name for name in ("attn_factor", "yarn_attn_factor", "yarn_log_multiplier") if _set(file, keys, name)]
    if kind == "yarn" and factor is not None and length is not None and not unknown:
        betas = {name: file.fields.get(f"{keys}scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        given = {name: _short(value) for name, value in betas.items() if value is not None}
        found = {"rope_type": "yarn", "factor": _short(factor), "original_max_position_embeddings": int(length)}
        return {**plain, **found, **given}
    what = f"{kind!r} with {', '.join(unknown)}" if unknown else repr("longrope" if kind == "none" else kind)
    raise GgufError(
        f"{file.path}: RoPE scaling {what} cannot be converted; known are none, linear, yarn and Llama 3's; take the "
        "model's own Hugging Face directory"
    )


def _set(file: GgufFile, keys: str, name: str) -> bool:
    return file.fields.get(f"{keys}scaling.{name}") is not None


def _short(value: float) -> float:
    """The shortest decimal of a number that the file stores in 32 bits."""
    return float(str(torch.tensor(value, dtype=torch.float32).numpy()))


def _llama3(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's parameters that give the stored factors, one for each frequency."""
    stored = file.tensors[ROPE_FREQS].values().double()
    if len(stored) * 2 != head_dim:
        raise GgufError(f"{file.path}: {ROPE_FREQS} has {len(stored)} factors for heads of {head_dim}; fetch it again")
    factor = _short(float(stored.max()))
    for length in LENGTHS:
        found = _factors(theta, head_dim, factor, length)
        if torch.allclose(found, stored, rtol=1e-5, atol=0):
            names = {"factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH}
            return {"rope_type": "llama3", **names, "original_max_position_embeddings": length}
    raise GgufError(
        f"{file.path}: {ROPE_FREQS} is no scaling of Llama 3 for any usual length; take the model's own Hugging Face "
        "directory"
    )


def _factors(theta: float, head_dim: int, factor: float, length: int) -> Tensor:
    """By which each frequency is divided, as convert_hf_to_gguf.py computes it (arXiv:2407.21783)."""
    frequencies = 1 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    turns = length * frequencies / (2 * math.pi)  # within the length that the model was first trained for
    smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
