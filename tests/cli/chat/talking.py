"""Conversations without a terminal: scripted ones in this process, and ``paceline chat`` with its lines."""

import io

from rich.console import Console

from paceline.api import SamplingParams
from paceline.cli import run
from paceline.cli.chat.answering import Answerer
from paceline.cli.chat.commands import obey
from paceline.cli.chat.conversation import Conversation
from paceline.cli.chat.dialogue import Dialogue
from paceline.cli.chat.forms import Form
from paceline.cli.chat.screen import Screen
from paceline.cli.draft_options import DraftOptions
from tests.api.checkpoints import pair

ASKED = "def add(first, second):"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=3)


class Script:
    """Reads what is given, and keeps what it was to begin with."""

    def __init__(self, *said):
        self.left, self.defaults = list(said), []

    def read(self, default):
        self.defaults.append(default)
        return self.left.pop(0) if self.left else None


def answerer(target, *, form=Form.TEXT, draft=True, max_length=None, rejected=False, **options):
    given = {"draft": str(pair().draft) if draft else None, **options}
    if draft and "drafter" not in options:
        given.setdefault("num_draft_tokens", 4)  # not what pays, which the clock decides
    given = DraftOptions(**given)
    return Answerer(target, form=form, options=given, max_length=max_length, rejected=rejected)


def dialogue(answers, *said, params=GREEDY, conversation=None, stays=False, terminal=False, reader=None):
    """A conversation with this script; ``console.file`` has what it prints."""
    console, notes = (
        Console(file=io.StringIO(), highlight=False, width=100, force_terminal=terminal, color_system="truecolor")
        for _ in range(2)
    )
    return Dialogue(
        answerer=answers,
        conversation=conversation or Conversation(),
        params=params,
        screen=Screen(console=console, notes=notes),
        reader=reader or Script(*said),
        obey=obey,
        stays=stays,
    )


def printed(made):
    """What a conversation has printed on standard output and on standard error."""
    return made.screen.console.file.getvalue(), made.screen.notes.file.getvalue()


def results_of(monkeypatch):
    """A list that collects the results of answers."""
    found, keep = [], Dialogue._keep

    def kept(self, messages, result, *others, **options):
        found.append(result)
        keep(self, messages, result, *others, **options)

    monkeypatch.setattr(Dialogue, "_keep", kept)
    return found


def talk(monkeypatch, capsys, lines, *options):
    """``paceline chat`` with these lines: its exit code, and what it prints."""
    content = b"".join(line if isinstance(line, bytes) else f"{line}\n".encode() for line in lines)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    code = run(["chat", *map(str, options)])
    return code, capsys.readouterr()
