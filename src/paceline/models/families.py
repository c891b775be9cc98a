"""How each checkpoint family maps to the native decoder: its config and its tensor names. Reads no files.

A family is one entry in FAMILIES: ``configure`` reads config.json's fields, ``read`` maps a stored tensor to ours and
``write`` all of ours (by their parts, models/packing) to the stored ones. ``read`` never copies: what it yields is the
tensor itself or a view, a packed one where the checkpoint packs likewise.
"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.models.decoder import DecoderConfig
from paceline.models.layers import RotaryConfig

STATIC_SCALINGS = ("llama3", "linear", "yarn")  # frequencies that do not depend on the length of the text


@dataclass(frozen=True, slots=True)
class Family:
    """Maps one ``model_type``."""

    configure: Callable[[dict[str, object]], DecoderConfig]
    read: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
    write: Callable[[dict[str, Tensor]], dict[str, Tensor]]


@cache  # the same few names again and again, whenever a caller asks whether an adopted model is current
def _swap(pairs: tuple[tuple[str, str], ...], name: str, *, back: bool = False) -> str:
    for stored, own in pairs:
        pattern, replacement = (own, stored) if back else (stored, own)
        found, changed = re.subn(rf"(^|\.){re.escape(pattern)}(\.|$)", rf"\g<1>{replacement}\g<2>", name)
        if changed:
            name = found
    return name


_LLAMA_NAMES = (
    ("model.embed_tokens", "embed"),
    ("model.norm", "norm"),
    ("lm_head", "head"),
    ("model.layers", "blocks"),
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.output"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn.gate"),
    ("mlp.up_proj", "ffn.up"),
    ("mlp.down_proj", "ffn.down"),
)


def _rotary(raw: dict[str, object], head_dim: int) -> RotaryConfig:
    """Frequencies of ``raw``, old (rope_theta, rope_scaling) or new (rope_parameters) spelling. Raises ValueError."""
    try:
        fields = copy.deepcopy(raw)  # AutoConfig writes into nested dictionaries
        config = AutoConfig.for_model(str(fields.pop("model_type")), **fields)
    except (StrictDataclassError, KeyError, TypeError) as error:
        raise ValueError(f"transformers refuses config.json: {error.args[0] if error.args else error}") from error
    rope = dict(config.rope_parameters)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return RotaryConfig(tuple((1.0 / rope["rope_theta"] ** exponents).tolist()))
    if kind not in STATIC_SCALINGS:
        raise ValueError(f"rope scaling {kind!r} is not supported; supported: default, {', '.join(STATIC_SCALINGS)}")
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    if 2 * len(frequencies) != head_dim:
        raise ValueError("partial_rotary_factor is not supported by the native decoder")
    return RotaryConfig(tuple(frequencies.tolist()), float(factor))


def _require(raw: dict[str, object], name: str, value: object, default: object) -> None:
    found = raw.get(name, default)
    if found != value:
        raise ValueError(f"{name}={found!r} is not supported by the native decoder, only {value!r}")


def _int(raw: dict[str, object], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int):
        raise KeyError(name)
    if value < 1:
        raise ValueError(f"{name}={value}: a positive count is needed")
    return value


def _float(raw: dict[str, object], name: str, default: float) -> float:
    value = raw.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def _configure_llama(raw: dict[str, object]) -> DecoderConfig:
    _require(raw, "hidden_act", "silu", "silu")
    _require(raw, "attention_bias", False, False)
    _require(raw, "mlp_bias", False, False)
    hidden, heads = _int(raw, "hidden_size"), _int(raw, "num_attention_heads")
    kv_heads, head_dim = _int(raw, "num_key_value_heads", heads), _int(raw, "head_dim", hidden // heads)
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    return DecoderConfig(
        vocab_size=_int(raw, "vocab_size"),
        hidden_size=hidden,
        num_layers=_int(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=_int(raw, "intermediate_size"),
        max_positions=_int(raw, "max_position_embeddings", 2048),
        norm_eps=_float(raw, "rms_norm_eps", 1e-6),
        rotary=_rotary(raw, head_dim),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
    )


def _read_llama(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not name.endswith("rotary_emb.inv_freq"):  # old checkpoints store what the config already says
        yield _swap(_LLAMA_NAMES, name), tensor


def _write_llama(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_swap(_LLAMA_NAMES, own, back=True): tensor for own, tensor in state.items()}


_GPT2_NAMES = (
    ("transformer.wte", "embed"),
    ("transformer.wpe", "position"),
    ("transformer.ln_f", "norm"),
    ("lm_head", "head"),
    ("transformer.h", "blocks"),
    ("attn.c_attn", "attention.qkv"),
    ("attn.c_proj", "attention.output"),
    ("ln_1", "attention_norm"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn.up"),
    ("mlp.c_proj", "ffn.down"),
)


def _configure_gpt2(raw: dict[str, object]) -> DecoderConfig:
    _require(raw, "activation_function", "gelu_new", "gelu_new")
    _require(raw, "scale_attn_by_inverse_layer_idx", False, False)
    _require(raw, "scale_attn_weights", True, True)
    hidden, heads = _int(raw, "n_embd"), _int(raw, "n_head")
    return DecoderConfig(
        vocab_size=_int(raw, "vocab_size"),
        hidden_size=hidden,
        num_layers=_int(raw, "n_layer"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=_int(raw, "n_inner", 4 * hidden),
        max_positions=_int(raw, "n_positions"),
        norm_eps=_float(raw, "layer_norm_epsilon", 1e-5),
        rotary=None,
        layer_norm=True,
        gated=False,
        bias=True,
        tied_head=bool(raw.get("tie_word_embeddings", True)),
    )


def _read_gpt2(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name.endswith((".attn.bias", ".attn.masked_bias")):  # causal masks of old checkpoints
        return
    if not name.startswith(("transformer.", "lm_head.")):
        name = f"transformer.{name}"
    own = _swap(_GPT2_NAMES, name)
    yield own, tensor.t() if tensor.dim() == 2 and own.startswith("blocks.") else tensor  # stored as [in, out]


def _write_gpt2(state: dict[str, Tensor]) -> dict[str, Tensor]:
    stored = {}
    for own, tensor in state.items():
        if ".attention.key." in own or ".attention.value." in own:
            continue  # stored behind the query
        if ".attention.query." in own:
            tensor = torch.cat([state[own.replace(".query.", f".{part}.")] for part in ("query", "key", "value")])
            own = own.replace("attention.query", "attention.qkv")
        if tensor.dim() == 2 and own.startswith("blocks."):
            tensor = tensor.t().contiguous()
        stored[_swap(_GPT2_NAMES, own, back=True)] = tensor
    return stored


FAMILIES: dict[str, Family] = {
    "llama": Family(_configure_llama, _read_llama, _write_llama),
    "gpt2": Family(_configure_gpt2, _read_gpt2, _write_gpt2),
}
