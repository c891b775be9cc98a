"""Tokenizers and end-of-text ids are loaded from a directory unchanged, or refused; no code runs by default."""

import json
import sys

import pytest
import tokenizers
import transformers
from transformers import AutoTokenizer

from paceline.text.special_tokens import read_eos
from paceline.text.tokenizer import TokenizerError, load_tokenizer
from tests.api.checkpoints import TEXT, make_tokenizer
from tests.text.makers import UNUSUAL, byte_fallback, metaspace, older_format, python_only, saved, write


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "mistral", "unheard-of"])
@pytest.mark.parametrize("make", [make_tokenizer, byte_fallback, metaspace])
def test_tokenizer_json_is_used_for_every_model_type(tmp_path, model_type, make):
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    tokenizer = saved(tmp_path, make(), config={"model_type": model_type}, settings=settings)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXT, *UNUSUAL]:
        ids = plain.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == plain.decode(ids)
    assert tokenizer.size == plain.get_vocab_size()


def test_auto_tokenizer_would_change_the_tokens(tmp_path):
    """Otherwise the test above could not fail."""
    write(tmp_path, make_tokenizer(), config={"model_type": "qwen2"})
    rebuilt = AutoTokenizer.from_pretrained(tmp_path)
    assert any(rebuilt(text)["input_ids"] != make_tokenizer().encode(text).ids for text in UNUSUAL)


def test_directory_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None and load_tokenizer(tmp_path / "missing") is None
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert load_tokenizer(str(tmp_path)) is None


@pytest.mark.parametrize("content", ["{}", "{", "[1]", '{"added_tokens": [], "model": {"type": "Unheard"}}'])
def test_broken_tokenizer_json_is_refused_with_its_path(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer \(.*\); take the file"):
        load_tokenizer(tmp_path)


def test_vocab_and_merges_are_read_without_tokenizer_json(tmp_path):
    tokenizer = load_tokenizer(older_format(tmp_path))
    assert tokenizer.encode(TEXT[0]) == make_tokenizer().encode(TEXT[0]).ids
    assert tokenizer.decode(tokenizer.encode("naïve 日本")) == "naïve 日本"


def test_tokenizers_without_a_fast_backend_work(tmp_path):
    tokenizer = python_only(tmp_path)
    tokens = tokenizer.encode("naïve 日本", special=False)
    assert tokenizer.decode(tokens) == "naïve 日本" and len(tokens) == len("naïve 日本".encode())
    assert tokenizer.decode([*tokens, 0, 1, tokenizer.size + 5]) == "naïve 日本"
    assert tokenizer.is_special(0) and not any(tokenizer.is_special(token) for token in tokens)
    assert len(tokenizer.base_vocabulary) == 256 and tokenizer.encode_many(["a", "bc"])[0] == tokenizer.encode("a")


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.model": "nonsense", "config.json": '{"model_type": "llama"}'},
        {"vocab.json": "{", "merges.txt": "", "config.json": '{"model_type": "gpt2"}'},
        {"vocab.json": "{}", "merges.txt": ""},
        {"tokenizer_config.json": "{"},
    ],
)
def test_unreadable_older_formats_are_refused(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=r"is not a tokenizer \(.*\); put tokenizer\.json there"):
        load_tokenizer(tmp_path)


def test_tokenizer_config_without_a_vocabulary_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with pytest.raises(TokenizerError, match=r"tokenizer of 1 special tokens and no others: its vocabulary files"):
        load_tokenizer(tmp_path)


EVIL = """
from pathlib import Path
from transformers import GPT2Tokenizer, PreTrainedConfig
Path({mark!r}).write_text("ran")
class Evil(GPT2Tokenizer):
    pass
class EvilConfig(PreTrainedConfig):
    pass
"""
AUTO_MAP = {"AutoTokenizer": ["evil.Evil", None], "AutoConfig": "evil.EvilConfig"}


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """A temporary directory for the code that transformers copies from checkpoints."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


def with_code(folder, model_type):
    """A checkpoint with code of its own, and the file that this code would write."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    older_format(checkpoint, model_type)
    mark = folder / "mark"
    (checkpoint / "evil.py").write_text(EVIL.format(mark=str(mark)))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"auto_map": AUTO_MAP, "tokenizer_class": "Evil"}))
    (checkpoint / "config.json").write_text(json.dumps({"auto_map": AUTO_MAP, "model_type": model_type}))
    return checkpoint, mark


@pytest.mark.parametrize("with_json", [True, False])
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen2", "unheard-of"])
def test_code_of_a_checkpoint_never_runs_by_default(tmp_path, own_modules, model_type, with_json):
    checkpoint, mark = with_code(tmp_path, model_type)
    if with_json:
        write(checkpoint, make_tokenizer())
        assert load_tokenizer(checkpoint).encode(TEXT[0]) == make_tokenizer().encode(TEXT[0]).ids
    else:
        try:
            load_tokenizer(checkpoint)
        except TokenizerError as error:
            assert "is not a tokenizer" in str(error)
    assert not mark.exists()


def test_code_of_a_checkpoint_runs_when_trusted(tmp_path, own_modules):
    """Otherwise the test above could not fail."""
    checkpoint, mark = with_code(tmp_path, "gpt2")
    trusting = {"trust_remote_code": True}
    assert load_tokenizer(checkpoint, **trusting).encode(TEXT[0]) == make_tokenizer().encode(TEXT[0]).ids
    assert mark.read_text() == "ran"


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 5}, (3, 4)),
        ({"eos_token_id": 3}, {}, (3,)),
        ({}, {"eos_token_id": 0}, (0,)),
        (None, {"eos_token_id": [7]}, (7,)),
        (None, {"eos_token_id": None}, ()),
        (None, None, ()),
    ],
)
def test_eos_of_generation_config_takes_precedence(tmp_path, generation, config, expected):
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    assert read_eos(tmp_path) == expected


@pytest.mark.parametrize("content", ['{"eos_token_id": "stop"}', "{"])
def test_unreadable_eos_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"config\.json"):
        read_eos(tmp_path)
