"""Sizes of the decoders that are trained here."""

VOCAB_SIZE = 4096
CONTEXT = 1024


def llama(
    *,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab_size: int = VOCAB_SIZE,
    dtype: str = "bfloat16",
) -> dict[str, object]:
    """The config.json of a decoder of Llama's layout with these sizes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "torch_dtype": dtype,
    }
