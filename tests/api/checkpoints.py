"""Tiny random checkpoints on disk, with a tokenizer, for tests of the API, the CLI and the benchmarks."""

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from paceline.models.loading import save
from tests import tiny

EOS = 0
VOCAB = 320  # the models'; the tokenizer's is smaller, so both are padded
CONTEXT = 512
TEXT = ["def add(first, second):\n    return first + second\n", "for item in items:\n    print(item)\n"]


def make_tokenizer(size=300, texts=TEXT):
    """Byte-level BPE trained on a few lines; id 0 is end of text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass(frozen=True)
class Pair:
    """Directories of a target and of its draft model, the target with noise on its weights."""

    root: Path
    target: Path
    draft: Path


@cache
def pair():
    """Written once; treat as read-only."""
    root = Path(tempfile.mkdtemp(prefix="paceline-tests-"))
    atexit.register(shutil.rmtree, root)
    model = tiny.llama(vocab_size=VOCAB, max_position_embeddings=CONTEXT, eos_token_id=EOS)
    model.save_pretrained(root / "target")
    own = tiny.native(model)
    save(tiny.noisy(own, 0.02), model.config.to_dict(), root / "draft", dtype=torch.float64)
    for name in ("target", "draft"):
        make_tokenizer().save(str(root / name / "tokenizer.json"))
    return Pair(root, root / "target", root / "draft")


CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def chatty(folder):
    """The target with a chat template."""
    shutil.copytree(pair().target, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return folder


def other_vocabulary(folder):
    """A draft model whose tokenizer has another vocabulary and size."""
    model = tiny.llama(seed=5, vocab_size=290, num_hidden_layers=1)
    save(tiny.native(model), model.config.to_dict(), folder, dtype=torch.float64)
    make_tokenizer(280, ["the quick brown fox", "jumps over the lazy dog"]).save(str(folder / "tokenizer.json"))
    return folder


def nothing_in_common(folder):
    """A draft model whose tokenizer has no token of the target's."""
    model = tiny.llama(seed=5, vocab_size=20, num_hidden_layers=1)
    save(tiny.native(model), model.config.to_dict(), folder, dtype=torch.float64)
    words = {word: number for number, word in enumerate(["[UNK]", "\u2581zugzwang", "\u2581fjord"])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def without_tokenizer(folder, **overrides):
    """A checkpoint without a tokenizer."""
    model = tiny.llama(**{"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, **overrides})
    save(tiny.native(model), model.config.to_dict(), folder, dtype=torch.float64)
    return folder


def config_of(folder, **changes):
    """Change fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
