"""Checkpoints for the recorded outputs: the same bits on every machine, written as files, without Paceline's own code.

Weights are multiples of a power of two drawn as integers, so neither the processor nor the version of torch matters.
"""

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 320, 32, 48, 3, 4, 2, 8
CONTEXT = 256
EOS = 0
MERGES = "t h,th e,i n,Ġ a,r e,o n,a n,e r,1 2,2 3,a b,ab c,r ed,e d,g re,gre en,e n,t rue,r ue,t rue,n ull,u ll,l l"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 2.0**-20,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "torch_dtype": "float64",
}
SIZES = (  # a head's directory says whose head it is; hashes of weights may be left out
    f"{LAYERS} layers of {HIDDEN}, {HEADS} heads and {KV_HEADS} key-value heads of {HEAD_DIM}, {FFN} inner, "
    f"{VOCAB} tokens"
)
HEAD_CONFIGS = {"prophet": {"num_states": 2, "num_blocks": 1, "depth": 5}, "linear_prophet": {"depth": 4}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Directories."""

    target: Path
    draft: Path
    prophet: Path
    linear_prophet: Path


def _matrix(random, spread, *shape):
    """Uniform in -spread..spread, a multiple of spread / 128; ``spread`` is a power of two or a small multiple."""
    return random.randint(-128, 129, size=shape).astype(np.float64) * (spread / 128)


def _llama(random):
    """Weights whose last layer changes little, so that early exits and heads are sometimes right."""
    state = {
        "model.embed_tokens.weight": _matrix(random, 2.0, VOCAB, HIDDEN),
        "model.norm.weight": 1.0 + _matrix(random, 0.125, HIDDEN),
        "lm_head.weight": _matrix(random, 0.75, VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        added = 0.25 if layer < LAYERS - 1 else 0.125
        block = {
            "input_layernorm.weight": 1.0 + _matrix(random, 0.25, HIDDEN),
            "post_attention_layernorm.weight": 1.0 + _matrix(random, 0.25, HIDDEN),
            "self_attn.q_proj.weight": _matrix(random, 0.5, HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj.weight": _matrix(random, 0.5, KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj.weight": _matrix(random, 0.5, KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj.weight": _matrix(random, added, HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj.weight": _matrix(random, 0.5, FFN, HIDDEN),
            "mlp.up_proj.weight": _matrix(random, 0.5, FFN, HIDDEN),
            "mlp.down_proj.weight": _matrix(random, added, HIDDEN, FFN),
        }
        state |= {f"model.layers.{layer}.{name}": weight for name, weight in block.items()}
    return state


def _prophet(random):
    """Small blocks over the target's last state, which a projection near the identity brings in."""
    block = "decoder.blocks.0"
    return {
        "norm.weight": 1.0 + _matrix(random, 0.25, HIDDEN),
        "project.weight": np.eye(HIDDEN) + _matrix(random, 0.125, HIDDEN, HIDDEN),
        f"{block}.attention_norm.weight": 1.0 + _matrix(random, 0.25, HIDDEN),
        f"{block}.attention.qkv.weight": _matrix(random, 0.5, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
        f"{block}.attention.output.weight": _matrix(random, 0.125, HIDDEN, HEADS * HEAD_DIM),
        f"{block}.ffn_norm.weight": 1.0 + _matrix(random, 0.25, HIDDEN),
        f"{block}.ffn.gate_up.weight": _matrix(random, 0.5, 2 * FFN, HIDDEN),
        f"{block}.ffn.down.weight": _matrix(random, 0.125, HIDDEN, FFN),
        "decoder.norm.weight": np.ones(HIDDEN),
    }


def _linear_prophet(random):
    return {"maps.weight": _matrix(random, 0.25, 4 * HIDDEN, HIDDEN)}


def _tokenizer():
    """Byte-level BPE with a written-out vocabulary: id 0 ends a text, then every byte, then merges."""
    merges = []
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    for pair in MERGES.split(","):
        left, right = pair.split(" ")
        if left in tokens and right in tokens and left + right not in tokens:
            merges.append((left, right))
            tokens.append(left + right)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def _write(folder, state, config, metadata=None):
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt", **(metadata or {})})
    (folder / "config.json").write_text(json.dumps(config))


@cache
def checkpoints():
    """Written once; treat as read-only."""
    root = Path(tempfile.mkdtemp(prefix="paceline-recorded-"))
    atexit.register(shutil.rmtree, root)
    random = np.random.RandomState(20)
    state = _llama(random)
    # The draft is the target with noise on its weights.
    draft = {name: weight + _matrix(random, 0.0625, *weight.shape) for name, weight in state.items()}
    found = Checkpoints(**{name: root / name for name in ("target", "draft", *HEAD_CONFIGS)})
    for folder, weights in ((found.target, state), (found.draft, draft)):
        _write(folder, weights, LLAMA)
        _tokenizer().save(str(folder / "tokenizer.json"))
    for kind, weights in (("prophet", _prophet(random)), ("linear_prophet", _linear_prophet(random))):
        made = {"kind": kind, "config": HEAD_CONFIGS[kind]}
        target = {"name": "target", "fingerprint": {"sizes": SIZES, "kept": None, "matrices": None}}
        config = {"model_type": "paceline_head", **made, "target": target, "paceline": "0.1.0"}
        _write(root / kind, weights, config, {"paceline_head": json.dumps(made)})
    return found
