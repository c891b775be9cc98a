"""A large Whisper with the function of a small one: every channel, feed-forward channel and head, several times.

Its norms subtract the mean and have biases, its head is the table of embeddings, and so no random basis carries its
residual streams as those of a Llama's (inflate/model). Copies of channels do: mean and variance stay, so that norms
stay; matrices that read r copies of a channel have r-th parts of its column, and those that write it write it r times.
The last norm is an r-th of what it was, as the head reads r copies by the table that wrote them.

In exact arithmetic nothing changes. Layers, positions and token ids are as many as before.
"""

from dataclasses import replace

from torch import Tensor

from benchmarks.inflate.widths import TOLERANCE, count_parameters
from paceline.models.loading import build
from paceline.models.native.decoder import DecoderConfig, DecoderLM
from paceline.models.native.fused_weights import split_parts

TABLES = ("embed.weight", "position.weight")  # a row for each id or place
SOUND = "encoder.conv1.weight"  # reads features, which are not repeated
LAST = ("norm.weight", "norm.bias")


def repeat_to(lm: DecoderLM, *, num_parameters: int) -> DecoderLM:
    """``lm`` with about ``num_parameters`` parameters. Raises ValueError where no factor comes within 5 % of it."""
    sizes = {1: count_parameters(lm.config)}
    while (largest := max(sizes)) and sizes[largest] < num_parameters:
        sizes[largest + 1] = count_parameters(widened(lm.config, largest + 1))
    factor = min(sizes, key=lambda one: abs(sizes[one] - num_parameters))
    if abs(sizes[factor] / num_parameters - 1) > TOLERANCE:
        near = ", ".join(f"{sizes[one]:,}" for one in sorted(sizes)[-2:])
        raise ValueError(
            f"num_parameters={num_parameters:,}: channels are repeated as a whole, and no factor comes within 5 % of "
            f"it; near it are {near}"
        )
    return repeat(lm, factor)


def repeat(lm: DecoderLM, factor: int) -> DecoderLM:
    """``lm`` with its widths ``factor`` times, the same function, in its own precision.

    Raises ValueError for a model that is not of Whisper's layout.
    """
    config = widened(lm.config, factor)
    parts = split_parts(lm.config, lm.state_dict())
    state = {name: _repeated(name, part.double(), factor).to(part) for name, part in parts.items()}
    return build(config, state, device=lm.device)


def widened(config: DecoderConfig, factor: int) -> DecoderConfig:
    """``config`` with its widths ``factor`` times. Raises ValueError as ``repeat`` does."""
    if config.cross is None or config.encoder is None or config.encoder.num_features is None or not config.tied_head:
        raise ValueError("only encoder-decoders of Whisper's layout are inflated by repeating, with a tied head")

    def wide(stack: DecoderConfig) -> DecoderConfig:
        return replace(
            stack,
            hidden_size=factor * stack.hidden_size,
            num_heads=factor * stack.num_heads,
            num_kv_heads=factor * stack.num_kv_heads,
            ffn_size=factor * stack.ffn_size,
        )

    return replace(
        wide(config),
        cross=replace(config.cross, source_size=factor * config.cross.source_size),
        encoder=replace(config.encoder, blocks=wide(config.encoder.blocks)),
    )


def fields_of(shape: DecoderConfig) -> dict[str, object]:
    """What config.json of Whisper says of the widths of ``shape``."""
    assert shape.encoder is not None
    encoder = shape.encoder.blocks
    return {
        "d_model": shape.hidden_size,
        "decoder_attention_heads": shape.num_heads,
        "decoder_ffn_dim": shape.ffn_size,
        "encoder_attention_heads": encoder.num_heads,
        "encoder_ffn_dim": encoder.ffn_size,
    }


def _repeated(name: str, part: Tensor, factor: int) -> Tensor:
    """``part`` [out], [out, in] or [out, in, taps] with what it writes repeated, and what it reads shared."""
    if part.dim() == 1:
        return part.repeat(factor) / (factor if name in LAST else 1)
    if name.removeprefix("encoder.") in TABLES:
        return part.repeat(1, factor)
    trailing = (1,) * (part.dim() - 2)
    if name == SOUND:
        return part.repeat(factor, 1, *trailing)
    return part.repeat(factor, factor, *trailing) / factor
