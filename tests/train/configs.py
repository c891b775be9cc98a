"""A small target on disk, and training configurations for it."""

import json

import numpy as np
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from paceline.cli import run
from paceline.models.loading import save
from tests import tiny
from tests.train.synthetic import corpus

LENGTH = 24


def write_target(root):
    """A target whose next token depends on the last one alone, and token files of its vocabulary."""
    np.save(root / "train.npy", corpus(0))
    np.save(root / "held_out.npy", corpus(1))
    model, native = tiny.looping_target()
    save(native, {**model.config.to_dict(), "eos_token_id": None}, root / "target", dtype=torch.float32)
    words = {chr(97 + at): at for at in range(tiny.VOCAB)}
    Tokenizer(WordLevel(words, unk_token="a")).save(str(root / "target" / "tokenizer.json"))
    return root


def recipe(root, output, **fields):
    sources = [
        {"kind": "tokens", "paths": [str(root / "train.npy")], "split": "train"},
        {"kind": "tokens", "paths": [str(root / "held_out.npy")], "split": "validation"},
    ]
    whole = {
        "target": {"path": str(root / "target")},
        "heads": [{"kind": "last", "config": {"depth": 2}}],
        "data": {"sources": sources, "validation": {"share": 0}, "cache": str(root / "cache")},
        "batch": {"rows": 4, "length": LENGTH},
        "optimiser": {"learning_rate": 0.3, "weight_decay": 0.0},
        "schedule": {"steps": 20, "warmup": 2},
        "precision": "fp32",
        "validation": {"every": 10, "prompts": 8, "prompt_tokens": 4, "tokens": 16, "k": 3},
        "checkpoints": {"every": 4},
        "log_every": 1,
        "output": str(output),
        **fields,
    }
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(whole))
    return path


def train(path, *options):
    return run(["train", str(path), *options])


def log(output):
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
