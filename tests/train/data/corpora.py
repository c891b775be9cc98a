"""Small corpora on disk, and the data section over them."""

import json

import numpy as np

from paceline.train.data import DataConfig, make_batches
from tests.text.makers import byte_level, saved

TEXTS = [f"text {number}: " + "abcdefgh"[: 1 + number % 8] * (3 + number) + "é\n" for number in range(24)]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|{{ message.role }}|>{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}\n{% endgeneration %}{% else %}{{ message.content }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = [
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": "sum "},
    {"role": "user", "content": "def"},
    {"role": "assistant", "content": "abc"},
]


def tokenizer(folder, template=None):
    """Byte-level BPE; id 0 ends texts."""
    folder.mkdir(exist_ok=True)
    return saved(folder, byte_level(specials=["<|user|>", "<|assistant|>"]), template=template)


def files(folder, texts=TEXTS):
    """One file per text."""
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text, encoding="utf-8")
    return str(folder)


def texts(folder, content=TEXTS, **fields):
    """A source of one file per text."""
    return {"kind": "text", "paths": [files(folder, content)], **fields}


def lines(path, objects):
    """A file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in objects), encoding="utf-8")
    return str(path)


def array(path, tokens):
    """A token file."""
    np.save(path, np.asarray(tokens, dtype=np.uint16))
    return str(path)


def prepared(tmp_path, *sources, length=16, rows=4, seed=0, tok=None, vocab_size=None, end=0, **section):
    """Data of ``sources``: bytes by default, ended by 0, a fifth of the files held out."""
    fields = {"tokenizer": "bytes" if tok is None else "target", "validation": {"share": 0.2}, **section}
    config = DataConfig.model_validate({"sources": sources, "cache": tmp_path / "cache", **fields})
    size = vocab_size or (256 if tok is None else tok.size)
    return make_batches(config, tokenizer=tok, vocab_size=size, end_of_text=end, rows=rows, length=length, seed=seed)


def undivided(tmp_path, *sources, **fields):
    """``prepared``, with nothing held out."""
    return prepared(tmp_path, *sources, **{"validation": {"share": 0}, **fields})


def epoch(batches):
    """All rows in the order of the first epoch."""
    return [batches.row(number) for number in range(batches.num_rows)]


def ordered(batches):
    """All rows in the order of their source."""
    return [batches._sources[0].row(number) for number in range(batches.num_rows)]


def held_out(found):
    """Names of the files that are not trained on."""
    return {record.name for record in found.manifest.files if record.split == "validation"}
