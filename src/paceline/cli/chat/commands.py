"""The commands of a conversation: what begins with a slash."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias

from paceline.cli.chat.conversation import USER, load
from paceline.cli.chat.dialogue import Dialogue, as_written
from paceline.cli.chat.forms import encode
from paceline.cli.chat.report import describe
from paceline.cli.chat.settings import NAMES, set_option, shown
from paceline.cli.console import make_table
from paceline.cli.stats import stats_table

Run: TypeAlias = Callable[[Dialogue, str], None]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """What a command does with the words after it."""

    run: Run
    arguments: str
    help: str
    needs: bool = False  # whether it cannot do without arguments


def obey(dialogue: Dialogue, said: str) -> None:
    """Run the command ``said``. Raises ValueError for an unknown one, and what it raises."""
    name, _, rest = said[1:].partition(" ")
    command = COMMANDS.get(name.strip())
    if command is None:
        near = get_close_matches(name, COMMANDS, n=1)
        way = f"did you mean /{near[0]}?" if near else "/help lists all"
        raise ValueError(f"/{name}: no such command; {way} (// begins a message with a slash)")
    rest = rest.strip()
    if command.needs and not rest:
        raise ValueError(f"/{name}: give /{name} {command.arguments}")
    if rest and not command.arguments:
        raise ValueError(f"/{name} {rest}: it takes nothing; give /{name}")
    command.run(dialogue, rest)


def _help(dialogue: Dialogue, _: str) -> None:
    rows = [(f"/{name} {command.arguments}".rstrip(), command.help) for name, command in COMMANDS.items()]
    dialogue.screen.show(make_table(("command", "does"), rows, num_left=2))
    dialogue.screen.show("Enter sends a message, Alt-Enter begins a new line. Ctrl-C ends an answer, Ctrl-D leaves.")


def _set(dialogue: Dialogue, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not name:
        rows = [(one, shown(dialogue.params, one)) for one in NAMES]
        dialogue.screen.show(make_table(("option", "value"), rows, num_left=2))
        return
    if value.strip():
        dialogue.params = set_option(dialogue.params, name, value.strip())
    elif name not in NAMES:
        set_option(dialogue.params, name, "")  # which says why not
    dialogue.screen.show(f"{name} {shown(dialogue.params, name)}")


def _show(dialogue: Dialogue, _: str) -> None:
    answerer, conversation = dialogue.answerer, dialogue.conversation
    messages = conversation.messages
    tokens = len(encode(answerer.form, answerer.target, messages)) if messages else 0
    given = dialogue.params.differing()
    rows = [
        ("model", answerer.target.name),
        ("format", answerer.form.value),
        ("drafting", answerer.drafting.describe()),
        ("system", conversation.system or "none"),
        ("conversation", f"{len(messages)} messages, {tokens} of {answerer.max_length} tokens"),
        ("file", str(conversation.path or "none")),
        *((name, shown(dialogue.params, name)) for name in NAMES if name in given),
    ]
    dialogue.screen.show(make_table(("setting", "value"), rows, num_left=2))


def _drafter(dialogue: Dialogue, rest: str) -> None:
    answerer = dialogue.answerer
    if rest in ("on", "off"):
        answerer.switch(rest == "on")
    elif rest:
        answerer.choose(rest.split())
    dialogue.screen.show(answerer.drafting.describe())
    if rest:
        dialogue.screen.legend(tuple(answerer.origins))


def _depth(dialogue: Dialogue, rest: str) -> None:
    if rest:
        if rest != "auto" and not (rest.isascii() and rest.isdigit()):
            raise ValueError(f"/depth {rest}: give the tokens drafted in a step, such as 4, or auto")
        dialogue.answerer.set_length("auto" if rest == "auto" else int(rest))
    dialogue.screen.show(dialogue.answerer.drafting.describe())


def _system(dialogue: Dialogue, rest: str) -> None:
    dialogue.conversation.system = rest or None
    dialogue.screen.show(f"system {rest or 'none'}")


def _save(dialogue: Dialogue, rest: str) -> None:
    if not dialogue.conversation.messages:
        raise ValueError(f"/save {rest}: nothing was said yet; write a message first")
    path = dialogue.conversation.save(Path(rest).expanduser() if rest else None)
    dialogue.screen.show(f"saved as {path}")


def _load(dialogue: Dialogue, rest: str) -> None:
    dialogue.conversation = load(Path(rest).expanduser())
    dialogue.screen.show(f"{len(dialogue.conversation.messages)} messages from {rest}")


def _retry(dialogue: Dialogue, _: str) -> None:
    conversation, params = dialogue.conversation, dialogue.params
    before = conversation.before_last()
    dialogue.answer(conversation.messages[: len(before) + 1])
    if params.temperature == 0:
        dialogue.screen.note("temperature is 0, which always gives the same answer: /set temperature 0.8 varies it")


def _edit(dialogue: Dialogue, rest: str) -> None:
    conversation = dialogue.conversation
    before = conversation.before_last()
    if rest:
        dialogue.answer([*before, {"role": USER, "content": rest}])
        return
    if not dialogue.stays:
        raise ValueError("/edit: give /edit TEXT, which takes the place of your last message and is answered")
    dialogue.default = as_written(conversation.last_asked())
    conversation.messages = before


def _undo(dialogue: Dialogue, _: str) -> None:
    conversation = dialogue.conversation
    conversation.messages = conversation.before_last()
    dialogue.screen.show(f"{len(conversation.messages)} messages left")


def _clear(dialogue: Dialogue, _: str) -> None:
    dialogue.conversation.clear()
    dialogue.conversation.path = None
    dialogue.screen.show("a new conversation")


def _stats(dialogue: Dialogue, _: str) -> None:
    if not dialogue.tallies:
        dialogue.screen.show("no answers yet")
    for name, tally in dialogue.tallies.items():
        dialogue.screen.show(f"{name}: {describe(tally.pace)}")
        dialogue.screen.show(stats_table(tally.totals, seconds=tally.seconds))


def _quit(dialogue: Dialogue, _: str) -> None:
    dialogue.leaves = True


COMMANDS: dict[str, SlashCommand] = {
    "help": SlashCommand(_help, "", "this list"),
    "set": SlashCommand(_set, "[NAME [VALUE]]", "a sampling option, as temperature 0.8; VALUE default resets it"),
    "show": SlashCommand(_show, "", "what is set, and how long the conversation is"),
    "drafter": SlashCommand(_drafter, "[on|off|NAME...]", "draft or do not, or by others: ngram, model, a directory"),
    "depth": SlashCommand(_depth, "[N|auto]", "tokens drafted in a step"),
    "system": SlashCommand(_system, "[TEXT]", "the system message from now on; without TEXT none"),
    "save": SlashCommand(_save, "[FILE]", "keep the conversation as JSON; its own file by default"),
    "load": SlashCommand(_load, "FILE", "go on with a saved conversation", needs=True),
    "retry": SlashCommand(_retry, "", "another answer to the last message"),
    "edit": SlashCommand(_edit, "[TEXT]", "change the last message and have it answered anew"),
    "undo": SlashCommand(_undo, "", "take back the last message and its answer"),
    "clear": SlashCommand(_clear, "", "begin a new conversation; the system message stays"),
    "stats": SlashCommand(_stats, "", "drafting statistics of all answers"),
    "quit": SlashCommand(_quit, "", "leave, as does Ctrl-D"),
}
