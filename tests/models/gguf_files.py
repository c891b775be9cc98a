"""Writes transformers models as llama.cpp's convert_hf_to_gguf.py does, by the writer of the ``gguf`` package."""

import math

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from gguf.tensor_mapping import get_tensor_name_map

ARCHITECTURES = {
    **{kind: kind for kind in ("llama", "qwen2", "qwen3", "phi3", "gemma", "granite", "smollm3", "olmo2", "gpt2")},
    "mistral": "llama",
    "gpt_neox": "gptneox",
}
PERMUTED = ("llama", "mistral", "granite", "smollm3")
Kind = gguf.GGMLQuantizationType
K_QUANTS = {  # bytes of a block, and where its float16 scales are
    Kind.Q2_K: (84, (80, 82)),
    Kind.Q3_K: (110, (108,)),
    Kind.Q4_K: (144, (0, 2)),
    Kind.Q5_K: (176, (0, 2)),
    Kind.Q6_K: (210, (208,)),
    Kind.IQ4_XS: (136, (0,)),
}


def permuted(weights, heads):
    """LlamaModel.permute of the converter."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def renamed(model):
    """The tensors under GGUF's names, in the converter's layout, float32."""
    config = model.config
    kind, heads = config.model_type, config.num_attention_heads
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[kind])
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    tied = config.tie_word_embeddings
    found = {}
    for name, tensor in model.state_dict().items():
        base, _, suffix = name.rpartition(".")
        if tied and base in ("lm_head", "embed_out"):
            continue
        base = {"lm_head": "embed_out"}.get(base, base) if kind == "gpt_neox" else base
        tensor = tensor.float()
        if kind in PERMUTED and base.endswith("q_proj"):
            tensor = permuted(tensor, heads)
        if kind in PERMUTED and base.endswith("k_proj"):
            tensor = permuted(tensor, config.num_key_value_heads)
        if kind == "gemma" and name.endswith("norm.weight"):
            tensor = tensor + 1
        if kind == "gpt2" and base.endswith(("c_attn", "c_proj", "c_fc")) and tensor.dim() == 2:
            tensor = tensor.t()
        if base.endswith("query_key_value"):
            parts = tensor.reshape(heads, 3, -1, *tensor.shape[1:])
            tensor = torch.cat([parts[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
        found[f"{names.get_name(base)}.{suffix}"] = tensor.contiguous().numpy()
    return found


def llama3_factors(rope, head_dim):
    """LlamaModel.generate_extra_tensors of the converter."""
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        smooth = (length / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors.append(1 if wavelength < length / high else rope["factor"] if wavelength > length / low else between)
    return np.array([float(factor) for factor in factors], np.float32)


def metadata(writer, model):
    """The keys that the converter writes of a config."""
    config = model.config
    kind, hidden, heads = config.model_type, config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    feed_forward = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    if kind in ("gpt2", "gpt_neox"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon if kind == "gpt2" else config.layer_norm_eps)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if kind in ("qwen3", "gemma") or head_dim * heads != hidden:
        writer.add_key_length(head_dim)
    if kind == "gpt_neox":
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if kind == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    if not rope:
        return
    if kind in PERMUTED or kind in ("phi3", "gpt_neox"):
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * head_dim))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))


def vocabulary(writer, tokens, *, model="gpt2", pre="gpt-2", merges=(), scores=None, kinds=None, **others):
    """``tokenizer.ggml``: lists, and ids and flags by their keys."""
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens) if kinds is None else kinds)
    if merges:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for key, value in others.items():
        if isinstance(value, str):
            writer.add_string(f"tokenizer.{key}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_uint32(f"tokenizer.ggml.{key}", value)


def bare_vocabulary(size):
    """As many tokens as a model without a tokenizer of its own has."""
    return dict(tokens=[chr(0x100 + number) for number in range(size)])


def stored(values, kind):
    """What the file holds of ``values`` in a kind of floats or blocks, and the kind: float32 where none fits."""
    if kind is None or values.ndim < 2:
        return values, Kind.F32
    if kind in K_QUANTS:
        return blocks(values.shape, kind), kind
    if kind not in (Kind.F16, Kind.F32, Kind.BF16) and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return values, Kind.F32
    return quantize(values, kind), kind


def blocks(shape, kind, seed=4):
    """Any blocks of a kind that the package cannot quantise to, with scales of the usual size."""
    size, scales = K_QUANTS[kind]
    generator = np.random.default_rng(seed)
    found = generator.integers(0, 256, (*shape[:-1], shape[-1] // 256, size), dtype=np.uint8)
    for place in scales:
        values = generator.uniform(0.001, 0.01, found.shape[:-1]).astype(np.float16)
        found[..., place : place + 2] = values[..., None].view(np.uint8)
    return found.reshape(*shape[:-1], -1)


def write_gguf(path, model, *, kind=None, tokens=None, change=lambda tensors: tensors, edit=lambda writer: None, **own):
    """Write ``model`` into ``path``; the matrices as ``kind``. Returns the float32 tensors by GGUF's names.

    tokens: of ``vocabulary``. change: of the tensors before they are written. edit: of the writer at the end. own: of
    GGUFWriter.
    """
    writer = gguf.GGUFWriter(path, ARCHITECTURES[model.config.model_type], **own)
    writer.add_name("tiny")
    metadata(writer, model)
    vocabulary(writer, **(tokens or bare_vocabulary(model.config.vocab_size)))
    tensors = change(renamed(model))
    for name, values in tensors.items():
        data, found = stored(values, kind)
        writer.add_tensor(name, data, raw_dtype=found)
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
