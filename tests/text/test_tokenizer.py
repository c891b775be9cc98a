import json
import shutil
import subprocess
import sys

import pytest
import tokenizers
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline.text.tokenizer import TokenizerError, load_tokenizer, read_eos, same_vocabulary
from tests.api.checkpoints import TEXT, make_tokenizer
from tests.text.makers import BOS, END, USER, byte_fallback, byte_level, metaspace, saved, write

UNUSUAL = [
    "",
    " leading and trailing ",
    "naïve  日本語 🙂\tend",
    "don't stop\n\n  123456",
    "nai\u0308ve",
    "<|end|> inside",
]


@pytest.mark.parametrize("text", [*TEXT, *UNUSUAL[:-1]])
def test_decoding_inverts_encoding(tmp_path, text):
    tokenizer = saved(tmp_path, make_tokenizer())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "mistral", "unheard-of"])
@pytest.mark.parametrize("make", [make_tokenizer, byte_fallback, metaspace])
def test_tokenizer_json_is_kept_whatever_the_model_type(tmp_path, model_type, make):
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    tokenizer = saved(tmp_path, make(), config={"model_type": model_type}, settings=settings)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXT, *UNUSUAL]:
        ids = plain.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == plain.decode(ids)
    assert tokenizer.size == plain.get_vocab_size()


def test_rebuilding_by_model_type_would_change_the_tokens(tmp_path):
    """Otherwise the law above could not fail."""
    write(tmp_path, make_tokenizer(), config={"model_type": "qwen2"})
    rebuilt = AutoTokenizer.from_pretrained(tmp_path)
    assert any(rebuilt(text)["input_ids"] != make_tokenizer().encode(text).ids for text in UNUSUAL)


def test_directory_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None and load_tokenizer(tmp_path / "missing") is None
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert load_tokenizer(str(tmp_path)) is None


