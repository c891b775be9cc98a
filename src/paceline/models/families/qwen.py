"""Qwen 2 (biases of queries, keys and values alone) and Qwen 3 (norms of each query and key head).

MiMo is Qwen 2 with layers of multi-token prediction beside its own; transformers does not know its config.
"""

from dataclasses import replace

from paceline.models.families.base import Names, complete, renaming, require, window
from paceline.models.families.llama import NAMES, shape
from paceline.models.native.config import AttentionConfig, DecoderConfig, NormSpan

NORM_NAMES: Names = (
    *NAMES,
    ("self_attn.q_norm", "attention.heads.query_norm"),
    ("self_attn.k_norm", "attention.heads.key_norm"),
)


def _configure_qwen2(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    return replace(shape(fields), attention=AttentionConfig(bias=True), window=window(fields))


def _configure_mimo(raw: dict[str, object]) -> DecoderConfig:
    require(raw, "attention_bias", True, True)
    return _configure_qwen2({**raw, "model_type": "qwen2"})


def _configure_qwen3(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    bias = bool(fields["attention_bias"])
    attention = AttentionConfig(bias=bias, output_bias=bias, norm_span=NormSpan.HEAD)
    return replace(shape(fields), attention=attention, window=window(fields))


FAMILIES = {
    "qwen2": renaming(_configure_qwen2, NAMES),
    "mimo": renaming(_configure_mimo, NAMES),
    "qwen3": renaming(_configure_qwen3, NORM_NAMES),
}
