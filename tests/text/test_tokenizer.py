"""Encoding, decoding, special tokens, and the comparison of vocabularies."""

import json
import shutil
import subprocess
import sys

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.text.tokenizer import load_tokenizer, same_vocabulary
from tests.api.checkpoints import TEXT, make_tokenizer
from tests.text.makers import (
    BOS,
    END,
    UNUSUAL,
    USER,
    byte_fallback,
    byte_level,
    metaspace,
    older_format,
    python_only,
    saved,
)


@pytest.mark.parametrize("text", [*TEXT, *UNUSUAL[:-1]])
def test_decode_inverts_encode(tmp_path, text):
    tokenizer = saved(tmp_path, make_tokenizer())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_special_tokens_are_those_that_decode_skips(tmp_path, make):
    tokenizer = saved(tmp_path, make())
    between = tokenizer.encode("add", special=False)
    special = [token for token in range(tokenizer.size) if tokenizer.is_special(token)]
    assert special
    for token in special:
        assert tokenizer.decode([*between, token, *between]) == tokenizer.decode([*between, *between])
        assert tokenizer.decode([token], skip_special=False) != tokenizer.decode([token]) == ""
    plain = [token for token in range(tokenizer.size) if token not in special]
    same = [tokenizer.decode([token]) == tokenizer.decode([token], skip_special=False) for token in plain]
    assert all(same) and not tokenizer.is_special(tokenizer.size)


def test_special_tokens_have_no_text(tmp_path):
    tokenizer = saved(tmp_path, make_tokenizer())
    assert tokenizer.decode([0, *tokenizer.encode("for"), 0]) == "for"
    assert tokenizer.decode([0, *tokenizer.encode("for"), 0], skip_special=False) == "<|end|>for<|end|>"


@pytest.mark.parametrize("skip", [True, False])
def test_decode_equals_transformers(tmp_path, skip):
    """Added tokens that are not special keep their text."""
    tokenizer = saved(tmp_path, byte_level(specials=[USER], plain=["<tool>"]))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokens = tokenizer.encode("a<tool>b" + USER + "c <|end|>日")
    assert tokenizer.decode(tokens, skip_special=skip) == theirs.decode(tokens, skip_special_tokens=skip)
    assert "<tool>" in tokenizer.decode(tokens)


def test_tokens_beyond_the_vocabulary_have_no_text(tmp_path):
    tokenizer = saved(tmp_path, byte_fallback())
    first, *rest = tokenizer.encode("🙂", special=False)[-4:]
    assert tokenizer.decode([first, tokenizer.size, -1, *rest]) == "🙂"
    assert not tokenizer.is_known(tokenizer.size) and tokenizer.is_known(tokenizer.size - 1)


