import json

import pytest

from paceline.api import load
from paceline.cli.prompt_file.prompts import as_chat, encode_entries, read_prompts
from tests.api.checkpoints import pair


def read(tmp_path, content, *, name="prompts.txt", chat=False, system=None):
    path = tmp_path / name
    path.write_bytes(content)
    return read_prompts(path, chat=chat, system=system)


@pytest.mark.parametrize("content", [b"one\ntwo", b"one\ntwo\n", b"one\r\ntwo\r\n", b"\xef\xbb\xbfone\ntwo\n"])
def test_one_prompt_per_line_however_lines_end(tmp_path, content):
    assert [entry.prompt for entry in read(tmp_path, content)] == ["one", "two"]


def test_only_line_feeds_end_lines(tmp_path):
    text = " tab\t form\x0c separator\u2028 next\u0085 "
    (entry,) = read(tmp_path, text.encode())
    assert entry.prompt == text


def test_line_that_is_not_utf8_fails_alone(tmp_path):
    bad, good = read(tmp_path, b"\xff\xfe\nfine\n")
    assert bad.error == "line 1: not UTF-8: convert the file" and bad.prompt is None
    assert good.prompt == "fine" and good.error is None


WRONG = {
    '{"prompt": "x", "tokens": [1]}': "prompt and tokens: give one of prompt, tokens, messages",
    "{}": "no prompt: give one of",
    '{"prompt": 3}': "prompt=3: give a string",
    '{"prompt": [1, 2]}': "prompt=[1, 2]: give a string, or token ids as tokens",
    '{"tokens": "x"}': "tokens=x: give a list of token ids",
    '{"tokens": [true]}': "tokens=[true]: give a list of token ids",
    '{"tokens": [1.5]}': "tokens=[1.5]: give a list of token ids",
    '{"messages": []}': "messages=[]: give a list of",
    '{"messages": ["x"]}': 'messages=["x"]: give a list of',
    '{"prompt": "x", "id": [1]}': "id=[1]: give a string or an integer",
    '{"prompt": "x", "id": true}': "id=true: give a string or an integer",
    '{"prompt": "x", "top_k": 4}': "unknown key 'top_k': known are prompt, tokens, messages, id and params",
    '{"prompt": "x", "params": [4]}': 'params=[4]: give an object like {"temperature": 0.5}',
    '{"prompt": "x", "params": {"n": 4}}': "params with n: it is the same for all prompts; give it on the command",
    '{"prompt": "x", "params": {"seed": -1}}': "params with seed=-1: it could not be resumed, give a seed from 0",
    '{"prompt": "x", "params": {"max_tokens": null}}': "params with max_tokens=null: give a number",
    '"x"': "no JSON object",
    "": "not JSON",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_object_says_what_to_give(line, tmp_path):
    entry, _ = read(tmp_path, f'{line}\n{{"prompt": "fine"}}\n'.encode(), name="p.jsonl")
    assert entry.prompt is None and entry.error.startswith("line 1: ") and WRONG[line] in entry.error


def test_digest_is_of_the_prompt_as_it_is_continued_wherever_it_stands(tmp_path):
    one, two, again = read(tmp_path, b"a\nb\na\n")
    assert one.digest == again.digest != two.digest
    (as_object,) = read(tmp_path, b'{"prompt": "a", "id": 4}', name="p.jsonl")
    assert as_object.digest == one.digest
    chats = [read(tmp_path, b"a", chat=True, system=system)[0].digest for system in (None, "s", "t")]
    assert len({one.digest, *chats}) == 4


def test_digest_is_of_the_params_too(tmp_path):
    params = ["null", "{}", '{"temperature": 0.5}', '{"temperature": 0.6}']
    lines = "\n".join(f'{{"prompt": "a", "params": {one}}}' for one in params)
    none, empty, one, other = read(tmp_path, lines.encode(), name="p.jsonl")
    (plain,) = read(tmp_path, b"a\n")
    assert none.digest == empty.digest == plain.digest
    assert len({plain.digest, one.digest, other.digest}) == 3 and one.params == {"temperature": 0.5}


def test_tokens_with_chat_are_refused(tmp_path):
    entry, _ = read(tmp_path, b'{"tokens": [1]}\n{"prompt": "x"}', name="p.jsonl", chat=True)
    assert "tokens with --chat" in entry.error


@pytest.mark.parametrize("text", ["hello", "[]", '{"role": "user"}', "[1]", '"x"', "[broken"])
def test_what_is_no_list_of_messages_is_a_message(text):
    assert as_chat(text, system=None) == [{"role": "user", "content": text}]


def test_list_of_messages_is_taken_as_it_is():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert as_chat(json.dumps(messages), system=None) == messages
    assert as_chat(json.dumps(messages), system="s") == [{"role": "system", "content": "s"}, *messages]


def test_prompts_are_encoded_as_one_by_one_beside_bad_ones(tmp_path):
    target = load(pair().target)
    texts = ["def add(", "for item", "x" * 50]
    lines = [json.dumps({"prompt": text}) for text in texts]
    bad = ["{", '{"prompt": ""}', '{"tokens": [4, 5]}']
    for extra in ([], ['{"prompt": "\\ud800"}']):
        entries = read(tmp_path, "\n".join([lines[0], *bad, *lines[1:], *extra]).encode(), name="p.jsonl")
        found = encode_entries(target, entries)
        expected = [target.tokenizer.encode(text) for text in texts]
        assert [found[0], found[4], found[5]] == expected and found[3] == [4, 5]
        assert "not JSON" in found[1] and found[2].startswith("line 3: empty prompt")
        assert not extra or found[6].startswith(r"line 7: '\ud800' cannot be encoded as UTF-8")
