import json
import subprocess
import sys

import pytest

from paceline.text.tokenizer import TokenizerError, load_tokenizer, read_eos, same_vocabulary
from tests.api.checkpoints import TEXT, make_tokenizer


def saved(folder, tokenizer):
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


@pytest.mark.parametrize("text", [*TEXT, "", " leading and trailing ", "naïve 日本語 🙂\tend"])
def test_decoding_inverts_encoding(tmp_path, text):
    tokenizer = saved(tmp_path, make_tokenizer())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_directory_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None


def test_broken_tokenizer_is_refused_by_its_path(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_special_tokens_have_no_text(tmp_path):
    tokenizer = saved(tmp_path, make_tokenizer())
    assert tokenizer.decode([0, *tokenizer.encode("for"), 0]) == "for"


def test_stored_truncation_and_padding_do_not_touch_prompts(tmp_path):
    inner = make_tokenizer()
    plain = inner.encode(TEXT[0]).ids
    inner.enable_truncation(3)
    inner.enable_padding(length=200)
    assert saved(tmp_path, inner).encode(TEXT[0]) == plain


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
    chat = make_tokenizer()
    chat.add_special_tokens(["<|user|>", "<|assistant|>"])
    plain, more = saved(folders[0], make_tokenizer()), saved(folders[1], chat)
    assert same_vocabulary(plain, more) and more.size == plain.size + 2
    assert not same_vocabulary(plain, saved(folders[2], make_tokenizer(280, ["quick brown fox"])))


def test_importing_it_loads_neither_torch_nor_transformers():
    code = "import sys, paceline.text.stream; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
