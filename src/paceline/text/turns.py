"""What messages are, and which tokens of a chat the assistant wrote. Knows nothing of templates' insides."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Message: TypeAlias = Mapping[str, object]
Render: TypeAlias = Callable[[Sequence[Message], bool], list[int]]  # messages, whether the next turn is opened
ASSISTANT = "assistant"


class TokenizerError(ValueError):
    """A tokenizer that is missing or unreadable, or a chat that it cannot spell, with the way out."""


def find_turns(messages: Sequence[Message], render: Render) -> tuple[list[int], list[bool]]:
    """Tokens of the whole chat, and which of them are the assistant's, its end-of-turn token included.

    A turn begins where the chat before it, opened for the assistant, ends, and ends where the chat with it does. Both
    are compared, token by token, with the whole chat. Raises ValueError where they differ: a template that leaves out
    or changes earlier turns, or a tokenizer that merges across the border, says nothing about whose tokens they are.
    """
    whole = render(messages, False)
    learned = [False] * len(whole)
    for index, message in enumerate(messages):
        if message.get("role") != ASSISTANT:
            continue
        if index == 0:
            raise ValueError("the chat begins with the assistant: its turn has nothing before it that opens it")
        before, after = render(messages[:index], True), render(messages[: index + 1], False)
        if whole[: len(after)] != after:
            raise ValueError(
                f"the chat template writes messages 0 to {index} otherwise when more follow: it cannot be told which "
                "tokens are the assistant's; give a template with generation marks, or one chat per turn"
            )
        if after[: len(before)] != before:
            raise ValueError(
                f"the chat template opens message {index} otherwise than it writes it, so it cannot be told where the "
                "assistant's tokens begin; give a template with generation marks"
            )
        learned[len(before) : len(after)] = [True] * (len(after) - len(before))
    return whole, learned


def check_messages(messages: Sequence[Mapping[str, object]]) -> None:
    """Raise TokenizerError unless ``messages`` is a list of mappings with a role and a content, and not empty."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise TokenizerError(f"messages is a {type(messages).__name__}: give a list of {{role, content}} mappings")
    if not messages:
        raise TokenizerError("messages is empty: give at least one {role, content} mapping")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TokenizerError(f"messages[{index}] is a {type(message).__name__}: give a {{role, content}} mapping")
        for key, kinds, wanted in (("role", str, "a string"), ("content", str | list | tuple, "a string or a list")):
            if key not in message:
                raise TokenizerError(f"messages[{index}] has no {key}: give {wanted}")
            if not isinstance(message[key], kinds):
                given = type(message[key]).__name__
                raise TokenizerError(f"messages[{index}] has a {key} of type {given}: give {wanted}")
