"""OLMo 2: norms behind attention and feed-forward, and of whole queries and keys, rotated in float32."""

from dataclasses import replace

from paceline.models.families.base import Names, complete, renaming
from paceline.models.families.llama import NAMES as LLAMA_NAMES
from paceline.models.families.llama import shape
from paceline.models.native.config import Arrangement, AttentionConfig, DecoderConfig, NormSpan
from paceline.models.native.layers import LateRMSNorm

_NORMS = ("input_layernorm", "post_attention_layernorm")
NAMES: Names = (
    *(pair for pair in LLAMA_NAMES if pair[0] not in _NORMS),
    ("post_attention_layernorm", "attention_norm"),
    ("post_feedforward_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attention.heads.query_norm"),
    ("self_attn.k_norm", "attention.heads.key_norm"),
)


def _configure(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    bias = bool(fields["attention_bias"])
    return replace(
        shape(fields, wide=True),
        norm=LateRMSNorm,
        attention=AttentionConfig(bias=bias, output_bias=bias, norm_span=NormSpan.PROJECTION),
        arrangement=Arrangement.NORM_AFTER,
    )


FAMILIES = {"olmo2": renaming(_configure, NAMES)}
