"""Converts prompts (text, token ids, chat messages, or what an encoder reads) to token ids and contexts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TypeAlias, cast, final

import torch
from torch import Tensor

from paceline.api.loading import Loaded
from paceline.core.context import Context, describe
from paceline.models.native.encoder_decoder import TOKENS

Message: TypeAlias = Mapping[str, object]  # {"role": ..., "content": ...}


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderDecoderPrompt:
    """A prompt of an encoder-decoder whose output does not begin with the model's own start token.

    ``inputs``: what the encoder reads, a text, token ids, or tensors by name (``input_features`` [W, T], ``input_ids``
    [T], ``encoder_outputs`` [X, H]), of one prompt and without padding. A ``Context`` that several prompts share is
    read once. ``prompt`` (None: the start token): the tokens that the decoder reads before it generates.
    """

    inputs: "str | Sequence[int] | Mapping[str, Tensor] | Context"
    prompt: Sequence[int] | None = None


Prompt: TypeAlias = str | Sequence[int] | Sequence[Message] | EncoderDecoderPrompt  # the latter for such models alone
Prompts: TypeAlias = Prompt | Sequence[Prompt]


@final
@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompt:
    """What a decoder reads: ``tokens``, and the ``context`` of a model that reads one."""

    tokens: list[int]
    context: Context | None = None


def read_prompt(target: Loaded, prompt: "Prompt | EncodedPrompt", *, name: str = "prompt") -> EncodedPrompt:
    """The tokens and context of a prompt. A text, or token ids, are what an encoder reads if there is one.

    Raises ValueError as ``encode`` does, for a model without encoder given ``EncoderDecoderPrompt``, and for one that
    reads no text given text.
    """
    if isinstance(prompt, EncodedPrompt):
        return prompt
    reads = target.lm.context_inputs
    if not reads:
        return EncodedPrompt(encode(target, prompt, name=name))
    given = prompt if isinstance(prompt, EncoderDecoderPrompt) else EncoderDecoderPrompt(inputs=_plain(prompt, name))
    start = target.start if given.prompt is None else tuple(given.prompt)
    if not start:
        raise ValueError(
            f"{name}: {target.name} names no decoder_start_token_id: give it as prompt of an EncoderDecoderPrompt"
        )
    inputs = given.inputs
    if isinstance(inputs, Context):
        return EncodedPrompt(list(start), inputs)
    if isinstance(inputs, Mapping):
        return EncodedPrompt(list(start), Context(dict(inputs)))
    if TOKENS not in reads:
        raise ValueError(
            f"{name}: {target.name} reads {describe(reads)}, not text: give EncoderDecoderPrompt(inputs={{...}}), or "
            "use paceline.transcribe for sound"
        )
    return EncodedPrompt(list(start), token_context(target, inputs, name=name))


def token_context(target: Loaded, source: "str | Sequence[int]", *, name: str) -> Context:
    """What an encoder of tokens reads: a text or token ids. Raises ValueError as ``encode`` does, for no tokens only if
    the encoder needs some.
    """
    reader = target if target.source_tokenizer is None else replace(target, tokenizer=target.source_tokenizer)
    may_be_empty = target.lm.context_inputs[TOKENS].min_shape == (0,)
    tokens = [] if may_be_empty and not source else encode(reader, source, name=name)
    return Context({TOKENS: torch.tensor(tokens, dtype=torch.int64)})


def _plain(prompt: "Prompt", name: str) -> "str | Sequence[int]":
    """A prompt that is a text or token ids; messages are refused, because no chat template is for an encoder."""
    assert not isinstance(prompt, EncoderDecoderPrompt)
    if kind_of(prompt) is dict:
        raise ValueError(f"{name}: an encoder-decoder reads no chat messages: give a text")
    return cast("str | Sequence[int]", prompt)


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
    if kind is EncoderDecoderPrompt:
        raise ValueError(f"{target.name} has no encoder: give a text, token ids or chat messages")
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
    """The type of ``prompt``: str, int (token ids, or an empty list), dict (messages) or EncoderDecoderPrompt; else
    ValueError.
    """
    if isinstance(prompt, str):
        return str
    if isinstance(prompt, EncoderDecoderPrompt):
        return EncoderDecoderPrompt
    if isinstance(prompt, Sequence):
        if all(isinstance(entry, Integral) and not isinstance(entry, bool) for entry in prompt):
            return int
        if all(isinstance(entry, Mapping) for entry in prompt):
            return dict
    raise ValueError(
        f"{_shorten(prompt)} is not a prompt: give a text, a list of token ids, or a list of chat messages"
    )


def split(prompts: Prompts | Sequence[EncodedPrompt]) -> list[Prompt]:
    """One prompt or several, as a list. Raises ValueError if there is none."""
    if isinstance(prompts, str | EncoderDecoderPrompt):
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
