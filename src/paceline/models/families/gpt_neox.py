"""GPT-NeoX (Pythia): attention and feed-forward side by side, rotation of a part of each head.

The checkpoint keeps one head's query, key and value together; the decoder keeps that order, so nothing is copied.
"""

from torch import nn

from paceline.models.families.base import Names, activation, complete, integer, number, renaming, rotary
from paceline.models.native.config import Arrangement, AttentionConfig, DecoderConfig, FFNConfig

NAMES: Names = (
    ("gpt_neox.embed_in", "embed"),
    ("gpt_neox.final_layer_norm", "norm"),
    ("embed_out", "head"),  # in files; the first of two names is the one that is written
    ("lm_head", "head"),  # in loaded models
    ("gpt_neox.layers", "blocks"),
    ("attention.query_key_value", "attention.qkv"),
    ("attention.dense", "attention.output"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.dense_h_to_4h", "ffn.up"),
    ("mlp.dense_4h_to_h", "ffn.down"),
)


def _configure(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    hidden, heads = integer(fields, "hidden_size"), integer(fields, "num_attention_heads")
    bias = bool(fields["attention_bias"])
    return DecoderConfig(
        vocab_size=integer(fields, "vocab_size"),
        hidden_size=hidden,
        num_layers=integer(fields, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=integer(fields, "intermediate_size"),
        max_positions=integer(fields, "max_position_embeddings"),
        norm_eps=number(fields, "layer_norm_eps", 1e-5),
        norm=nn.LayerNorm,
        rotary=rotary(fields, hidden // heads, partial=True),
        attention=AttentionConfig(bias=bias, output_bias=bias, interleaved=True),
        ffn=FFNConfig(activation=activation(fields), gated=False, bias=True),
        arrangement=Arrangement.PARALLEL if fields["use_parallel_residual"] else Arrangement.NORM_BEFORE,
        tied_head=bool(fields["tie_word_embeddings"]),
    )


FAMILIES = {"gpt_neox": renaming(_configure, NAMES)}
