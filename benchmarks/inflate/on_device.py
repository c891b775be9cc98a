"""A large target made on the device from a small one, and transformers' model over the same weights. Times nothing.

Nothing of the large model is ever written to a disk or held by the host.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from benchmarks.inflate.model import fields_of, inflate_to
from benchmarks.inflate.widths import choose_widths, count_parameters
from paceline.api import Loaded, load
from paceline.bench.peers.transformers import load_peer
from paceline.models.loading import find_family
from paceline.models.memory import free_memory
from paceline.models.native.attention import TreeAttention
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.fused_weights import split_parts

GIB = 1 << 30
ROOM = 1.25  # memory wanted beside the weights: a layer in float64 while it is made, then caches and logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Ours and theirs, on one device, in one precision; both targets read the same memory."""

    target: Loaded
    draft: Loaded
    peer: Any  # as transformers' checkers have it (bench/peers)
    peer_draft: Any


def make_models(
    target: Path,
    draft: Path,
    *,
    num_parameters: int,
    dtype: torch.dtype,
    device: torch.device,
    enforce_eager: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Models:
    """``target`` inflated to about ``num_parameters`` on ``device``, and its draft as it is.

    ``enforce_eager`` has steps called operation by operation, and read at once.
    Raises ValueError where the device has too little memory left, before anything large is made.
    """
    say = progress or (lambda _: None)
    small = load(target, dtype=dtype, device=device, enforce_eager=enforce_eager)
    if not isinstance(small.lm, DecoderLM):
        raise ValueError(f"{target}: only native models can be inflated; give one of the Llama layout")
    wanted = count_parameters(choose_widths(small.lm.config, num_parameters)) * dtype.itemsize
    free = free_memory(device)
    if ROOM * wanted > free:
        fitting = int(free / ROOM / dtype.itemsize)
        raise ValueError(
            f"{num_parameters:,} parameters take {wanted / GIB:.1f} GiB and some room, of which {device} has "
            f"{free / GIB:.1f} left: give --parameters {fitting // 10**6}M or fewer"
        )
    lm = inflate_to(
        small.lm, num_parameters=num_parameters, progress=lambda done, total: say(f"inflating, layer {done} of {total}")
    )
    say("transformers' model over the same weights")
    config = small.config | fields_of(lm.config)
    return Models(
        target=replace(small, lm=lm, config=config),
        draft=load(draft, dtype=dtype, device=device, enforce_eager=enforce_eager),
        peer=share(lm, config),
        peer_draft=load_peer(draft, dtype=dtype, device=device),
    )


def attend_densely(models: Models) -> None:
    """Have our models read all slots of their caches at every step."""
    for loaded in (models.target, models.draft):
        assert isinstance(loaded.lm, DecoderLM)
        loaded.lm.attention = TreeAttention


def share(lm: DecoderLM, config: dict[str, object]) -> Any:
    """transformers' model of ``config`` over the weights of ``lm``, without defaults of its own. Copies none."""
    fields = {name: value for name, value in config.items() if name not in ("model_type", "torch_dtype", "dtype")}
    parsed = AutoConfig.for_model(str(config["model_type"]), **fields)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(parsed, dtype=lm.dtype)
    family = find_family(config, "the inflated target")
    model.load_state_dict(family.write(split_parts(lm.config, lm.state_dict())), assign=True)
    # Buffers that no checkpoint holds have no storage yet: the angles of the positions.
    model.model.rotary_emb = type(model.model.rotary_emb)(parsed).to(lm.device)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if left:
        raise ValueError(f"this version of transformers has {left[0]}, which nobody fills; report it")
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False).eval()
