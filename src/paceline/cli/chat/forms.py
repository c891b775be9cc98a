"""How the messages of a conversation become the tokens that the model goes on from."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from paceline.cli.chat.conversation import ASSISTANT, SYSTEM, USER, Messages

if TYPE_CHECKING:
    from paceline.api import Loaded


class Form(StrEnum):
    """What a model reads of a conversation."""

    TEMPLATE = "template"  # its chat template
    TRANSCRIPT = "transcript"  # lines that begin with User: and Assistant:
    TEXT = "text"  # one text, which the model goes on with


NAMES = {USER: "User:", ASSISTANT: "Assistant:"}  # in a transcript
STOPS = {Form.TRANSCRIPT: (f"\n{NAMES[USER]}",)}


def check_form(form: Form, target: "Loaded") -> None:
    """Raise ValueError for a model that cannot be given a conversation in this form."""
    from paceline.api.prompts import no_tokenizer

    if target.lm.context_inputs:
        raise ValueError(f"{target.name} is an encoder-decoder, which has no turns: use paceline generate")
    if target.tokenizer is None:
        raise no_tokenizer(target.name)
    if form is Form.TEMPLATE and not target.tokenizer.has_chat_template:
        raise ValueError(
            f"{target.name} has no chat template: give --format transcript, which writes User: and Assistant: before "
            "what is said, or --format text, where the model goes on with what you write; or put chat_template.jinja "
            "beside its tokenizer.json"
        )


def encode(form: Form, target: "Loaded", messages: Messages) -> list[int]:
    """Tokens of ``messages``, of which the last is the user's, up to where the answer begins.

    Raises ValueError where the template refuses them.
    """
    from paceline.api.prompts import encode as encoded

    if form is Form.TEMPLATE:
        return encoded(target, messages, name="the conversation")
    text = _transcript(messages) if form is Form.TRANSCRIPT else _text(messages)
    return encoded(target, text, name="the conversation")


def content_of(form: Form, text: str) -> str:
    """What is kept of an answer."""
    return text.strip() if form is Form.TRANSCRIPT else text


def stops_of(form: Form) -> Sequence[str]:
    """What ends an answer, beside what the model and its user say."""
    return STOPS.get(form, ())


def _transcript(messages: Messages) -> str:
    lines = [
        f"{message['content']}\n" if message["role"] == SYSTEM else f"{NAMES[message['role']]} {message['content']}"
        for message in messages
    ]
    return "\n".join([*lines, NAMES[ASSISTANT]])


def _text(messages: Messages) -> str:
    """One after the other; what the user writes begins a line."""
    text = ""
    for message in messages:
        if text and not text.endswith("\n") and message["role"] == USER:
            text += "\n"
        text += message["content"]
    return text
