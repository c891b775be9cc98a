"""The tokens of a configuration and seed, and the tokens in a cache, are those of former versions.

The hashes and the store in ``recorded_store`` were made by the first version of the data code; they must not change.
"""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.corpora import CHAT, TEMPLATE, TEXTS, array, files, lines, prepared, tokenizer

STORE = Path(__file__).parent / "recorded_store"
ROWS = [
    {"input_ids": [1 + (i * j) % 200 for j in range(5 + i)], "loss_mask": [j % 2 for j in range(5 + i)]}
    for i in range(9)
]


def sources(folder):
    """One source of each kind that needs nothing but files. Their names are in the cache's keys."""
    tokens = [(7 * index) % 31 for index in range(300)]
    (folder / "enwik").write_bytes(bytes(range(256)) * 4)
    return {
        "text": {"kind": "text", "paths": [files(folder / "texts")]},
        "jsonl": {"kind": "jsonl", "paths": [lines(folder / "a.jsonl", [{"text": text} for text in TEXTS])]},
        "chat": {"kind": "chat", "paths": [lines(folder / "chat.jsonl", [{"messages": CHAT}] * 7)]},
        "rows": {"kind": "rows", "paths": [lines(folder / "rows.jsonl", ROWS)], "split": "train"},
        "tokens": {"kind": "tokens", "paths": [array(folder / "tokens.npy", tokens)], "split": "train"},
        "bytes": {"kind": "bytes", "path": str(folder / "enwik"), "train": 900, "validation": 60, "test": 64},
    }


def digest(batches):
    """A hash of the first twelve batches, by halves as two processes read them."""
    found = hashlib.sha256()
    for step in range(12):
        for half in (range(2), range(2, 4)):
            batch = batches.batch(step, half)
            for column in (batch.tokens, batch.learned, batch.segment):
                found.update(b"none" if column is None else np.ascontiguousarray(column.numpy()).data)
    return found.hexdigest()[:16]


CASES = {
    "text": (("text",), {}),
    "jsonl by document": (("jsonl",), {"validation": {"share": 0.3, "by": "document"}}),
    "jsonl documents": (("jsonl",), {"packing": "documents", "validation": {"share": 0}}),
    "rows": (("rows",), {"validation": {"share": 0}}),
    "rows without segments": (("rows",), {"segments": False, "validation": {"share": 0}}),
    "tokens": (("tokens",), {"validation": {"share": 0}}),
    "bytes": (("bytes",), {}),
    "pooled": (("text", "rows", "tokens"), {}),
    "shares": (("text", "tokens"), {"shares": (0.3, 0.7)}),
    "chat": (("chat",), {"validation": {"share": 0}}),
}
# Batches, held-out batches, and folders of the cache.
RECORDED = {
    "a former cache": "73d631ae71bc56a1",
    "bytes": ("480b4f04a92dc906", "301e8f818c4c6e0e", ["8323d541bd303cb30065e19d0a7d0796"]),
    "chat": ("9ef0b6d50a58421c", None, ["ee062ac7a6d742bd2cc3fbe35281a433"]),
    "jsonl by document": ("e654bf7b8c00bac4", "3a742e55ed8abd35", ["20af8a0dd37a4af4862ea7fd5c5ad89d"]),
    "jsonl documents": ("8657f25b69ada0ce", None, ["1e1080f19ae81ae0af86024b1d43406f"]),
    "pooled": (
        "045b08021e93269d",
        "f2f3304977ad4c3e",
        ["43c171543264701fa7017898a0369512", "b99687391de7ed99a9b68f81c700fac2", "d87fbf5c4f246d2d1fad9710858c0d09"],
    ),
    "rows": ("0e7c840e2d222575", None, ["196b1845325c7f2a6f82b08acdec36fa"]),
    "rows without segments": ("7dadb86c7a00b320", None, ["196b1845325c7f2a6f82b08acdec36fa"]),
    "shares": (
        "7b5cee81ee10d9fe",
        "f2f3304977ad4c3e",
        ["b99687391de7ed99a9b68f81c700fac2", "d87fbf5c4f246d2d1fad9710858c0d09"],
    ),
    "text": ("6358282a2db3b77b", "f2f3304977ad4c3e", ["b99687391de7ed99a9b68f81c700fac2"]),
    "tokens": ("434c5b5099a206c9", None, ["37ed6c08c1c995f96f36a332604cc621"]),
}


def found_order(folder, names, options):
    options = dict(options)
    shares = options.pop("shares", [None] * len(names))
    every = sources(folder)
    chosen = [{**every[name], "share": share} for name, share in zip(names, shares, strict=True)]
    tok = tokenizer(folder / "tok", TEMPLATE) if "chat" in names else None
    found = prepared(folder, *chosen, seed=5, tok=tok, **options)
    return found


@pytest.mark.parametrize("name", CASES)
def test_tokens_of_a_configuration_and_seed_are_those_recorded(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # relative names, because a source's key has them
    found = found_order(Path(), *CASES[name])
    train, held_out, folders = RECORDED[name]
    assert digest(found.batches) == train
    assert (None if found.held_out is None else digest(found.held_out)) == held_out
    if name != "chat":  # the form of tokenizer.json, which is in the key, is that of the package tokenizers
        assert sorted(path.name for path in Path("cache").iterdir() if path.is_dir()) == folders


def test_tokens_of_a_former_cache_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(STORE, "cache")
    (stored,) = Path("cache").iterdir()
    tokens = np.fromfile(stored / "train.tokens", dtype=np.uint8)
    (tokens ^ 1).tofile(stored / "train.tokens")  # so that tokens made anew would not be these
    found = found_order(Path(), ("rows",), {"validation": {"share": 0}})
    assert set((found.batches.row(0).tokens ^ 1).tolist()) <= set(tokens.tolist())
    assert digest(found.batches) == RECORDED["a former cache"]
