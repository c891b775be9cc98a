"""``paceline chat``: a conversation in the terminal, or over a pipe."""

import sys
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.chat.reader import LineReader, Reader
from paceline.cli.command import Command
from paceline.cli.console import open_console, open_notes
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import (
    MODEL,
    POSITIONAL,
    Color,
    LogLevel,
    ModelOptions,
    Profile,
    Quiet,
    ShowRejected,
    at_least,
    check_model,
    one_of,
)
from paceline.cli.sampling_options import SamplingOptions

if TYPE_CHECKING:
    from paceline.cli.chat.conversation import Conversation
    from paceline.cli.chat.screen import Screen

DEMO = "demo"  # names the embedded pair
FORMATS = ("template", "transcript", "text")


def _check_model(_: object, value: str) -> None:
    if value != DEMO:
        check_model(_, value)


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, slots=True)
class ChatModelOptions(ModelOptions):
    """As those of other commands, with a model where none is given."""

    model: Annotated[str, POSITIONAL, Parameter(validator=_check_model)] = DEMO
    """Directory (config.json, safetensors, tokenizer.json) or Hub id (owner/name); demo is the embedded pair of small
    models, which know Python source and go on with it."""


@dataclass(frozen=True, slots=True)
class Chat(Command):
    """Talk with a model in the terminal. Drafting does not change what it says.

    Answers are printed as they are generated, with every drafted token in the colour of its drafter, and their speed
    below them, with the time that drafting saved. Ctrl-C ends an answer, which is kept; Ctrl-D leaves. /help lists the
    commands, such as /retry, /set temperature 0.8, /drafter off and /save FILE.

    In a pipe every line of standard input is a message or a command, and only the answers are printed.

    Examples:

        paceline chat
        paceline chat DIR --draft SMALL_DIR --temperature 0.7 --seed -1
        paceline chat DIR --drafter ngram --system "Be brief."
        paceline chat DIR --format transcript --load conversation.json
        printf '%s\\n' "Who wrote Faust?" "/save faust.json" | paceline chat DIR
    """

    model: ChatModelOptions = field(default_factory=ChatModelOptions)
    _: KW_ONLY
    drafting: DraftOptions = field(default_factory=DraftOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    profile: Profile = None
    system: str | None = None
    """The system message."""
    format: Annotated[str | None, one_of(FORMATS)] = None
    """What the model reads: template, its chat template; transcript, lines with User: and Assistant:; text, one text
    that it goes on with. The default is template, and text for the embedded pair."""
    load: Path | None = None
    """Go on with a conversation that /save wrote, or any {"messages": [...]} in JSON."""
    max_length: Annotated[int | None, Parameter(group=MODEL), at_least(2)] = None
    """Tokens of the whole conversation; the model's context by default, at most 2048."""
    no_history: bool = False
    """Do not keep what is written for later sessions."""
    show_rejected: ShowRejected = False
    color: Color = "auto"
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Talk until the user leaves."""
        from paceline.api import SamplingParams
        from paceline.cli.chat.answering import Answerer
        from paceline.cli.chat.commands import obey
        from paceline.cli.chat.dialogue import Dialogue
        from paceline.cli.chat.forms import Form, check_form
        from paceline.cli.chat.screen import Screen
        from paceline.cli.chat.settings import check_params

        notes = open_notes(quiet=self.quiet, log_level=self.log_level, color=self.color)
        screen = Screen(console=open_console(self.color), notes=notes, quiet=self.quiet)
        params = check_params(SamplingParams().updated(self.sampling.params()))
        model, drafting, form = self._choose()
        self._check(drafting)
        conversation = self._conversation()
        on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        reader = _terminal(screen, keep=not self.no_history) if on_terminal else LineReader(sys.stdin.buffer)
        target = model.load()
        check_form(Form(form), target)
        answerer = Answerer(
            target,
            form=Form(form),
            options=drafting,
            max_length=self.max_length,
            profile=self.profile or "auto",
            rejected=self.show_rejected,
        )
        screen.note(f"{target.name}, as {form}; /help lists the commands, Ctrl-D leaves")
        screen.legend(tuple(answerer.origins))
        return Dialogue(
            answerer=answerer,
            conversation=conversation,
            params=params,
            screen=screen,
            reader=reader,
            obey=obey,
            stays=on_terminal,
        ).run()

    def _check(self, drafting: DraftOptions) -> None:
        """Refuse options that contradict each other, before anything is loaded."""
        drafting.check()
        if self.profile is not None and not drafting.drafts:
            raise ValueError(f"--profile {self.profile} without a drafter: it is for draft lengths; give one too")
        if self.profile is not None and not self.profile.is_file():
            raise ValueError(f"--profile {self.profile}: no such file; paceline advise writes profiles")
        if self.profile is not None and drafting.count != "auto":
            raise ValueError(
                f"--profile {self.profile} with --num-draft-tokens {drafting.count}: it is for lengths that are "
                "chosen; leave one of them out"
            )
        if self.show_rejected and not drafting.drafts:
            raise ValueError("--show-rejected without a drafter: give --draft DIR or --drafter NAME")

    def _conversation(self) -> "Conversation":
        from paceline.cli.chat.conversation import Conversation, load

        conversation = Conversation() if self.load is None else load(self.load)
        if self.system is not None:
            if conversation.system is not None:
                raise ValueError(f"--system, and a system message in {self.load}: give one of them")
            conversation.system = self.system
        return conversation

    def _choose(self) -> "tuple[ModelOptions, DraftOptions, str]":
        """What is loaded, and the format; of the embedded pair what is best for it, where nothing else is said."""
        if self.model.model != DEMO:
            return self.model, self.drafting, self.format or FORMATS[0]
        from paceline.api import embedded_pair

        target, draft = map(str, embedded_pair())
        given = self.model
        # As in `paceline demo`: float32 is faster for models this small, and one thread is enough.
        model = replace(given, model=target, dtype=given.dtype or "float32", threads=given.threads or 1)
        drafting = self.drafting
        if drafting.draft is None and drafting.drafter is None:
            drafting = replace(drafting, draft=draft)
        return model, drafting, self.format or FORMATS[-1]


def _terminal(screen: "Screen", *, keep: bool) -> Reader:
    """What reads from the terminal. Raises ValueError without the extra that it needs."""
    try:
        from paceline.cli.chat.terminal import TerminalReader, history_path, open_history
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "prompt_toolkit":
            raise
        raise ValueError(
            "paceline chat on a terminal needs prompt_toolkit, not installed here: run pip install 'paceline[chat]', "
            "or pipe messages in, one a line"
        ) from error
    return TerminalReader(history=open_history(history_path() if keep else None, screen.error))
