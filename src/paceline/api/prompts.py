"""Converts prompts (text, token ids or chat messages) to token ids."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TypeAlias, cast

from paceline.api.loading import Loaded

Message: TypeAlias = Mapping[str, object]  # {"role": ..., "content": ...}
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # a text, token ids, or chat messages
Prompts: TypeAlias = Prompt | Sequence[Prompt]


def check_prompts(prompts: Prompts) -> list[Prompt]:
    """One prompt or several, as a list. Raises ValueError, naming the prompt, for what cannot be one of any target."""
    listed = split(prompts)
    for index, prompt in enumerate(listed):
        try:
            kind_of(prompt)
        except ValueError as error:
            raise ValueError(f"prompt {index}: {error}") from error
    return listed


def encode(target: Loaded, prompt: Prompt, *, name: str = "prompt") -> list[int]:
    """Token ids of a prompt: text with the special tokens that the tokenizer adds, messages by the chat template.

    Raises ValueError, with a message that begins with ``name``, for text or messages if the target has no tokenizer,
    for a prompt without tokens, and for anything that is not a prompt.
    """
    try:
        tokens = _encode(target, prompt)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not tokens:
        raise ValueError(f"{name}: empty prompt: give at least one token (a beginning-of-text token will do)")
    return tokens


def _encode(target: Loaded, prompt: Prompt) -> list[int]:
    kind = kind_of(prompt)
    if kind is int:
        return [int(token) for token in cast(Sequence[int], prompt)]
    if target.tokenizer is None:
        raise no_tokenizer(target.name)
    if kind is str:
        return target.tokenizer.encode(cast(str, prompt))
    return target.tokenizer.chat(cast(Sequence[Message], prompt))


def no_tokenizer(name: str | Path) -> ValueError:
    """What says that the model ``name`` cannot read texts."""
    return ValueError(
        f"{name} has no tokenizer: give the prompt as token ids, or put tokenizer.json beside config.json"
    )


def kind_of(prompt: object) -> type:
    """The type of ``prompt``: str, int (token ids, or an empty list) or dict (messages); else ValueError."""
    if isinstance(prompt, str):
        return str
    if isinstance(prompt, Sequence):
        if all(isinstance(entry, Integral) and not isinstance(entry, bool) for entry in prompt):
            return int
        if all(isinstance(entry, Mapping) for entry in prompt):
            return dict
    raise ValueError(
        f"{_shorten(prompt)} is not a prompt: give a text, a list of token ids, or a list of chat messages"
    )


def split(prompts: Prompts) -> list[Prompt]:
    """One prompt or several, as a list. Raises ValueError if there is none."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ValueError(
            f"{_shorten(prompts)} is not a prompt: give a text, a list of token ids or messages, or several"
        )
    listed = list(prompts)
    if not listed:
        raise ValueError("no prompts: give at least one")
    if all(isinstance(entry, Integral | Mapping) for entry in listed):
        return [cast(Prompt, listed)]
    return cast("list[Prompt]", listed)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
