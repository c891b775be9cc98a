"""Which widths an inflated model has (inflate/model). Reads configs and makes no weights."""

import math
from dataclasses import replace

import torch

from paceline.models.loading import make_decoder
from paceline.models.native.decoder import DecoderConfig

MULTIPLE = 64  # widths that are chosen
TOLERANCE = 0.05  # of the number of parameters wanted


def choose_widths(config: DecoderConfig, num_parameters: int) -> DecoderConfig:
    """The widened config of about ``num_parameters`` that is nearest to the proportions of ``config``.

    Widths are multiples of 64; the heads grow with the hidden size. Raises ValueError where none come within 5 % of the
    number, which is so below the model's own size, untied.
    """
    found: list[DecoderConfig] = []
    group = config.num_heads // config.num_kv_heads
    smallest, least = _up(config.hidden_size), 0
    for hidden in range(smallest, smallest + 1024 * MULTIPLE, MULTIPLE):
        kv_heads = [count for count in range(config.num_kv_heads, hidden + 1) if hidden % (count * group) == 0]
        if not kv_heads:
            continue
        wanted = config.num_kv_heads * hidden / config.hidden_size
        chosen = min(kv_heads, key=lambda count, wanted=wanted: abs(math.log(count / wanted)))
        thin = widened(config, hidden, _up(config.ffn_size), chosen * group, chosen)
        left = num_parameters - count_parameters(thin)
        least = least or count_parameters(thin)
        channels = round(left / (3 * hidden * config.num_layers) / MULTIPLE) * MULTIPLE
        if channels < 0 and found:
            break
        found.append(replace(thin, ffn_size=thin.ffn_size + max(0, channels)))
    near = [one for one in found if abs(count_parameters(one) / num_parameters - 1) <= TOLERANCE]
    if not near:
        raise ValueError(
            f"num_parameters={num_parameters:,}: no widths in multiples of {MULTIPLE} come within 5 % of it; "
            f"untied, the model begins at {least:,}"
        )
    shape = config.ffn_size / config.hidden_size
    return min(near, key=lambda one: abs(math.log(one.ffn_size / one.hidden_size / shape)))


def widened(
    config: DecoderConfig, hidden_size: int, ffn_size: int, num_heads: int | None, num_kv_heads: int | None
) -> DecoderConfig:
    """``config`` with these widths and no tied head; None as in ``inflate``, which raises the same ValueError."""
    group = config.num_heads // config.num_kv_heads
    heads = config.num_heads if num_heads is None else num_heads
    kv_heads = max(1, heads // group) if num_kv_heads is None else num_kv_heads
    wide = replace(
        config,
        hidden_size=hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        ffn_size=ffn_size,
        norm_eps=config.norm_eps * config.hidden_size / max(1, hidden_size),
        tied_head=False,
    )
    llama = DecoderConfig(
        vocab_size=wide.vocab_size,
        hidden_size=wide.hidden_size,
        num_layers=wide.num_layers,
        num_heads=wide.num_heads,
        num_kv_heads=wide.num_kv_heads,
        head_dim=wide.head_dim,
        ffn_size=wide.ffn_size,
        max_positions=wide.max_positions,
        norm_eps=wide.norm_eps,
        rotary=wide.rotary,
    )
    if wide != llama or wide.rotary is None:
        raise ValueError(
            "only models of the Llama layout can be inflated: rotary positions, RMSNorm, SwiGLU, no biases"
        )
    for name, given, limit in (
        ("hidden_size", hidden_size, config.hidden_size),
        ("ffn_size", ffn_size, config.ffn_size),
        ("num_heads", heads, config.num_heads),
        ("num_kv_heads", kv_heads, config.num_kv_heads),
    ):
        if given < limit:
            raise ValueError(f"{name}={given} is less than the model's own {limit}; give at least that")
    if hidden_size % heads:
        raise ValueError(
            f"num_heads={heads} does not divide hidden_size={hidden_size}: transformers reads no such model"
        )
    if heads % kv_heads or heads // kv_heads < group:
        raise ValueError(
            f"num_heads={heads} over num_kv_heads={kv_heads}: give a multiple, {group} query heads for each at least"
        )
    return wide


def _up(width: int) -> int:
    return -(-width // MULTIPLE) * MULTIPLE


def count_parameters(config: DecoderConfig) -> int:
    """Numbers in all tensors of a model of this config."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make_decoder(config).parameters())
