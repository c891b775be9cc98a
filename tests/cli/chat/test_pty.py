"""``paceline chat`` in a terminal of its own: what a user sees and does."""

import os
import re
import select
import signal
import stat
import sys
import time

import pytest

from paceline.core.files import cache_folder
from tests.api.checkpoints import pair
from tests.cli.chat.talking import ASKED

pty = pytest.importorskip("pty")
pytest.importorskip("prompt_toolkit")
SECONDS = 280  # for anything, on a machine that does much else
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()].|[=>78])")


class Terminal:
    """A process of ``paceline chat`` with a terminal of 100 columns."""

    def __init__(self, *options, folder):
        (folder / "cache").mkdir()
        (folder / "cache" / "kernels").symlink_to(cache_folder("kernels"))  # not to be built anew
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.environ |= {
                "PACELINE_CACHE": str(folder / "cache"),
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "TERM": "xterm-256color",
            }
            os.environ |= {"COLUMNS": "100", "LINES": "40"}
            os.environ.pop("NO_COLOR", None)
            os.execv(sys.executable, [sys.executable, "-m", "paceline", "chat", *map(str, options)])
        self.raw = ""

    @property
    def seen(self):
        return ESCAPES.sub("", self.raw)

    def until(self, words, *, after=0):
        """Read until ``words`` are seen behind the first ``after`` characters; where they end."""
        end = time.monotonic() + SECONDS
        while words not in self.seen[after:]:
            assert time.monotonic() < end, self.seen[-2000:]
            self.read()
        return self.seen.index(words, after) + len(words)

    def read(self):
        if select.select([self.file], [], [], 1)[0]:
            self.raw += os.read(self.file, 1 << 16).decode(errors="replace")

    def type(self, keys):
        os.write(self.file, keys.encode())

    def exit_code(self):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                self.read()
            except OSError:  # the process has ended
                return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        raise AssertionError(self.seen[-2000:])


@pytest.mark.timeout(900)
def test_a_session_in_a_terminal(tmp_path):
    words = (pair().target, "--draft", pair().draft, "--format", "text", "--enforce-eager", "--threads", 1)
    terminal = Terminal(*words, "--num-draft-tokens", 4, "--max-tokens", 450, "--ignore-eos", folder=tmp_path)
    try:
        at = terminal.until("Ctrl-D leaves")
        at = terminal.until(">", after=at)
        terminal.type(f"{ASKED}\r")
        at = terminal.until(ASKED, after=at)
        while terminal.raw.count("\x1b[32m") < 3:  # drafted tokens, as they come
            terminal.read()
        terminal.type("\x03")
        at = terminal.until("\n>", after=terminal.until("stopped by you"))
        terminal.type("/set max_tokens 8\r")
        at = terminal.until("\n>", after=terminal.until("\nmax_tokens 8", after=at))
        terminal.type("/retry\r")
        at = terminal.until("\n>", after=terminal.until("stopped by max_tokens 8", after=at))
        assert re.search(r"8 tokens in \d+\.\d\d s: \d+ tokens/s", terminal.seen)
        terminal.type(f"/save {tmp_path / 'talk.json'}\r")
        terminal.until("\n>", after=terminal.until("saved as", after=at))
        terminal.type("\x04")
        assert terminal.exit_code() == 0
    except BaseException:
        os.kill(terminal.pid, signal.SIGKILL)
        raise
    history = tmp_path / "cache" / "chat" / "history"
    assert stat.S_IMODE(os.stat(history).st_mode) == 0o600 and f"+{ASKED}\n" in history.read_text()
    assert (tmp_path / "talk.json").exists()
