"""What all heads of the package speculators (0.9) have in common: the envelope of their config.json.

The fields are those that ``save_pretrained`` of that package writes, and that vLLM reads: it needs
``speculators_model_type``, ``transformer_layer_config`` and, of ``speculators_config``, the verifier's name and the
number of tokens of the first proposal method.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor

from paceline.draft_heads.formats.base import FormatError, HeadFiles

VERSION = "0.9.0"  # of the layout
ACTIVATIONS: dict[Callable[[Tensor], Tensor], str] = {F.silu: "silu", F.gelu: "gelu", F.relu: "relu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFields:
    """The decoder layers of a head, as ``transformer_layer_config`` and EAGLE's config.json spell them.

    ``rope_scaling`` holds what transformers' rope_parameters do beside ``rope_theta``: {"rope_type": "llama3", ...}.
    """

    model_type: str  # "llama"; "qwen3" where queries and keys have norms
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # of the target
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, object] | None = None
    attention_bias: bool = False
    activation: str = "silu"
    layer_types: tuple[str, ...] | None = None  # None: full attention in every layer
    sliding_window: int | None = None

    @property
    def rope_parameters(self) -> dict[str, object]:
        """As transformers 5 spells them."""
        return {"rope_theta": self.rope_theta, "rope_type": "default", **(self.rope_scaling or {})}

    def plain(self) -> dict[str, object]:
        """The fields of a transformers config of this ``model_type``."""
        return {
            "model_type": self.model_type,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": self.num_layers,
            "hidden_act": self.activation,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": self.rope_parameters,
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": False,
            "vocab_size": self.vocab_size,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }

    def transformer_layer_config(self) -> dict[str, object]:
        """As speculators saves it."""
        found = {**self.plain(), "sliding_window": self.sliding_window}
        if self.model_type == "qwen3":
            types = self.layer_types or ("full_attention",) * self.num_layers
            return {**found, "use_sliding_window": False, "max_window_layers": 28, "layer_types": list(types)}
        return {**found, "mlp_bias": False, "pretraining_tp": 1}

    def with_both_ropes(self) -> dict[str, object]:
        """``plain`` with rope_theta and rope_scaling too, which readers of older files take, as SpecForge writes it."""
        return {**self.plain(), "rope_theta": self.rope_theta, "rope_scaling": self.rope_scaling}


def speculators_config(
    algorithm: str,
    architecture: str,
    *,
    layers: LayerFields,
    fields: Mapping[str, object],
    target_name: str,
    num_draft_tokens: int,
    dtype: str,
) -> dict[str, object]:
    """The config.json of a head of ``algorithm`` ("eagle3", "dflash", ...), which adds ``fields`` of its own.

    ``architecture`` is the package's class ("Eagle3DraftModel"), ``dtype`` the precision of the tensors ("bfloat16").
    The package's auto_map is left out: it names a Python file, which is not written. Raises FormatError for a length
    below 1.
    """
    if num_draft_tokens < 1:
        raise FormatError(f"num_draft_tokens={num_draft_tokens}: the format holds a number of at least 1")
    return {
        "architectures": [architecture],
        "dtype": dtype,
        "speculators_model_type": algorithm,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": num_draft_tokens,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": _architectures(target_name), "name_or_path": target_name},
        },
        "tie_word_embeddings": False,
        "transformer_layer_config": layers.transformer_layer_config(),
        **fields,
    }


def read_envelope(files: HeadFiles) -> tuple[str | None, int | None]:
    """The target that ``files`` name and the number of draft tokens that they advise, where they say so."""
    methods = files.mapping("speculators_config").get("proposal_methods")
    first: object = cast("list[object]", methods)[0] if isinstance(methods, list) and methods else None
    tokens: object = cast("dict[str, Any]", first).get("speculative_tokens") if isinstance(first, dict) else None
    return files.value("speculators_config.verifier.name_or_path", str), tokens if isinstance(tokens, int) else None


def _architectures(target_name: str) -> list[str]:
    """Those in the target's config.json where its name is a directory; else none is known."""
    file = Path(target_name) / "config.json"
    if not file.is_file():
        return []
    found = json.loads(file.read_text(encoding="utf-8")).get("architectures")
    return list(map(str, found or []))
