"""Checks chat messages, and finds the assistant's tokens of a chat by rendering its prefixes."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Message: TypeAlias = Mapping[str, object]
Render: TypeAlias = Callable[[Sequence[Message], bool], list[int]]  # (messages, add_generation_prompt) to token ids
ASSISTANT = "assistant"


class TokenizerError(ValueError):
    """A tokenizer is missing or unreadable, or cannot render a chat; the message says what to do."""


def find_turns(messages: Sequence[Message], render: Render) -> tuple[list[int], list[bool]]:
    """Tokens of the whole chat, and which of them are the assistant's, including its end-of-turn tokens.

    A turn starts where the chat before it ends with a generation prompt, and ends where the chat including it ends.
    Raises ValueError where these are no prefixes of the whole chat: the template drops or changes earlier turns, or the
    tokenizer merges across the boundary.
    """
    whole = render(messages, False)
    is_assistant = [False] * len(whole)
    for index, message in enumerate(messages):
        if message.get("role") != ASSISTANT:
            continue
        if index == 0:
            raise ValueError("the chat begins with the assistant: no generation prompt before its turn")
        before, after = render(messages[:index], True), render(messages[: index + 1], False)
        if whole[: len(after)] != after:
            raise ValueError(
                f"the chat template renders messages 0 to {index} differently when more follow, so the "
                "assistant's tokens cannot be found; give a template with generation marks, or one chat per turn"
            )
        if after[: len(before)] != before:
            raise ValueError(
                f"the chat template opens message {index} differently than it renders it, so the start of the "
                "assistant's tokens cannot be found; give a template with generation marks"
            )
        is_assistant[len(before) : len(after)] = [True] * (len(after) - len(before))
    return whole, is_assistant


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
