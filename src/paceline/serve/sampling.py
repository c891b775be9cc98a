"""The sampling parameters of a request, every field checked by its name and against the server's limits."""

import json
from typing import Any

from paceline.api.params import READERS, SamplingParams
from paceline.serve.errors import ApiError
from paceline.serve.list_limits import check_lists
from paceline.serve.schema import IGNORED, SAMPLING, ChatBody, CompletionBody, GenerationBody
from paceline.serve.settings import Limits

NOT_TAKEN = {
    "best_of": "only n outputs are made: give n",
    "suffix": "no model fills in before a suffix: leave it out",
    "use_beam_search": "there are no beams: leave it out",
    "functions": "give tools, which took their place",
    "function_call": "give tool_choice, which took its place",
    "documents": "the chat template gets messages and tools alone: leave them out",
    "mm_processor_kwargs": "only texts are read: leave it out",
    "audio": "only texts are written: leave it out",
    "web_search_options": "nothing is searched: leave it out",
    "prediction": "drafters are the server's: leave it out",
    "chat_template": "the template is the server's: leave it out",
}


def completion_params(body: CompletionBody, limits: Limits) -> SamplingParams:
    """Those of a completion. Raises ApiError naming the field, its value and the limit."""
    scored = [number for number in (body.prompt_logprobs, body.logprobs if body.echo else None) if number is not None]
    return _params(body, limits, logprobs=body.logprobs, prompt_logprobs=max(scored, default=None))


def chat_params(body: ChatBody, limits: Limits) -> SamplingParams:
    """Those of a chat, whose answer is as long as the context allows unless it says otherwise. Raises ApiError."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, f"top_logprobs={body.top_logprobs} needs logprobs: true", param="top_logprobs")
    more: dict[str, Any] = {"max_tokens": (body.model_extra or {}).get("max_tokens")}
    more["prompt_logprobs"] = body.prompt_logprobs
    if body.max_completion_tokens is not None:
        more["max_tokens"] = body.max_completion_tokens
    return _params(body, limits, logprobs=(body.top_logprobs or 0) if body.logprobs else None, **more)


def _params(body: GenerationBody, limits: Limits, **more: object) -> SamplingParams:
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(400, "prompt_logprobs with stream: give one of them", param="prompt_logprobs")
    extra = {name: value for name, value in (body.model_extra or {}).items() if value is not None}
    for name, reason in NOT_TAKEN.items():
        found = extra.get(name, getattr(body, name, None))
        if found not in (None, False, [], "none"):
            raise ApiError(400, f"{name}={found!r:.80}: {reason}", param=name)
    given = {name: value for name, value in extra.items() if name in SAMPLING}
    unknown = [name for name in extra if name not in (*SAMPLING, *IGNORED, *NOT_TAKEN)]
    if unknown:
        raise ApiError(
            400, f"{unknown[0]}: no such option; sampling options are {', '.join(SAMPLING)}", param=unknown[0]
        )
    check_lists(given, limits)
    if "logit_bias" in given:
        given["logit_bias"] = _biases(given["logit_bias"])
    values = {**given, **{name: value for name, value in more.items() if value is not None or name in given}}
    values |= _format(body, given)
    if isinstance(body, ChatBody):
        values.setdefault("max_tokens", None)
    for name, value in values.items():
        try:
            READERS[name](name, value)
        except ValueError as error:
            raise ApiError(400, str(error), param=name) from error
    _check_limits(body, values, limits)
    try:
        return SamplingParams(n=body.n, **values)
    except ValueError as error:
        name = next((name for name in values if str(error).startswith(f"{name}=")), None)
        raise ApiError(400, str(error), param=name) from error


def _format(body: GenerationBody, given: dict[str, Any]) -> dict[str, object]:
    """``response_format`` as the structured output that it is."""
    asked = body.response_format
    if asked is None or asked.type == "text":
        return {}
    if "structured_outputs" in given:
        raise ApiError(400, "response_format and structured_outputs: give one of them", param="response_format")
    if asked.type == "json_object":
        return {"structured_outputs": {"json_object": True}}
    if asked.json_schema is None:
        raise ApiError(
            400, "response_format of type json_schema: give json_schema", param="response_format.json_schema"
        )
    return {"structured_outputs": {"json": asked.json_schema.schema_}}


def _biases(value: object) -> object:
    """JSON's keys are texts."""
    if not isinstance(value, dict):
        return value
    wrong = next((token for token in value if not (token.isascii() and token.isdecimal())), None)
    if wrong is not None:
        raise ApiError(400, f"logit_bias: {wrong!r:.80}; keys are token ids", param="logit_bias")
    return value


def _check_limits(body: GenerationBody, values: dict[str, Any], limits: Limits) -> None:
    if body.n > limits.samples:
        raise ApiError(400, f"n={body.n}: this server gives at most {limits.samples} outputs per prompt", param="n")
    stops = values.get("stop") or ()
    stops = [stops] if isinstance(stops, str) else stops
    if len(stops) > limits.stop_strings:
        raise ApiError(400, f"stop: {len(stops)} strings, at most {limits.stop_strings} are taken", param="stop")
    longest = max(map(len, stops), default=0)
    if longest > limits.stop_characters:
        raise ApiError(400, f"stop: {longest} characters, at most {limits.stop_characters} are taken", param="stop")
    size = len(json.dumps(values.get("structured_outputs") or "", default=str))
    if size > limits.grammar_bytes:
        raise ApiError(
            400,
            f"structured_outputs of {size} bytes, at most {limits.grammar_bytes} are taken",
            param="response_format" if body.response_format else "structured_outputs",
        )
