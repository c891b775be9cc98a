"""What the families share: the shape of a family, names, and the reading of config fields. Knows no family.

Where a config.json leaves fields out, ``complete`` asks transformers, whose configs take longer to import than torch.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.directory import AGAIN
from paceline.models.native.config import DecoderConfig
from paceline.models.native.fused_weights import fuse_parts
from paceline.models.native.layers import RotaryConfig, gelu_tanh

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

STATIC_SCALINGS = ("llama3", "linear", "yarn")  # frequencies that do not depend on the sequence length
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "swish": F.silu,
}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
IGNORED = ("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")  # of old checkpoints: the config says it
COPY = "embed.copy"  # ends our names of what a checkpoint may store beside the table of embeddings, equal to it
Fields: TypeAlias = dict[str, object]
Names: TypeAlias = tuple[tuple[str, str], ...]


class InvalidConfig(ValueError):
    """A config.json with a value of another type than its field's, which no other backend reads either."""


@dataclass(frozen=True, slots=True)
class Family:
    """Maps one ``model_type``."""

    configure: Callable[[dict[str, object]], DecoderConfig]
    read: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
    write: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    decoder_layers: str | None = None  # of an encoder-decoder: the field of config.json that counts them
    unstored: Callable[[DecoderConfig], dict[str, Tensor]] = lambda config: {}  # what checkpoints may leave out


@cache  # the same few names again and again, whenever is_current is called
def swap(pairs: Names, name: str, *, back: bool = False) -> str:
    """``name`` with the stored words of ``pairs`` in place of ours, or ours in place of the stored."""
    for stored, own in pairs:
        pattern, replacement = (own, stored) if back else (stored, own)
        found, changed = re.subn(rf"(^|\.){re.escape(pattern)}(\.|$)", rf"\g<1>{replacement}\g<2>", name)
        if changed:
            name = found
    return name


def renaming(configure: Callable[[dict[str, object]], DecoderConfig], names: Names, *, packed: bool = False) -> Family:
    """A family whose tensors are ours under other names. ``packed``: stored as we pack them, not by their parts."""

    def read(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        if not name.endswith(IGNORED):
            yield swap(names, name), tensor

    def write(state: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors = fuse_parts(dict(state)) if packed else state
        return {swap(names, own, back=True): tensor for own, tensor in tensors.items()}

    return Family(configure, read, write)


def parse(raw: Fields) -> "PreTrainedConfig":
    """transformers' reading of config.json. Raises InvalidConfig for what it refuses."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        fields = copy.deepcopy(raw)  # AutoConfig writes into nested dictionaries
        return AutoConfig.for_model(str(fields.pop("model_type")), **fields)
    except (StrictDataclassError, LookupError, TypeError, ArithmeticError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split())
        raise InvalidConfig(f"transformers refuses config.json: {reason}; {AGAIN}") from error


def rotary(fields: Fields, head_dim: int, *, partial: bool = False, wide: bool = False) -> RotaryConfig:
    """Frequencies of a complete config. ``partial``: perhaps of only the first numbers of a head. Raises ValueError."""
    rope: dict[str, Any] = dict(cast(Mapping[str, Any], fields["rope_parameters"]))
    kind = rope.get("rope_type", "default")
    rotary_dim = int(head_dim * rope.get("partial_rotary_factor", 1.0)) if partial else head_dim
    if kind == "default":
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
        frequencies, factor = 1.0 / rope["rope_theta"] ** exponents, 1.0
    elif kind in STATIC_SCALINGS:
        frequencies, factor = _scaled(kind, fields)
    else:
        raise ValueError(f"rope scaling {kind!r} is not supported; supported: default, {', '.join(STATIC_SCALINGS)}")
    if 2 * len(frequencies) != rotary_dim:
        if partial:
            raise ValueError(
                f"partial_rotary_factor: {rotary_dim} of {head_dim} elements of a head rotated, not an even number"
            )
        raise ValueError("partial_rotary_factor is not supported by the native decoder")
    return RotaryConfig(tuple(frequencies.tolist()), float(factor), wide)


def require(raw: dict[str, object], name: str, value: object, default: object) -> None:
    """Raise ValueError naming the option ``name`` unless it has the one value that is supported."""
    found = raw.get(name, default)
    if found != value:
        raise ValueError(f"{name}={found!r} is not supported by the native decoder, only {value!r}")


def integer(raw: dict[str, object], name: str, default: int | None = None) -> int:
    """A positive count; null is the default.

    Raises KeyError if there is none, InvalidConfig for what is no whole number, ValueError if it is not positive.
    """
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise KeyError(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidConfig(f"config.json has {name}={value!r}: {name} is a whole number; {AGAIN}")
    if value < 1:
        raise ValueError(f"{name}={value}: a positive count is needed")
    return value


def number(raw: dict[str, object], name: str, default: float) -> float:
    """A number; null is the default. Raises InvalidConfig for anything else."""
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidConfig(f"config.json has {name}={value!r}: {name} is a number; {AGAIN}")
    return float(value)


def activation(fields: dict[str, object], name: str = "hidden_act") -> Callable[[Tensor], Tensor]:
    """The function that ``fields`` names. Raises ValueError naming those that are known."""
    found = fields.get(name)
    if found not in ACTIVATIONS:
        raise ValueError(
            f"{name}={found!r} is not supported by the native decoder; supported: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[str(found)]


def complete(raw: Fields, plain: Mapping[str, type] | None = None) -> Fields:
    """The fields of a config, with what ``raw`` leaves out as transformers has it; sizes may not be left out.

    ``plain``: all fields that the family reads but the rotary ones, which transformers gives as they are in the file.
    Where ``raw`` has every one of them, of its type, and plain rotary ones, transformers is not asked. Raises KeyError
    for a size that is missing, ValueError for one that is not positive and what transformers refuses.
    """
    for name in SIZES:
        integer(raw, name)
    rope = _plain_rope(raw)
    if plain is not None and rope is not None and all(type(raw.get(name)) is kind for name, kind in plain.items()):
        return {**raw, "rope_parameters": rope}
    return parse(raw).to_dict()


def _plain_rope(raw: Fields) -> Fields | None:
    """The rotary fields of ``raw`` in today's spelling; None unless they are the base of the frequencies alone."""
    rope = raw.get("rope_parameters") or {"rope_type": "default", "rope_theta": raw.get("rope_theta")}
    if raw.get("rope_scaling") or "partial_rotary_factor" in raw or not isinstance(rope, dict):
        return None
    plain = rope.keys() == {"rope_type", "rope_theta"} and rope["rope_type"] == "default"
    return rope if plain and isinstance(rope["rope_theta"], float) else None


def _scaled(kind: str, fields: Fields) -> tuple[Tensor, float]:
    """Frequencies and the factor of attention of a scaling that transformers knows."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS[kind](parse(fields), torch.device("cpu"))


def window(fields: Fields) -> int | None:
    """The tokens that a layer with a sliding window sees, None where no text can be longer."""
    size, kinds = fields.get("sliding_window"), fields.get("layer_types")
    if not isinstance(size, int) or size >= integer(fields, "max_position_embeddings"):
        return None
    return size if not isinstance(kinds, list) or "sliding_attention" in kinds else None
