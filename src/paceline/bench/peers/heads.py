"""A Llama's attention heads made wider by zeros, for a peer that has no kernel for their width. It computes the same.

Scores are products of a query and a key over the root of the width: zeros add nothing to a product, and queries are
scaled by what the root changes. Rotary positions turn the old part of a head alone.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

WIDTHS: Final = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # vLLM's kernels on a CPU have these
QUERY: Final = ".self_attn.q_proj.weight"
OTHERS: Final = (".self_attn.k_proj.weight", ".self_attn.v_proj.weight")
OUTPUT: Final = ".self_attn.o_proj.weight"


def width_for(model: Path) -> int | None:
    """The width that the heads of ``model`` need; None where theirs has a kernel, or nothing is known of it."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    width = config.get("head_dim")
    if config["model_type"] != "llama" or config.get("attention_bias") or width is None or width in WIDTHS:
        return None
    return next((wider for wider in WIDTHS if wider > width), None)


def widen_heads(model: Path, output: Path, *, width: int) -> None:
    """Write ``model``, a Llama without biases, to ``output`` with heads of ``width``; tokenizers are copied."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    narrow = config["head_dim"]
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        weights.update(load_file(file))
    for name, weight in weights.items():
        if name.endswith((QUERY, *OTHERS)):
            scale = math.sqrt(width / narrow) if name.endswith(QUERY) else 1.0
            heads = weight.unflatten(0, (-1, narrow)).double() * scale
            wider = torch.nn.functional.pad(heads, (0, 0, 0, width - narrow)).flatten(0, 1)
            weights[name] = wider.to(weight.dtype).contiguous()
        elif name.endswith(OUTPUT):
            heads = weight.unflatten(1, (-1, narrow))
            weights[name] = torch.nn.functional.pad(heads, (0, width - narrow)).flatten(1).contiguous()
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {"rope_type": "default"}
    theta = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    config["rope_parameters"] = {**theta, **rope, "partial_rotary_factor": narrow / width}
    config["head_dim"] = width
    output.mkdir(parents=True, exist_ok=True)
    for file in model.glob("*.json"):
        if file.name not in ("config.json", "model.safetensors.index.json"):
            shutil.copy(file, output)
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    (output / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
