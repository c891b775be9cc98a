"""The recipe of the embedded pair: a deep, narrow target and its draft, from the standard library. Seeded, resumable.

Run as ``python -m paceline.train.demo_models WORK [PHASE ...]``; each phase leaves files in WORK that the next reads.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from paceline.models.decoder import DecoderLM
from paceline.models.families import FAMILIES
from paceline.models.loading import build, save
from paceline.train.data import Crops, Stages, encode, standard_library, train_tokenizer
from paceline.train.objectives import Distillation, next_token
from paceline.train.trainer import TrainConfig, Trainer

VOCAB_SIZE = 4096
CONTEXT = 1024
SEED = 20_26


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
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
        "torch_dtype": "bfloat16",
    }


TARGET = _llama(hidden=192, inner=512, layers=16, heads=4, kv_heads=2)
DRAFT = _llama(hidden=96, inner=256, layers=2, heads=4, kv_heads=2)


def fresh(raw: dict[str, object], seed: int) -> DecoderLM:
    """A randomly initialised model; projections back into the residual stream are scaled down with depth."""
    config = FAMILIES["llama"].configure(raw)
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in DecoderLM(config).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            state[name] = torch.ones(shape)
            continue
        back = name.endswith(("attention.output.weight", "ffn.down.weight"))
        scale = 0.02 / (2 * config.num_layers) ** 0.5 if back else 0.02
        state[name] = torch.randn(shape, generator=generator) * scale
    return build(config, state).requires_grad_(True)


def accelerator() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def prepare(work: Path) -> None:
    """Tokenizer, token arrays and manifest."""
    documents = standard_library()
    train = [document for document in documents if not document.held_out]
    held_out = [document for document in documents if document.held_out]
    tokenizer = train_tokenizer((document.text for document in train), VOCAB_SIZE)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(work / "tokenizer.json"))
    np.save(work / "train.npy", encode(tokenizer, train))
    np.save(work / "held_out.npy", encode(tokenizer, held_out))
    manifest = [document.manifest() for document in documents]
    (work / "manifest.json").write_text(json.dumps(manifest, indent=0) + "\n", encoding="utf-8")


def _validation(objective: Callable[..., torch.Tensor], work: Path) -> Callable[[DecoderLM], float]:
    tokens = np.load(work / "held_out.npy")
    crops = Crops([(tokens, 1.0)], rows=16, length=512, seed=SEED)

    def validate(model: DecoderLM) -> float:
        losses = [objective(model, crops.batch(step).to(model.device)) for step in range(4)]
        return float(torch.stack(losses).mean())

    return validate


def train_target(work: Path) -> None:
    """The target on text."""
    config = TrainConfig(steps=1800, learning_rate=3e-3, validate_every=200, compile=True)
    text = np.load(work / "train.npy")
    batches = Stages(
        (1500, Crops([(text, 1.0)], rows=8, length=512, seed=SEED)),
        (1800, Crops([(text, 1.0)], rows=4, length=CONTEXT, seed=SEED)),
    )
    model = fresh(TARGET, SEED).to(accelerator())
    validate = _validation(next_token, work)
    Trainer(model, next_token, batches, config, folder=work / "target", validate=validate).run()
    save(model, TARGET, work / "export" / "target")


PHASES: dict[str, Callable[[Path], None]] = {"prepare": prepare, "target": train_target}


def main() -> None:
    """Run the phases asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("phases", nargs="*", choices=[[], *PHASES], default=[])
    arguments = parser.parse_args()
    for name in arguments.phases or PHASES:
        print(f"{name} ...", flush=True)
        PHASES[name](arguments.work)


if __name__ == "__main__":
    main()
