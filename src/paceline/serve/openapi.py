"""The server's page about itself, /openapi.json: sampling options, answers, errors, and the key."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from paceline.api.params import MAX_PENALTY, MOST_COUNT
from paceline.api.structured import KINDS
from paceline.api.values import LARGEST, MOST_ID
from paceline.serve.response_body import REFUSED, TAKEN
from paceline.serve.sampling import NOT_TAKEN
from paceline.serve.schema import IGNORED, SAMPLING
from paceline.serve.settings import Settings

Schema = dict[str, Any]
SAMPLED = (
    "CompletionBody",
    "ChatBody",
    "ResponsesBody",
)  # bodies that have the sampling options beside their own fields
ERRORS = {  # of every route; those in BODIED only where there is a body
    "400": "A field has a value that it cannot have, which the message names with its limit.",
    "401": "The key is missing or wrong.",
    "403": "A web page of another origin asks, or for another host, and no key is needed.",
    "404": "There is no such model, or no such path.",
    "405": "The path has other methods.",
    "408": "The request took longer than the server allows.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait: try again later.",
    "500": "A fault of the server; its log says more.",
    "503": "The server is ending, or the engine has ended.",
}
BODIED = ("408", "413", "415", "429", "500")
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field that it is about."},
                "code": {"type": "integer", "description": "The status."},
            },
        }
    },
}
USAGE: Schema = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}
MODEL: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "root", "max_model_len"],
    "properties": {
        **{name: {"type": "string"} for name in ("id", "owned_by", "root")},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "max_model_len": {"type": "integer", "description": "Tokens of a request at most, prompt included."},
    },
}
REASON: Schema = {"enum": ["stop", "length", "abort", "error", "tool_calls", None]}


def _answer(kind: str, choice: Mapping[str, Any]) -> Schema:
    """The schema of an answer whose choices have the fields ``choice``."""
    fields = {"index": {"type": "integer"}, "finish_reason": REASON, "logprobs": {"type": ["object", "null"]}, **choice}
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": kind},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "object", "required": [*fields], "properties": fields}},
            "usage": USAGE,
            "metrics": {
                "type": ["object", "null"],
                "description": "Acceptance and times, where the server gives them.",
            },
        },
    }


MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]}},
}
EMPTY, TEXTS = ("/health", "/ping"), ("/metrics",)
TEXT_OR_NONE: Schema = {"type": ["string", "null"]}
ANSWERS: dict[str, Schema] = {  # of the routes whose answers are not models of pydantic
    "/version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}},
    "/load": {"type": "object", "required": ["server_load"], "properties": {"server_load": {"type": "integer"}}},
    "/tokenizer_info": {
        "type": "object",
        "required": ["tokenizer_class", "eos_token", "model_max_length", "chat_template"],
        "properties": {
            **{name: TEXT_OR_NONE for name in ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")},
            "tokenizer_class": {"type": "string"},
            "model_max_length": {"type": "integer"},
        },
    },
    "/v1/models": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}},
    },
    "/v1/models/{name}": MODEL,
    "/v1/completions": _answer("text_completion", {"text": {"type": "string"}}),
    "/v1/chat/completions": _answer("chat.completion", {"message": MESSAGE}),
    "/v1/responses": {
        "type": "object",
        "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "response"},
            "created_at": {"type": "integer"},
            "status": {"enum": ["completed", "incomplete", "cancelled"]},
            "model": {"type": "string"},
            "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "status"]}},
            "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "total_tokens"]},
        },
    },
    "/tokenize": {
        "type": "object",
        "required": ["count", "max_model_len", "tokens", "token_strs"],
        "properties": {
            "count": {"type": "integer"},
            "max_model_len": {"type": "integer"},
            "tokens": {"type": "array", "items": {"type": "integer"}},
            "token_strs": {"type": ["array", "null"], "items": {"type": "string"}},
        },
    },
    "/detokenize": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
}


def _pairs(first: Schema, second: Schema, most: int) -> Schema:
    """The schema of a list of at most so many pairs."""
    pair = {"type": "array", "prefixItems": [first, second], "minItems": 2, "maxItems": 2}
    return {"type": "array", "maxItems": most, "items": pair}


def sampling_options(settings: Settings) -> dict[str, Schema]:
    """The schema of every sampling option, with the limits of ``settings``; null is always the default."""
    limits = settings.limits
    token = {"type": "integer", "minimum": 0, "maximum": MOST_ID}
    tokens = {"type": "array", "items": token, "maxItems": limits.token_ids}
    sequence = {"type": "array", "items": token, "minItems": 1, "maxItems": limits.sequence_tokens}
    bias = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
    share = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    cutoff = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    penalty = {"type": "number", "minimum": -MAX_PENALTY, "maximum": MAX_PENALTY}
    flag = {"type": "boolean"}
    text = {"type": "string", "minLength": 1, "maxLength": limits.stop_characters}
    known: dict[str, Schema] = {
        "temperature": {"type": "number", "minimum": 0, "description": f"0, or at least {1 / LARGEST:g}."},
        **dict.fromkeys(("top_p", "typical_p"), share),
        "top_k": {"type": "integer", "minimum": -1, "maximum": MOST_COUNT},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), cutoff),
        "seed": {"type": "integer", "minimum": -1, "maximum": 2**63 - 1},
        "stop": {"anyOf": [text, {"type": "array", "items": text, "maxItems": limits.stop_strings}]},
        **dict.fromkeys(("stop_token_ids", "suppress_tokens", "begin_suppress_tokens"), tokens),
        "allowed_token_ids": {**tokens, "minItems": 1},
        "max_tokens": {"type": "integer", "minimum": 1},
        "min_tokens": {"type": "integer", "minimum": 0},
        **dict.fromkeys(("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"), flag),
        **dict.fromkeys(("presence_penalty", "frequency_penalty"), penalty),
        "repetition_penalty": {"type": "number", "minimum": 1 / LARGEST, "maximum": LARGEST},
        "no_repeat_ngram_size": {"type": "integer", "minimum": 0, "maximum": MOST_COUNT},
        "logit_bias": {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
                    "additionalProperties": bias,
                    "maxProperties": limits.token_ids,
                },
                _pairs({"anyOf": [token, {"type": "string", "pattern": "^[0-9]{1,10}$"}]}, bias, limits.token_ids),
            ]
        },
        "sequence_bias": {"anyOf": [_pairs(sequence, bias, limits.sequences), {"type": "object", "maxProperties": 0}]},
        "bad_words": {"anyOf": [text, {"type": "array", "items": text, "maxItems": limits.sequences}]},
        "bad_words_ids": {"type": "array", "items": sequence, "maxItems": limits.sequences},
        "structured_outputs": {
            "type": "object",
            "description": f"One of {', '.join(KINDS)}; {limits.grammar_bytes} bytes at most.",
        },
        "filter_order": {"enum": ["transformers", "vllm"]},
        "guidance_scale": {"type": "number", "minimum": -LARGEST, "maximum": LARGEST},
        "truncate_prompt_tokens": {"type": "null", "description": "Not taken."},
        "spaces_between_special_tokens": {"const": True},
    }
    found = {name: {"anyOf": [known.get(name, {}), {"type": "null"}]} if name in known else {} for name in SAMPLING}
    return found | {name: {"description": "Read by nobody."} for name in IGNORED}


def describe(app: FastAPI, settings: Settings) -> None:
    """Let the page of ``app`` say what its routes take and answer."""

    def page() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _complete(app.openapi_schema, settings)
        return app.openapi_schema

    app.openapi = page


def _complete(page: Schema, settings: Settings) -> None:
    schemas = page.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Error"] = ERROR
    for name in SAMPLED:
        own = schemas[name]["properties"]
        options = sampling_options(settings)
        if name == "ResponsesBody":
            options = {one: found for one, found in options.items() if one in TAKEN and one not in REFUSED}
        schemas[name]["properties"] = options | own
        schemas[name]["not"] = {"anyOf": [{"required": [one]} for one in NOT_TAKEN if one not in own]}
        schemas[name]["additionalProperties"] = {"type": "null"}
        if "n" in own:
            own["n"]["maximum"] = settings.limits.samples
    for schema in schemas.values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": [*settings.names]}
        _take_nulls(schema)
    if settings.api_keys:
        page["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"key": []}]
    for path, operations in page["paths"].items():
        for operation in operations.values():
            _complete_operation(path, operation, keyed=bool(settings.api_keys))


def _take_nulls(schema: Schema) -> None:
    """A field that need not be there may be null, which is as if it were not there."""
    fields: Schema = schema.get("properties", {}) if schema is not ERROR else {}
    for name, found in fields.items():
        if name not in schema.get("required", ()) and found and {"type": "null"} not in found.get("anyOf", ()):
            fields[name] = {"anyOf": [found, {"type": "null"}]}


def _complete_operation(path: str, operation: Schema, *, keyed: bool) -> None:
    answers: Schema = operation["responses"]
    answers.pop("422", None)
    for status, meaning in ERRORS.items():
        if (status == "401" and not keyed) or (status in BODIED and "requestBody" not in operation):
            continue
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        answers.setdefault(status, {"description": meaning, "content": error})
    if path in ANSWERS:
        answers["200"]["content"] = {"application/json": {"schema": ANSWERS[path]}}
    if path in EMPTY:
        answers["200"].pop("content", None)
    if path in TEXTS:
        answers["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    if "completions" in path or path == "/v1/responses":
        last = "[DONE]" if "completions" in path else "the whole response"
        stream = {"type": "string", "description": f"With stream: events, the last of which is {last}."}
        answers["200"]["content"]["text/event-stream"] = {"schema": stream}
