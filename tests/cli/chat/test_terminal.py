"""The terminal's side of a conversation: keys, completion, history, and Ctrl-C."""

import os
import signal
import stat

import pytest

pytest.importorskip("prompt_toolkit")
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from paceline.api import load
from paceline.cli.chat.commands import COMMANDS
from paceline.cli.chat.conversation import Conversation
from paceline.cli.chat.screen import Writer
from paceline.cli.chat.terminal import CommandCompleter, PrivateHistory, TerminalReader, history_path, open_history
from tests.api.checkpoints import pair
from tests.cli.chat.talking import ASKED, GREEDY, answerer, dialogue, printed

ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J = "\r", "\x1b\r", "\x03", "\x04", "\n"


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


def typed(*keys, history=None, default=""):
    """What a reader returns for each of these, typed one after the other; "Ctrl-C" for an interruption."""
    with create_pipe_input() as pipe:
        reader = TerminalReader(history=history or InMemoryHistory(), input=pipe, output=DummyOutput())
        found = []
        for some in keys:
            pipe.send_text(some)
            try:
                found.append(reader.read(default))
            except KeyboardInterrupt:
                found.append("Ctrl-C")
        return found


def test_enter_sends_and_alt_enter_begins_a_line():
    assert typed("one" + ENTER, "a" + ALT_ENTER + "b" + CTRL_J + "日本" + ENTER) == ["one", "a\nb\n日本"]


def test_a_pasted_text_keeps_its_lines():
    assert typed("\x1b[200~def f():\n    return 1\x1b[201~" + ENTER) == ["def f():\n    return 1"]


def test_control_keys_discard_and_leave():
    assert typed("nonsense" + CTRL_C + "said" + ENTER, CTRL_C, CTRL_D) == ["said", "Ctrl-C", None]


def test_a_default_can_be_changed():
    assert typed("er" + ENTER, default="long") == ["longer"]


def test_what_is_not_utf8_is_refused():
    with create_pipe_input() as pipe:
        reader = TerminalReader(history=InMemoryHistory(), input=pipe, output=DummyOutput())
        pipe.send_bytes(b"a\xffb\r")
        with pytest.raises(ValueError, match="that is not UTF-8: set the terminal to UTF-8"):
            reader.read("")


def test_history_is_kept_for_the_user_alone(tmp_path):
    path = tmp_path / "chat" / "history"
    typed("first" + ENTER, "two" + ALT_ENTER + "lines" + ENTER, history=PrivateHistory(path))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    assert list(PrivateHistory(path).load_history_strings()) == ["two\nlines", "first"]
    up = "\x1b[A"
    assert typed(up * 3 + ENTER, history=PrivateHistory(path)) == ["first"]
    path.chmod(0o644)
    PrivateHistory(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_history_that_cannot_be_written_is_forgotten(tmp_path):
    (tmp_path / "file").write_text("")
    said = []
    assert isinstance(open_history(tmp_path / "file" / "history", said.append), InMemoryHistory)
    assert len(said) == 1 and said[0].endswith("what you write is not kept")
    assert isinstance(open_history(None, said.append), InMemoryHistory) and len(said) == 1


def test_history_is_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert history_path() == tmp_path / "chat" / "history"


def completions(text):
    found = CommandCompleter().get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [one.text for one in found]


def test_commands_and_what_follows_them_are_completed(tmp_path, monkeypatch):
    assert completions("/") == [f"/{name}" for name in COMMANDS] and completions("/s") == [
        f"/{name}" for name in COMMANDS if name.startswith("s")
    ]
    assert completions("/set temp") == ["temperature"] and {"on", "off", "ngram"} <= set(completions("/drafter "))
    assert completions("/undo ") == [] and completions("s") == [] and completions("/drafter ng") != []
    (tmp_path / "talk.json").write_text("")
    monkeypatch.chdir(tmp_path)
    assert completions("/load ta") == ["lk.json"]


def interrupting(monkeypatch, *, after, times=1):
    """Ctrl-C, so often, after so many tokens of the first answer."""
    put, count = Writer.put, [0]

    def counted(self, piece, text):
        put(self, piece, text)
        count[0] += 1
        if count[0] == after:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Writer, "put", counted)


def test_ctrl_c_ends_an_answer_and_frees_its_row(target, monkeypatch):
    interrupting(monkeypatch, after=5)
    made = dialogue(answerer(target), ASKED, "/show", "return", stays=True, terminal=True)
    handler = signal.getsignal(signal.SIGINT)
    assert made.run() == 0 and signal.getsignal(signal.SIGINT) is handler
    first, second = (made.conversation.messages[at]["content"] for at in (1, 3))
    (whole,) = made.answerer.submit(Conversation().asked(ASKED), GREEDY, number=0).drain()
    assert first and whole.text.startswith(first) and len(first) < len(whole.text) and second
    assert "stopped by you" in printed(made)[1]


def test_ctrl_c_before_an_answer_begins_gives_the_message_back(target, monkeypatch):
    answers = answerer(target)
    submit, raised = answers.engine.advance, []

    def interrupted():
        if not raised:
            raised.append(True)
            signal.raise_signal(signal.SIGINT)
        submit()

    monkeypatch.setattr(answers.engine, "advance", interrupted)
    made = dialogue(answers, ASKED, "return", stays=True)
    assert made.run() == 0 and made.reader.defaults == ["", ASKED, ""]
    assert made.conversation.messages[0]["content"] == "return" and len(made.conversation.messages) == 2


@pytest.mark.parametrize(("stays", "times"), [(True, 2), (False, 1)])
def test_a_second_one_leaves_and_one_does_in_a_pipe(target, monkeypatch, stays, times):
    interrupting(monkeypatch, after=5, times=times)
    made = dialogue(answerer(target), ASKED, "return", stays=stays)
    assert made.run() == 130 and made.reader.left == ["return"]
    assert len(made.conversation.messages) == 2