@pytest.mark.parametrize("content", ["{}", "{", "[1]", '{"added_tokens": [], "model": {"type": "Unheard"}}'])
def test_broken_tokenizer_is_refused_by_its_path(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer \(.*\); take the file"):
        load_tokenizer(tmp_path)


def older_format(folder, model_type="gpt2"):
    """The same tokens in vocab.json and merges.txt."""
    raw = json.loads(make_tokenizer().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(raw["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in raw["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def test_vocabulary_and_merges_are_read_where_tokenizer_json_is_missing(tmp_path):
    tokenizer = load_tokenizer(older_format(tmp_path))
    assert tokenizer.encode(TEXT[0]) == make_tokenizer().encode(TEXT[0]).ids
    assert tokenizer.decode(tokenizer.encode("naïve 日本")) == "naïve 日本"


def python_only(folder):
    """Words and bytes of a tokenizer that the fast library does not know."""
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    (folder / "config.json").write_text('{"model_type": "t5"}')
    return load_tokenizer(folder)


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
def test_older_formats_that_cannot_be_read_are_refused(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=r"is not a tokenizer \(.*\); put tokenizer\.json there"):
        load_tokenizer(tmp_path)


def test_settings_without_a_vocabulary_are_refused(tmp_path):
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
    """Where transformers copies the code of checkpoints, kept out of the home directory and of later tests."""
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
    """A directory whose settings name a class of its own, and the file that its code would write."""
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
def test_code_of_a_checkpoint_never_runs_unasked(tmp_path, own_modules, model_type, with_json):
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
    """Otherwise the law above could not fail."""
    checkpoint, mark = with_code(tmp_path, "gpt2")
    trusting = {"trust_remote_code": True}
    assert load_tokenizer(checkpoint, **trusting).encode(TEXT[0]) == make_tokenizer().encode(TEXT[0]).ids
    assert mark.read_text() == "ran"


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_special_tokens_are_those_without_text(tmp_path, make):
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
def test_decoding_is_that_of_transformers(tmp_path, skip):
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
def test_byte_tokens_decode_as_bytes_do(tmp_path, octets, text):
    tokenizer = saved(tmp_path, byte_fallback())
    tokens = [tokenizer.base_vocabulary[f"<0x{byte:02X}>"] for byte in octets]
    assert tokenizer.decode(tokens) == text == octets.decode(errors="replace")


def test_names_of_bytes_are_text_where_nothing_falls_back_to_them(tmp_path):
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = saved(tmp_path, tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<0x00>")))
    assert tokenizer.decode([0xC3, 0xFF]) == "<0xC3> <0xFF>"


def test_beginning_of_text_is_added_once_and_on_demand(tmp_path):
    tokenizer = saved(tmp_path, byte_fallback(adds_bos=True))
    with_it, without = tokenizer.encode("a b"), tokenizer.encode("a b", special=False)
    assert with_it == [1, *without] and 1 not in without


@pytest.mark.parametrize("special", [True, False])
def test_many_texts_are_encoded_as_each_alone(tmp_path, special):
    tokenizer = saved(tmp_path, byte_fallback(adds_bos=True))
    texts = [*TEXT, *UNUSUAL]
    alone = [tokenizer.encode(text, special=special) for text in texts]
    assert tokenizer.encode_many(texts, special=special) == alone and len(set(map(len, alone))) > 2
    assert tokenizer.encode_many([]) == []


def test_stored_truncation_and_padding_do_not_touch_prompts(tmp_path):
    inner = make_tokenizer()
    plain = inner.encode(TEXT[0]).ids
    inner.enable_truncation(3)
    inner.enable_padding(length=200)
    tokenizer = saved(tmp_path, inner, settings={"model_max_length": 5}, template="{{ messages[0].content }}")
    assert tokenizer.encode(TEXT[0]) == plain
    assert tokenizer.encode_many(["", TEXT[0]]) == [[], plain]
    assert tokenizer.chat([{"role": "user", "content": TEXT[0]}]) == plain


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
def test_eos_of_the_generation_config_comes_first(tmp_path, generation, config, expected):
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    assert read_eos(tmp_path) == expected


@pytest.mark.parametrize("content", ['{"eos_token_id": "stop"}', "{"])
def test_unreadable_eos_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"config\.json"):
        read_eos(tmp_path)


def test_added_tokens_do_not_change_the_vocabulary(tmp_path):
    folders = [tmp_path / name for name in ("plain", "chat", "other")]
    for folder in folders:
        folder.mkdir()
    plain, more = saved(folders[0], make_tokenizer()), saved(folders[1], byte_level(specials=[USER, END]))
    assert same_vocabulary(plain, more) and more.size == plain.size + 2
    assert not same_vocabulary(plain, saved(folders[2], make_tokenizer(280, ["quick brown fox"])))


def test_vocabulary_is_the_same_in_any_format(tmp_path):
    """GPT-2's files do not say which tokens are added."""
    folders = [tmp_path / name for name in ("json", "older", "bytes")]
    for folder in folders:
        folder.mkdir()
    fast, older = saved(folders[0], make_tokenizer()), load_tokenizer(older_format(folders[1]))
    slow = python_only(folders[2])
    assert same_vocabulary(fast, older) and same_vocabulary(slow, slow)
    assert not same_vocabulary(fast, slow) and not same_vocabulary(slow, fast)


@pytest.mark.parametrize(("one", "other"), [(BOS, END), (END, "▁the")])
def test_ids_of_special_tokens_count_where_both_vocabularies_have_them(tmp_path, one, other):
    raw = json.loads(byte_fallback().to_str())
    vocabulary = raw["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    for token in raw["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    folder = tmp_path / "swapped"
    folder.mkdir()
    swapped = saved(folder, tokenizers.Tokenizer.from_str(json.dumps(raw)))
    assert not same_vocabulary(saved(tmp_path, byte_fallback()), swapped)


def test_special_tokens_in_only_one_base_vocabulary_do_not_count(tmp_path):
    slow = python_only(tmp_path)
    words = {**slow.base_vocabulary, "<pad>": 0, "</s>": 1, "<unk>": 2}
    folder = shutil.copytree(tmp_path, tmp_path / "fast")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    assert same_vocabulary(slow, saved(folder, inner)) and same_vocabulary(load_tokenizer(folder), slow)
    words["\ufffd"] = len(words)
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    assert not same_vocabulary(slow, saved(folder, inner))


def test_stop_strings_and_loops_load_no_library():
    code = (
        "import sys, paceline.text.loops, paceline.text.stops; "
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
