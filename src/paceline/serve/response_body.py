"""The body of ``/v1/responses``, and the chat that it stands for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr

from paceline.serve.errors import ApiError
from paceline.serve.sampling import NOT_TAKEN
from paceline.serve.schema import IGNORED, SAMPLING, Body, ChatBody, Closed

LOGPROBS = "message.output_text.logprobs"
KEPT = "nothing is kept of a response: send the whole conversation as input"
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {  # fields, what they may be, and why nothing else
    "previous_response_id": ((), KEPT),
    "conversation": ((), KEPT),
    "prompt": ((), "no templates of prompts are kept: give input"),
    "store": ((False,), "nothing is kept of a response: leave it out, or give false"),
    "background": ((False,), "nothing is kept of a response: leave it out, or give false"),
    "truncation": (("disabled",), "no messages are left out: give fewer, or leave it out"),
    "max_tool_calls": ((), "no tool is called here: leave it out"),
    "context_management": (([],), "nothing is left out of a conversation: leave it out"),
    "max_tokens": ((), "give max_output_tokens"),
}
OPTIONS = tuple(name for name in SAMPLING if name not in (*REFUSED, *ChatBody.model_fields))
TAKEN = (*OPTIONS, *IGNORED, *NOT_TAKEN, *REFUSED)
TEXTS = ("text", "input_text", "output_text")


class TextFormat(Body):
    """The form of the text, as this route names it."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(Closed):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # OpenAI's default: as the model writes


class ReasoningOptions(Closed):
    """How the model reasons."""

    effort: StrictStr | None = None
    summary: Literal["auto"] | None = None  # as there is one, and there is none


class ResponseStreamOptions(Closed):
    """What events have beside their data."""

    include_obfuscation: Literal[False] = False  # --stream-interval hides how many tokens came at once


class ResponsesBody(Body):
    """Of ``/v1/responses``."""

    model: StrictStr | None = None
    input: StrictStr | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: StrictStr | None = None
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: StrictStr | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    priority: StrictInt = 0
    speculative_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def chat_body(body: ResponsesBody) -> ChatBody:
    """The chat that asks the same. Raises ApiError for what is refused or malformed, by its name."""
    extra = {name: value for name, value in (body.model_extra or {}).items() if value is not None}
    for name, value in extra.items():
        allowed, reason = REFUSED.get(name, ((value,), ""))
        if value not in allowed:
            raise ApiError(400, f"{name}={value!r:.80}: {reason}", param=name)
        if name not in TAKEN:
            reason = f"{name}: no such option; sampling options are {', '.join(OPTIONS)}"
            raise ApiError(400, reason, param=name)
    logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not logprobs:
        reason = f'top_logprobs={body.top_logprobs} needs include: ["{LOGPROBS}"]'
        raise ApiError(400, reason, param="top_logprobs")
    given: dict[str, Any] = {
        **{name: value for name, value in extra.items() if name not in REFUSED},
        "model": body.model,
        "messages": messages_of(body),
        "max_completion_tokens": body.max_output_tokens,
        "stream": body.stream,
        "response_format": _format(body.text),
        "tools": None if body.tools is None else [_tool(one, number) for number, one in enumerate(body.tools)],
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "logprobs": logprobs,
        "top_logprobs": (body.top_logprobs or 0) if logprobs else None,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "priority": body.priority,
        "speculative_config": body.speculative_config,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    return ChatBody.model_validate(given)


def messages_of(body: ResponsesBody) -> list[dict[str, Any]]:
    """The messages that instructions and input are: neighbouring reasoning, text and calls of the model are one."""
    found: list[dict[str, Any]] = []
    if body.instructions is not None:
        found.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*found, {"role": "user", "content": body.input}]
    for number, item in enumerate(body.input):
        param = f"input.{number}"
        kind = item.get("type", "message")
        if kind == "message":
            role = _text(item.get("role"), f"{param}.role")
            text = _content(item.get("content"), f"{param}.content")
            if role == "assistant":
                own = _own(found, unless="content")
                own["content"] = text
            else:
                found.append({"role": "system" if role == "developer" else role, "content": text})
        elif kind == "reasoning":
            own = _own(found, unless="content")
            own["reasoning_content"] = _content(item.get("content") or [], f"{param}.content")
        elif kind == "function_call":
            function = {name: _text(item.get(name), f"{param}.{name}") for name in ("name", "arguments")}
            call = {"id": _text(item.get("call_id"), f"{param}.call_id"), "type": "function", "function": function}
            _own(found).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            identity = _text(item.get("call_id"), f"{param}.call_id")
            text = _content(item.get("output"), f"{param}.output")
            found.append({"role": "tool", "tool_call_id": identity, "content": text})
        else:
            known = "message, reasoning, function_call and function_call_output"
            raise ApiError(400, f"{param}.type={kind!r:.80}: only {known} are read", param=f"{param}.type")
    return found


def _own(found: list[dict[str, Any]], *, unless: str | None = None) -> dict[str, Any]:
    """The last message, if it is the model's and has no ``unless`` or calls yet; else a new one of the model's."""
    last = found[-1] if found else {}
    if last.get("role") != "assistant" or (unless is not None and (unless in last or "tool_calls" in last)):
        found.append({"role": "assistant"})
    return found[-1]


def _content(given: object, param: str) -> str:
    """Texts, joined. Raises ApiError for parts of another kind."""
    if isinstance(given, str):
        return given
    if not isinstance(given, Sequence):
        raise ApiError(400, f"{param}: give a text, or a list of parts", param=param)
    texts: list[str] = []
    for part in given:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in (*TEXTS, "reasoning_text"):
            raise ApiError(400, f"{param}: a part of type {kind!r:.80}; only texts are read", param=param)
        texts.append(_text(part.get("text"), f"{param}.text"))
    return "".join(texts)


def _text(given: object, param: str) -> str:
    if not isinstance(given, str):
        raise ApiError(400, f"{param}={given!r:.80}: give a text", param=param)
    return given


def _format(text: TextOptions | None) -> dict[str, Any] | None:
    if text is None or text.format is None:
        return None
    if text.format.type != "json_schema":
        return {"type": text.format.type}
    if text.format.schema_ is None:
        raise ApiError(400, "text.format of type json_schema: give schema", param="text.format.schema")
    return {"type": "json_schema", "json_schema": {"schema": text.format.schema_}}


def _tool(given: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A tool as chats have it."""
    param = f"tools.{number}"
    if given.get("type") != "function":
        reason = f'{param}.type={given.get("type")!r:.80}: only tools of type "function" are read'
        raise ApiError(400, reason, param="tools")
    known: Iterable[str] = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: given[name] for name in known if given.get(name) is not None}}


def _choice(given: object) -> object:
    """Which tool, as chats have it."""
    if not isinstance(given, Mapping):
        return given
    if given.get("type") != "function":
        reason = f'tool_choice={given!r:.80}: give one of none, auto, required, or {{"type": "function", "name": NAME}}'
        raise ApiError(400, reason, param="tool_choice")
    return {"type": "function", "function": {"name": given.get("name")}}
