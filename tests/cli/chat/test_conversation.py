"""Conversations are changed as said, and what is saved is loaded again, by OpenAI's clients too."""

import json
import os

import pytest

from paceline.cli.chat.conversation import MOST_BYTES, Conversation, load

SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "日本語 and \x1b[2J\nlines"},
    {"role": "assistant", "content": "a\ud7ff"},
    {"role": "user", "content": "more"},
]


def test_saved_messages_are_loaded_again(tmp_path):
    path = tmp_path / "kept" / "talk.json"
    made = Conversation(SAID)
    assert made.save(path) == path == made.path and os.listdir(path.parent) == ["talk.json"]
    assert load(path).messages == SAID
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {"messages": SAID}
    made.messages = SAID[:2]
    made.save(None)  # its own file
    assert load(path).messages == SAID[:2]


def test_another_file_is_not_written_over(tmp_path):
    path = tmp_path / "talk.json"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"talk.json: exists already; give another name, or remove it"):
        Conversation(SAID).save(path)
    with pytest.raises(ValueError, match="the conversation has no file yet: give /save FILE"):
        Conversation(SAID).save(None)
    with pytest.raises(ValueError, match="give a file that can be written"):
        Conversation(SAID).save(path / "below.json")
    assert path.read_text() == "mine"


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    made = Conversation(SAID)
    path = made.save(tmp_path / "talk.json")
    made.messages = SAID[:1]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="No space left on device"):
        made.save(None)
    assert load(path).messages == SAID and os.listdir(tmp_path) == ["talk.json"]


def test_lists_and_parts_are_read_too(tmp_path):
    path = tmp_path / "talk.json"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    path.write_text(json.dumps([{"role": "user", "content": parts, "name": None}]), encoding="utf-8-sig")
    assert load(path).messages == [{"role": "user", "content": "ab"}]


REFUSED = {
    "not JSON": (b"{", "not JSON"),
    "deep": (b"[" * 100_000, "not JSON"),
    "not UTF-8": (b'"\xff"', "not UTF-8; convert it"),
    "two": (b'{"messages": []}\n{}', "not JSON"),
    "empty": (b'{"messages": []}', "no messages in it"),
    "number": (b"7", "no messages in it"),
    "no object": (b"[1]", r"messages\[0\] is no object"),
    "role": (
        b'[{"role": "tool", "content": "x"}]',
        r"messages\[0\] has role='tool': known are system, user,",
    ),
    "no content": (b'[{"role": "user"}]', r"messages\[0\] has no content of text"),
    "image": (b'[{"role": "user", "content": [{"type": "image_url"}]}]', "no content of text: give a string"),
    "late system": (
        b'[{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]',
        r"messages\[1\] is a system message: it is understood only at the beginning",
    ),
    "calls": (b'[{"role": "assistant", "content": "", "tool_calls": [1]}]', r"messages\[0\] has tool_calls"),
    "surrogate": (b'[{"role": "user", "content": "\\ud800"}]', "half a surrogate pair"),
    "large": (b" " * (MOST_BYTES + 1), "more than 16 MiB"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_conversation_is_refused(case, tmp_path):
    content, message = REFUSED[case]
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none.json: No such file or directory; give a file that can be read"):
        load(tmp_path / "none.json")


def test_the_system_message_stays_first():
    made = Conversation(SAID[1:])
    made.system = "Be long."
    assert made.messages == [{"role": "system", "content": "Be long."}, *SAID[1:]] and made.system == "Be long."
    made.system = "Be brief."
    assert made.messages == SAID
    made.clear()
    assert made.messages == SAID[:1]
    made.system = None
    assert made.messages == [] and made.system is None


def test_the_last_message_is_taken_back_with_its_answer():
    made = Conversation(SAID)
    assert made.before_last() == SAID[:3] and made.last_asked() == "more"
    made.messages = made.before_last()
    assert made.before_last() == SAID[:1]
    made.messages = SAID[:1]
    with pytest.raises(ValueError, match="there is no message of yours yet"):
        made.before_last()