def test_spaces_are_never_cleaned_up(tmp_path):
    settings = {"clean_up_tokenization_spaces": True}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"do": 0, "n't": 1, ".": 2}, unk_token="do"))
    assert saved(tmp_path, words, settings=settings).decode([0, 1, 2]) == "do n't ."
    (tmp_path / "tokenizer.json").unlink()  # the same words for a tokenizer in Python
    (tmp_path / "vocab.json").write_text(json.dumps({"do": 0, "n't": 1, ".": 2, "<unk>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nd o\n")
    (tmp_path / "config.json").write_text('{"model_type": "ctrl"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "CTRLTokenizer"}))
    assert load_tokenizer(tmp_path).decode([0, 1, 2]) == "do n't ."


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("日本".encode(), "日本"),
        ("日本".encode()[:-1], "日\ufffd"),  # the library alone makes five U+FFFD of it
        (b"\x80a\xff", "\ufffda\ufffd"),
        ("é".encode() + b"\xf0\x9f" + "é".encode(), "é\ufffdé"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate
    ],
)
def test_byte_tokens_decode_like_bytes(tmp_path, octets, text):
    tokenizer = saved(tmp_path, byte_fallback())
    tokens = [tokenizer.base_vocabulary[f"<0x{byte:02X}>"] for byte in octets]
    assert tokenizer.decode(tokens) == text == octets.decode(errors="replace")


def test_byte_names_are_text_without_byte_fallback(tmp_path):
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = saved(tmp_path, tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<0x00>")))
    assert tokenizer.decode([0xC3, 0xFF]) == "<0xC3> <0xFF>"


def test_bos_token_is_added_once_and_only_with_special(tmp_path):
    tokenizer = saved(tmp_path, byte_fallback(adds_bos=True))
    with_it, without = tokenizer.encode("a b"), tokenizer.encode("a b", special=False)
    assert with_it == [1, *without] and 1 not in without


@pytest.mark.parametrize("special", [True, False])
def test_encode_many_matches_encode(tmp_path, special):
    tokenizer = saved(tmp_path, byte_fallback(adds_bos=True))
    texts = [*TEXT, *UNUSUAL]
    alone = [tokenizer.encode(text, special=special) for text in texts]
    assert tokenizer.encode_many(texts, special=special) == alone and len(set(map(len, alone))) > 2
    assert tokenizer.encode_many([]) == []


def test_stored_truncation_and_padding_are_ignored(tmp_path):
    inner = make_tokenizer()
    plain = inner.encode(TEXT[0]).ids
    inner.enable_truncation(3)
    inner.enable_padding(length=200)
    tokenizer = saved(tmp_path, inner, settings={"model_max_length": 5}, template="{{ messages[0].content }}")
    assert tokenizer.encode(TEXT[0]) == plain
    assert tokenizer.encode_many(["", TEXT[0]]) == [[], plain]
    assert tokenizer.chat([{"role": "user", "content": TEXT[0]}]) == plain


def test_added_tokens_do_not_change_the_vocabulary(tmp_path):
    folders = [tmp_path / name for name in ("plain", "chat", "other")]
    for folder in folders:
        folder.mkdir()
    plain, more = saved(folders[0], make_tokenizer()), saved(folders[1], byte_level(specials=[USER, END]))
    assert same_vocabulary(plain, more) and more.size == plain.size + 2
    assert not same_vocabulary(plain, saved(folders[2], make_tokenizer(280, ["quick brown fox"])))


def test_same_vocabulary_does_not_depend_on_the_format(tmp_path):
    """GPT-2's files do not say which tokens are added."""
    folders = [tmp_path / name for name in ("json", "older", "bytes")]
    for folder in folders:
        folder.mkdir()
    fast, older = saved(folders[0], make_tokenizer()), load_tokenizer(older_format(folders[1]))
    slow = python_only(folders[2])
    assert same_vocabulary(fast, older) and same_vocabulary(slow, slow)
    assert not same_vocabulary(fast, slow) and not same_vocabulary(slow, fast)


@pytest.mark.parametrize(("one", "other"), [(BOS, END), (END, "▁the")])
def test_special_token_ids_count_where_both_base_vocabularies_have_them(tmp_path, one, other):
    raw = json.loads(byte_fallback().to_str())
    vocabulary = raw["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    for token in raw["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    folder = tmp_path / "swapped"
    folder.mkdir()
    swapped = saved(folder, tokenizers.Tokenizer.from_str(json.dumps(raw)))
    assert not same_vocabulary(saved(tmp_path, byte_fallback()), swapped)


def test_special_tokens_in_one_base_vocabulary_do_not_count(tmp_path):
    slow = python_only(tmp_path)
    words = {**slow.base_vocabulary, "<pad>": 0, "</s>": 1, "<unk>": 2}
    folder = shutil.copytree(tmp_path, tmp_path / "fast")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    assert same_vocabulary(slow, saved(folder, inner)) and same_vocabulary(load_tokenizer(folder), slow)
    words["\ufffd"] = len(words)
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    assert not same_vocabulary(slow, saved(folder, inner))


def test_stop_strings_and_loops_import_no_library():
    code = (
        "import sys, paceline.text.loops, paceline.text.stops; "
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
