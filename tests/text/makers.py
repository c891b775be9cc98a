"""Tokenizers that spell spaces and unknown characters in different ways, and directories with them."""

import json

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from paceline.text.tokenizer import load_tokenizer
from tests.api.checkpoints import make_tokenizer

BOS, END, USER = "<s>", "</s>", "<|user|>"


def byte_level(*, specials=(), plain=()):
    """Byte-level BPE; id 0 is special, further special and ordinary added tokens follow the others."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.add_tokens(list(plain))
    return tokenizer


def byte_fallback(*, adds_bos=False):
    """As converted from SentencePiece: words begin with a mark, unknown characters become byte tokens."""
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
    """tokenizer.json and what may lie beside it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (("tokenizer_config.json", settings), ("config.json", config)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def saved(folder, tokenizer, **beside):
    """The tokenizer as a checkpoint directory gives it."""
    return load_tokenizer(write(folder, tokenizer, **beside))
