"""GPT-2: learned positions, layer norms, matrices stored the other way round."""

from collections.abc import Iterator

from torch import Tensor, nn

from paceline.models.families.base import Family, Names, integer, number, require, swap
from paceline.models.native.config import AttentionConfig, DecoderConfig, FFNConfig
from paceline.models.native.fused_weights import fuse_parts
from paceline.models.native.layers import gelu_tanh

NAMES: Names = (
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


def _configure(raw: dict[str, object]) -> DecoderConfig:
    require(raw, "activation_function", "gelu_new", "gelu_new")
    require(raw, "scale_attn_by_inverse_layer_idx", False, False)
    require(raw, "scale_attn_weights", True, True)
    hidden, heads = integer(raw, "n_embd"), integer(raw, "n_head")
    return DecoderConfig(
        vocab_size=integer(raw, "vocab_size"),
        hidden_size=hidden,
        num_layers=integer(raw, "n_layer"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=integer(raw, "n_inner", 4 * hidden),
        max_positions=integer(raw, "n_positions"),
        norm_eps=number(raw, "layer_norm_epsilon", 1e-5),
        rotary=None,
        norm=nn.LayerNorm,
        attention=AttentionConfig(bias=True, output_bias=True),
        ffn=FFNConfig(activation=gelu_tanh, gated=False, bias=True),
        tied_head=bool(raw.get("tie_word_embeddings", True)),
    )


def _read(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name.endswith((".attn.bias", ".attn.masked_bias")):  # causal masks of old checkpoints
        return
    if not name.startswith(("transformer.", "lm_head.")):
        name = f"transformer.{name}"
    own = swap(NAMES, name)
    yield own, tensor.t() if tensor.dim() == 2 and own.startswith("blocks.") else tensor  # stored as [in, out]


def _write(state: dict[str, Tensor]) -> dict[str, Tensor]:
    stored = {}
    for own, tensor in fuse_parts(dict(state)).items():
        if tensor.dim() == 2 and own.startswith("blocks."):
            tensor = tensor.t().contiguous()
        stored[swap(NAMES, own, back=True)] = tensor
    return stored


FAMILIES = {"gpt2": Family(_configure, _read, _write)}
