"""config.json of a GGUF file: its metadata in transformers' words, for the architectures that the native decoder has.

The keys are those of llama.cpp's convert_hf_to_gguf.py, which each function reads backwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from paceline.models.gguf.file import GgufError, GgufFile
from paceline.models.gguf.rope import ROPE_FREQS, rope_parameters

T = TypeVar("T", int, float, bool, str)
Fields = dict[str, Any]
HEAD, EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Metadata:
    """The keys of one architecture, ``block_count`` for ``llama.block_count``."""

    file: GgufFile
    architecture: str

    def find(self, key: str, kind: type[T]) -> T | None:
        """A value; None where there is none. Floats are the shortest that the 32 bits of the file stand for.

        Raises GgufError for a value of another kind, such as one for each layer.
        """
        name = f"{self.architecture}.{key}"
        value = self.file.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise GgufError(f"{self.file.path}: {name}={value!r}: one {kind.__name__} is expected; fetch it again")
        return kind(str(np.float32(value))) if kind is float else value

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A value that must be there where there is no default. Raises GgufError naming the key."""
        value = self.find(key, kind)
        if value is None and default is None:
            raise GgufError(f"{self.file.path}: the metadata lack {self.architecture}.{key}; fetch it again")
        return default if value is None else value  # pyright: ignore[reportReturnType]

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor."""
        return tensor in self.file.tensors

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.get("attention.head_count", int)

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        older = self.find("rope.dimension_count", int) if self.architecture == "llama" else None  # without key_length
        return self.find("attention.key_length", int) or older or self.get("embedding_length", int) // self.heads

    @property
    def rotated(self) -> float:
        """The part of a head that RoPE rotates."""
        return self.get("rope.dimension_count", int, self.head_dim) / self.head_dim


def read_config(file: GgufFile) -> Fields:
    """The content of config.json. Raises GgufError for an architecture that is not known, and for keys that lack."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    architecture = file.fields.get("general.architecture")
    if architecture not in CONFIGS:
        raise GgufError(
            f"{file.path}: architecture {architecture!r} cannot be converted; known are {', '.join(CONFIGS)}; take the "
            "model's own Hugging Face directory"
        )
    if EMBEDDING not in file.tensors:
        raise GgufError(f"{file.path} lacks {EMBEDDING}: it is no whole model; give the file of the model itself")
    metadata = Metadata(file, str(architecture))
    if metadata.find("expert_count", int):
        raise GgufError(f"{file.path}: a mixture of experts cannot be converted; give a dense model")
    model_type, read = CONFIGS[str(architecture)]
    shared = {
        "model_type": model_type,
        "architectures": [CLASSES[model_type]],
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": not metadata.has(HEAD),
    }
    tokens = {key: file.fields.get(f"tokenizer.ggml.{name}_token_id") for key, name in _TOKENS.items()}
    return {**shared, **read(metadata), **tokens}


_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def _decoder(metadata: Metadata, *, partial: bool = False, **own: object) -> Fields:
    """What Llama and its relatives share. ``partial``: RoPE may be of a part of each head."""
    rope: Fields = rope_parameters(metadata.file, metadata.architecture, metadata.head_dim)
    if partial:
        rope["partial_rotary_factor"] = metadata.rotated
    elif metadata.rotated != 1:
        raise GgufError(f"{metadata.file.path}: RoPE of {metadata.rotated:.3g} of each head is not known of this model")
    return {
        "hidden_size": metadata.get("embedding_length", int),
        "intermediate_size": metadata.get("feed_forward_length", int),
        "num_hidden_layers": metadata.get("block_count", int),
        "num_attention_heads": metadata.heads,
        "max_position_embeddings": metadata.get("context_length", int),
        "rope_parameters": rope,
        **own,
    }


def _gated(metadata: Metadata, *, partial: bool = False, **own: object) -> Fields:
    """What those with RMS norms and gates share."""
    shared: Fields = {
        "num_key_value_heads": metadata.get("attention.head_count_kv", int, metadata.heads),
        "rms_norm_eps": metadata.get("attention.layer_norm_rms_epsilon", float),
        "hidden_act": "silu",
    }
    return _decoder(metadata, partial=partial, **{**shared, **own})


