"""Chats are rendered by the template; invalid messages and template errors are refused."""

import pytest

from paceline.text.tokenizer import TokenizerError
from tests.text.makers import BOS, USER, byte_fallback, byte_level, saved

PLAIN = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = [{"role": "user", "content": "add"}, {"role": "assistant", "content": "sum "}]


@pytest.fixture
def tokenizer(tmp_path):
    return saved(tmp_path, byte_level(specials=[USER, "<|assistant|>"]), template=PLAIN)


def text(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special=False)


def test_chat_renders_the_template(tokenizer):
    tokens = tokenizer.chat(CHAT)
    assert text(tokenizer, tokens) == "<|user|>add\n<|assistant|>sum \n<|assistant|>"
    assert tokenizer.is_special(tokens[0]) and tokens == tokenizer.encode(text(tokenizer, tokens))


def test_chat_without_generation_prompt_and_continued(tokenizer):
    closed = "<|user|>add\n<|assistant|>sum \n"
    assert text(tokenizer, tokenizer.chat(CHAT, add_generation_prompt=False)) == closed
    continued = tokenizer.chat(CHAT, add_generation_prompt=False, continue_final_message=True)
    assert text(tokenizer, continued) == closed.removesuffix("\n")


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize(("template", "expected"), [("{{ bos_token }}" + PLAIN, 1), (PLAIN, 0)])
def test_bos_token_is_added_once(tmp_path, adds_bos, template, expected):
    inner = byte_fallback(adds_bos=adds_bos)
    tokenizer = saved(tmp_path, inner, settings={"bos_token": BOS}, template=template)
    assert tokenizer.encode("a").count(1) == adds_bos
    tokens = tokenizer.chat(CHAT)
    assert tokens.count(1) == expected and tokens[:expected] == [1] * expected


@pytest.mark.parametrize(
    "settings", [{"chat_template": PLAIN}, {"chat_template": [{"name": "default", "template": PLAIN}]}]
)
def test_template_in_tokenizer_config_is_used(tmp_path, settings):
    tokenizer = saved(tmp_path, byte_level(), settings=settings)
    assert tokenizer.has_chat_template and text(tokenizer, tokenizer.chat(CHAT[:1])) == "<|user|>add\n<|assistant|>"


def test_template_file_takes_precedence(tmp_path):
    tokenizer = saved(tmp_path, byte_level(), settings={"chat_template": "settings"}, template="beside")
    assert text(tokenizer, tokenizer.chat(CHAT)) == "beside"


@pytest.mark.parametrize("settings", [None, {"chat_template": [{"name": "tool_use", "template": PLAIN}]}])
def test_missing_template_is_refused(tmp_path, settings):
    tokenizer = saved(tmp_path, byte_level(), settings=settings)
    assert not tokenizer.has_chat_template
    with pytest.raises(TokenizerError, match=r"has no chat template: give the prompt as text, or put chat_template"):
        tokenizer.chat(CHAT)


def test_content_parts_are_passed_to_the_template_unchanged(tmp_path):
    template = "{% for part in messages[0].content %}[{{ part.type }}:{{ part.text }}]{% endfor %}"
    tokenizer = saved(tmp_path, byte_level(), template=template)
    parts = [{"type": "text", "text": "add"}, {"type": "text", "text": "sum"}]
    assert text(tokenizer, tokenizer.chat([{"role": "user", "content": parts}])) == "[text:add][text:sum]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty: give at least one"),
        ("hello", "messages is a str: give a list of"),
        ({"role": "user", "content": "hello"}, "messages is a dict: give a list of"),
        ([*CHAT, "hello"], r"messages\[2\] is a str: give a"),
        ([*CHAT, {"role": "user"}], r"messages\[2\] has no content: give a string or a list"),
        ([{"content": "hello"}], r"messages\[0\] has no role: give a string"),
        ([{"role": 1, "content": "hello"}], r"messages\[0\] has a role of type int: give a string"),
        ([{"role": "user", "content": None}], r"messages\[0\] has a content of type NoneType: give a string or a list"),
    ],
)
def test_invalid_messages_are_refused(tokenizer, messages, message):
    with pytest.raises(TokenizerError, match=message):
        tokenizer.chat(messages)


def test_conflicting_options_are_refused(tokenizer):
    with pytest.raises(TokenizerError, match="set only one of them"):
        tokenizer.chat(CHAT, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", r"refuses the messages \(roles must alternate\)"),
        ("{{ messages[0].content + 1 }}", "refuses the messages"),
        ("{% for %}", "refuses the messages"),
        ("{{ ''.__class__.__mro__ }}", r"refuses the messages \(.*unsafe"),
    ],
)
def test_template_errors_are_reported(tmp_path, template, message):
    tokenizer = saved(tmp_path, byte_level(), template=template)
    with pytest.raises(TokenizerError, match=message):
        tokenizer.chat(CHAT)


def test_dropped_message_cannot_be_continued(tmp_path):
    tokenizer = saved(tmp_path, byte_level(), template="{{ messages[0].content }}")
    with pytest.raises(TokenizerError, match="refuses the messages"):
        tokenizer.chat(CHAT, add_generation_prompt=False, continue_final_message=True)
