"""Whisper: BART's layout over frames of sound, with norms before each part and keys without bias."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from paceline.models.families import bart
from paceline.models.families.base import Family, Fields, integer
from paceline.models.native.config import Arrangement, DecoderConfig


def _configure(raw: Fields) -> DecoderConfig:
    most, source = integer(raw, "max_target_positions"), integer(raw, "max_source_positions")
    config = bart.shape(raw, most=most, source=source, arrangement=Arrangement.NORM_BEFORE, final_norm=True)
    assert config.encoder is not None
    return replace(config, encoder=replace(config.encoder, num_features=integer(raw, "num_mel_bins", 80)))


def _read(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name == "model.decoder.embed_tokens.weight":
        yield "embed.weight", tensor
    elif name == "proj_out.weight":
        yield "head.weight", tensor
    else:
        for own, part in bart.read(name, tensor, offset=0):
            yield own, part
            if own.endswith(("attention.key.weight", "cross.key.weight")):  # the fused tensor's
                yield own.replace(".weight", ".bias"), tensor.new_zeros(len(tensor))


def _write(state: dict[str, Tensor]) -> dict[str, Tensor]:
    own = {name: tensor for name, tensor in state.items() if not name.endswith(".key.bias")}
    names = {"model.shared.weight": "model.decoder.embed_tokens.weight", "lm_head.weight": "proj_out.weight"}
    return {names.get(name, name): tensor for name, tensor in bart.write(own, offset=0).items()}


FAMILIES = {"whisper": Family(_configure, _read, _write, bart.DECODER_LAYERS)}
