"""The prompt of a chat: messages, tools and options as the model's chat template gets them."""

import asyncio
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.serve.errors import ApiError
from paceline.serve.generation import Server
from paceline.serve.schema import ChatBody, Message
from paceline.serve.settings import Limits
from paceline.text.tokenizer import Tokenizer

OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


async def chat_tokens(server: Server, messages: Sequence[Message], **options: Any) -> list[int]:
    """A chat's token ids; ``options`` are those of ``Tokenizer.chat``. Raises ApiError for messages that are malformed
    or not of text, and what the template raises.
    """
    plain = [_plain(server, message, f"messages.{number}") for number, message in enumerate(messages)]
    return await asyncio.to_thread(server.tokenizer.chat, plain, **options)


def text_of(message: Message, param: str) -> str:
    """A message's text. Raises ApiError for parts of another kind."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts: list[str] = []
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{param}: a part of type {part.get('type')!r}; only texts are read", param=param)
        texts.append(part["text"])
    return "".join(texts)


def template_options(body: ChatBody, tokenizer: Tokenizer, limits: Limits) -> dict[str, object]:
    """``chat_template_kwargs`` and ``reasoning_effort``. Raises ApiError for what is no variable of the template, is no
    plain value, or would change how the template is applied.
    """
    given = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given.setdefault("reasoning_effort", body.reasoning_effort)
    if len(given) > limits.template_options:
        reason = f"chat_template_kwargs: {len(given)} of them, at most {limits.template_options} are taken"
        raise ApiError(400, reason, param="chat_template_kwargs")
    taken = {*inspect.signature(tokenizer.inner.apply_chat_template).parameters, *tokenizer.inner.special_tokens_map}
    for name, value in given.items():
        param = "chat_template_kwargs" if name in (body.chat_template_kwargs or {}) else name
        if name in taken or name in ("messages", "self"):
            raise ApiError(400, f"{param}: {name!r} is the server's: leave it out", param=param)
        if not OPTION.fullmatch(name) or not re.search(rf"\b{name}\b", tokenizer.template):
            raise ApiError(400, f"{param}: the chat template has no {name!r:.80}: leave it out", param=param)
        is_number = isinstance(value, int | float) and math.isfinite(value)
        is_text = isinstance(value, str) and len(value) <= limits.stop_characters
        if not (value is None or is_number or is_text):
            reason = f"{param}: {name}={value!r:.80}; give a finite number, true, false or a short text"
            raise ApiError(400, reason, param=param)
    return given


def _plain(server: Server, message: Message, param: str) -> dict[str, object]:
    text = text_of(message, f"{param}.content")
    server.check_text(text, f"{param}.content")
    plain: dict[str, object] = {**(message.model_extra or {}), "role": message.role, "content": text}
    calls = plain.get("tool_calls")
    if calls is not None:
        plain["tool_calls"] = _calls(calls, f"{param}.tool_calls")
    return plain


def _calls(calls: object, param: str) -> list[dict[str, object]]:
    """The calls of an earlier answer, their arguments as the objects that templates write as JSON."""
    if not isinstance(calls, list):
        raise ApiError(400, f"{param}: give a list of calls", param=param)
    found: list[dict[str, object]] = []
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise ApiError(400, f"{param}.{number}: give a function with a name and arguments", param=param)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                reason = f"{param}.{number}.function.arguments: no JSON ({error})"
                raise ApiError(400, reason, param=param) from error
        if not isinstance(arguments, Mapping):
            raise ApiError(400, f"{param}.{number}.function.arguments: give a JSON object, as a text", param=param)
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found
