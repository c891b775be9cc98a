"""Tokenizers with different encodings of spaces and unknown characters, and directories with them."""

import json

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from paceline.text.tokenizer import load_tokenizer
from tests.api.checkpoints import make_tokenizer

BOS, END, USER = "<s>", "</s>", "<|user|>"
UNUSUAL = [
    "",
    " leading and trailing ",
    "naïve  日本語 🙂\tend",
    "don't stop\n\n  123456",
    "nai\u0308ve",
    "<|end|> inside",
]


def byte_level(*, specials=(), plain=()):
    """Byte-level BPE; id 0 is special, further special and ordinary added tokens follow the others."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.add_tokens(list(plain))
    return tokenizer


def byte_fallback(*, adds_bos=False):
    """As converted from SentencePiece: words start with a marker, unknown characters become byte tokens."""
    words = ["▁", "▁the", "▁a", "a", "b", "c", "é", "日", "\ufffd", "ab", "."]
    names = ["<unk>", BOS, END, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("a", "b")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", BOS, END)])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return tokenizer


def metaspace():
    """Whole words, each with its leading space, and a special token."""
    words = {word: number for number, word in enumerate(["▁def", "▁add", "▁sum", "ming", END])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="▁def"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([END])
    return tokenizer


def write(folder, tokenizer, *, settings=None, template=None, config=None):
    """Writes tokenizer.json and optional files next to it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (("tokenizer_config.json", settings), ("config.json", config)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def saved(folder, tokenizer, **beside):
    """The tokenizer loaded from a checkpoint directory."""
    return load_tokenizer(write(folder, tokenizer, **beside))


def older_format(folder, model_type="gpt2"):
    """The same tokens in vocab.json and merges.txt."""
    raw = json.loads(make_tokenizer().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(raw["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in raw["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def python_only(folder):
    """A tokenizer without a fast implementation."""
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    (folder / "config.json").write_text('{"model_type": "t5"}')
    return load_tokenizer(folder)
