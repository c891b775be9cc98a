"""A tiny model over printable characters and a few pairs of them: nearly all of its outputs have one tokenization."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models

from tests import tiny

EOS = 0
CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]
PAIRS = [("d", "e"), ("r", "e"), ("i", "n"), ("e", "t"), ("(", ")")]
PROMPTS = tuple(f"def {name}({argument}):\n    " for name in ("read", "count", "merge", "find") for argument in "ab")


def make_tokenizer():
    words = ["<|end|>", *CHARACTERS, *("".join(pair) for pair in PAIRS)]
    model = models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=PAIRS)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


@cache
def folder():
    """Written once; treat as read-only."""
    path = Path(tempfile.mkdtemp(prefix="paceline-tests-")) / "spoken"
    atexit.register(shutil.rmtree, path.parent)
    tokenizer = make_tokenizer()
    size = tokenizer.get_vocab_size()
    tiny.llama(
        vocab_size=size, num_hidden_layers=1, max_position_embeddings=256, eos_token_id=EOS
    ).float().save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": False}))
    return path
