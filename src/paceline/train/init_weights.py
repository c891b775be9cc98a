"""Randomly initialised models, to be trained from scratch."""

from collections.abc import Mapping
from typing import Any

import torch

from paceline.models.loading import build, configure, make_decoder
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.fused_weights import split_parts

STD = 0.02


def random_model(raw: Mapping[str, Any], seed: int) -> DecoderLM:
    """A model with random weights; projections back into the residual stream are scaled down with depth.

    ``raw`` is a config.json. Raises ModelError if it describes no native model.
    """
    config = configure(dict(raw), "a model from scratch")
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: part.shape for name, part in split_parts(config, make_decoder(config).state_dict()).items()}
    state = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            state[name] = torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
            continue
        residual = name.endswith(("attention.output.weight", "ffn.down.weight"))
        scale = STD / (2 * config.num_layers) ** 0.5 if residual else STD
        state[name] = torch.randn(shape, generator=generator) * scale
    return build(config, state).requires_grad_(True)
