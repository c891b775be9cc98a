"""Text to semantic tokens, as in Spear-TTS (2302.03540): an encoder of text, and a decoder of a speech model's ids.

Both have RoPE, RMS norms before each part and gated feed-forwards; the decoder's key-value heads are grouped. Each has
embeddings of its own, the decoder's tied to its logits. Cross-attention also sees a learned key and value, so a text
may be empty: guidance leads away from what is said of none. The ids of a decoder are N semantic ones, the end, and a
start, which has a position and a learned embedding like any token, and is never generated.
"""

from dataclasses import replace

from paceline.models.families.base import Family, Fields, activation, integer, number, renaming, require, rotary
from paceline.models.native.config import CrossConfig, DecoderConfig, EncoderConfig, FFNConfig


def configure(raw: Fields) -> DecoderConfig:
    """See Family. Raises ValueError for ids of the end and the start that are not the two after the semantic ones."""
    hidden, heads = integer(raw, "hidden_size"), integer(raw, "num_attention_heads")
    num_ids, source = integer(raw, "num_semantic_ids"), integer(raw, "max_source_positions")
    if hidden % heads and raw.get("head_dim") is None:
        raise ValueError(f"hidden_size={hidden} is no multiple of num_attention_heads={heads}: give head_dim")
    size = integer(raw, "head_dim", max(1, hidden // heads))
    kv_heads = integer(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    require(raw, "eos_token_id", num_ids, None)
    require(raw, "decoder_start_token_id", num_ids + 1, None)
    rope: Fields = {"rope_type": "default", "rope_theta": number(raw, "rope_theta", 10_000.0)}
    decoder = DecoderConfig(
        vocab_size=num_ids + 2,
        hidden_size=hidden,
        num_layers=integer(raw, "decoder_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=size,
        ffn_size=integer(raw, "intermediate_size"),
        max_positions=integer(raw, "max_target_positions"),
        norm_eps=number(raw, "rms_norm_eps", 1e-6),
        rotary=rotary({"rope_parameters": rope}, size),
        ffn=FFNConfig(activation=activation({"hidden_act": "silu", **raw})),
        tied_head=True,
        num_generated=num_ids + 1,
        cross=CrossConfig(source_size=hidden, max_source=source, null=True),
    )
    encoder = replace(
        decoder,
        num_layers=integer(raw, "encoder_layers"),
        num_kv_heads=heads,
        max_positions=source,
        cross=None,
        num_generated=None,
    )
    return replace(decoder, encoder=EncoderConfig(blocks=encoder, vocab_size=integer(raw, "num_text_ids")))


FAMILIES: dict[str, Family] = {"text_to_semantic": renaming(configure, ())}