def _biased(metadata: Metadata) -> bool:
    return metadata.has("blk.0.attn_q.bias")


def _llama(metadata: Metadata) -> Fields:
    return _gated(metadata, head_dim=metadata.head_dim, attention_bias=_biased(metadata), mlp_bias=False)


def _qwen2(metadata: Metadata) -> Fields:
    return _gated(metadata, head_dim=metadata.head_dim, use_sliding_window=False)


def _qwen3(metadata: Metadata) -> Fields:
    return _gated(metadata, head_dim=metadata.head_dim, use_sliding_window=False, attention_bias=_biased(metadata))


def _gemma(metadata: Metadata) -> Fields:
    return _gated(metadata, head_dim=metadata.head_dim, hidden_act="gelu_pytorch_tanh")


def _olmo2(metadata: Metadata) -> Fields:
    if metadata.find("attention.sliding_window", int):
        raise GgufError(f"{metadata.file.path}: OLMo 3, whose layers have windows, cannot be converted; OLMo 2 can")
    return _gated(metadata, attention_bias=_biased(metadata))


def _granite(metadata: Metadata) -> Fields:
    return _gated(
        metadata,
        attention_bias=_biased(metadata),
        mlp_bias=metadata.has("blk.0.ffn_up.bias"),
        # A factor of 0 is not written; llama.cpp then scales scores as everyone does.
        attention_multiplier=metadata.find("attention.scale", float) or metadata.head_dim**-0.5,
        embedding_multiplier=metadata.get("embedding_scale", float, 1.0),
        residual_multiplier=metadata.get("residual_scale", float, 1.0),
        logits_scaling=metadata.get("logit_scale", float, 1.0),
    )


def _smollm3(metadata: Metadata) -> Fields:
    # Which layers see no positions is not in the file: in llama.cpp too it is every fourth.
    return _gated(metadata, attention_bias=_biased(metadata), no_rope_layer_interval=4, use_sliding_window=False)


def _phi3(metadata: Metadata) -> Fields:
    trained = metadata.get("rope.scaling.original_context_length", int, metadata.get("context_length", int))
    return _gated(
        metadata,
        partial=True,
        sliding_window=metadata.find("attention.sliding_window", int) or None,  # 0 of Phi-4, which has none
        original_max_position_embeddings=trained,
    )


def _gpt2(metadata: Metadata) -> Fields:
    return {
        "n_embd": metadata.get("embedding_length", int),
        "n_layer": metadata.get("block_count", int),
        "n_head": metadata.heads,
        "n_positions": metadata.get("context_length", int),
        "n_inner": metadata.get("feed_forward_length", int),
        "layer_norm_epsilon": metadata.get("attention.layer_norm_epsilon", float),
    }


def _gpt_neox(metadata: Metadata) -> Fields:
    return _decoder(
        metadata,
        partial=True,
        layer_norm_eps=metadata.get("attention.layer_norm_epsilon", float),
        use_parallel_residual=metadata.get("use_parallel_residual", bool, True),
        attention_bias=metadata.has("blk.0.attn_qkv.bias"),
        hidden_act="gelu",
    )


# GGUF's architecture -> model_type, and what reads the rest.
CONFIGS: dict[str, tuple[str, Callable[[Metadata], Fields]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", _qwen2),
    "qwen3": ("qwen3", _qwen3),
    "phi3": ("phi3", _phi3),
    "gemma": ("gemma", _gemma),
    "granite": ("granite", _granite),
    "smollm3": ("smollm3", _smollm3),
    "olmo2": ("olmo2", _olmo2),
    "gpt2": ("gpt2", _gpt2),
    "gptneox": ("gpt_neox", _gpt_neox),
}
READ = frozenset({ROPE_FREQS})  # tensors that became fields of the config
