"""Small encoder-decoders that know something, on disk with a tokenizer; pairs of theirs; and runs that train drafts.

A source begins with a token of a fixed chain, and its output is the rest of the chain, up to the end of text.
"""

import json
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tests.models.encoder_decoders import START, VOCAB, transformers_model

END, FIRST = 2, 5  # end of text, and the first token that is a word
CHAIN = np.random.default_rng(5).permutation(np.arange(FIRST, VOCAB))[:24].tolist()
LENGTH = 28


def pair(random):
    """A source of one to six tokens, and its output with the end of text."""
    at = int(random.integers(len(CHAIN)))
    return [CHAIN[at], *random.integers(FIRST, VOCAB, int(random.integers(6))).tolist()], [*CHAIN[at:], END]


@contextmanager
def one_thread():
    """So that trained weights do not depend on how many an earlier test has left: the order of sums does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
@one_thread()
def teacher(kind, seed=1):
    """The directory of a model of ``kind`` with three decoder layers, float32, after some training."""
    # Dropout would draw from the process' generator, so the weights would differ from run to run.
    no_dropout = dict.fromkeys(("dropout_rate",) if kind == "t5" else ("dropout", "attention_dropout"), 0.0)
    model = transformers_model(kind, seed, torch.float32, **no_dropout).train()
    random = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(90):
        sources, outputs = zip(*(pair(random) for _ in range(8)), strict=True)
        ids, labels = (
            torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=fill)
            for rows, fill in ((sources, 0), (outputs, -100))
        )
        inputs = torch.cat((torch.full((len(labels), 1), START), labels[:, :-1].clamp(min=0)), dim=1)
        mask = torch.arange(ids.shape[1]) < torch.tensor([[len(source)] for source in sources])
        logits = model(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    folder = Path(mkdtemp(prefix="teacher"))
    model.eval().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder):
    """One word for each token: w5, w6 ..."""
    known = {END: "</s>", FIRST - 1: "<unk>"}
    inner = Tokenizer(WordLevel({known.get(token, f"w{token}"): token for token in range(VOCAB)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)


def words(tokens):
    return " ".join(f"w{token}" for token in tokens)


def write_pairs(path, count=160, seed=3):
    """Lines of texts; the end of text is the trainer's to add."""
    random = np.random.default_rng(seed)
    pairs = [pair(random) for _ in range(count)]
    lines = (json.dumps({"source": words(source), "output": words(output[:-1])}) for source, output in pairs)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def recipe(root, kind="bart", **fields):
    """A configuration that trains a draft of the first and last layer, as a file in ``root``."""
    if not (root / "pairs.jsonl").exists():
        write_pairs(root / "pairs.jsonl")
    whole = {
        "target": {"path": str(teacher(kind)) if isinstance(kind, str) else str(kind)},
        "draft": {"layers": [0, -1]},
        "data": {
            "sources": [{"kind": "pairs", "paths": [str(root / "pairs.jsonl")]}],
            "packing": "documents",
            "validation": {"share": 0.15, "by": "document"},
            "cache": str(root / "cache"),
        },
        "batch": {"rows": 8, "length": LENGTH},
        "loss": {"terms": {"text": 1.0, "kl": 0.8}},
        "optimiser": {"learning_rate": 0.003, "weight_decay": 0.0},
        "schedule": {"steps": 40, "warmup": 2},
        "precision": "fp32",
        "validation": {"every": 20, "prompts": 12, "tokens": 24, "k": 3},
        "checkpoints": {"every": 10},
        "log_every": 10,
        "output": str(root / "run"),
        **fields,
    }
    path = root / "recipe.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path
