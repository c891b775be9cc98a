"""The tools of a request: which functions an answer may call, and whether it has to."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.serve.errors import ApiError
from paceline.serve.schema import ChatBody
from paceline.serve.settings import Settings
from paceline.serve.tool_formats import TOOL_FORMATS, ToolFormat, detected

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a request. ``callable`` are those that the answer may call, by name, with their schemas."""

    given: tuple[dict[str, Any], ...]  # as the chat template gets them
    callable: dict[str, dict[str, Any]]
    form: ToolFormat
    required: bool
    parallel: bool


def read_tools(body: ChatBody, settings: Settings, template: str) -> Tools | None:
    """Those of ``body``; None if there are none. Raises ApiError for what is malformed or exceeds the limits, and where
    neither the settings nor the chat template tell how the model writes calls.
    """
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none"):
            raise ApiError(400, f"tool_choice={choice!r:.80} without tools: give tools", param="tool_choice")
        return None
    schemas, limits = dict[str, dict[str, Any]](), settings.limits
    if len(body.tools) > limits.tools:
        raise ApiError(400, f"{len(body.tools)} tools, at most {limits.tools} are taken", param="tools")
    for number, tool in enumerate(body.tools):
        _check_depth(tool, f"tools.{number}", limits.schema_depth)
        name, schema = _function(tool, f"tools.{number}")
        if name in schemas:
            raise ApiError(
                400, f"tools.{number}: a second function {name!r}; give each a name of its own", param="tools"
            )
        schemas[name] = schema
    size = len(json.dumps(body.tools))
    if size > limits.grammar_bytes:
        raise ApiError(400, f"tools of {size} bytes, at most {limits.grammar_bytes} are taken", param="tools")
    if not re.search(r"\btools\b", template):
        raise ApiError(400, "tools: the model's chat template has no place for them: leave them out", param="tools")
    callable_, required = _chosen(choice, schemas, settings)
    return Tools(
        given=tuple(body.tools),
        callable=callable_,
        form=_format(settings, template),
        required=required,
        parallel=body.parallel_tool_calls,
    )


def _chosen(
    choice: object, schemas: dict[str, dict[str, Any]], settings: Settings
) -> tuple[dict[str, dict[str, Any]], bool]:
    """The functions that may be called, and whether one has to be."""
    if choice == "none":
        return {}, False
    if choice in (None, "auto"):
        if not settings.enable_auto_tool_choice:
            raise ApiError(
                400,
                'tool_choice="auto" is switched off at this server (enable_auto_tool_choice): give "none", "required" '
                "or a function",
                param="tool_choice",
            )
        return schemas, False
    if choice == "required":
        return schemas, True
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ApiError(
            400,
            f"tool_choice={choice!r:.80}: give one of {', '.join(CHOICES)}, or "
            '{"type": "function", "function": {"name": NAME}}',
            param="tool_choice",
        )
    if name not in schemas:
        raise ApiError(400, f"tool_choice: no tool is named {name!r:.80}: give one of tools", param="tool_choice")
    return {name: schemas[name]}, True


def _function(tool: Mapping[str, Any], param: str) -> tuple[str, dict[str, Any]]:
    """Name and schema of a tool."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise ApiError(400, f'{param}: give {{"type": "function", "function": {{"name": ..., ...}}}}', param="tools")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ApiError(
            400, f"{param}.function.name={name!r:.80}: give up to 64 letters, digits, _, . and -", param="tools"
        )
    if not isinstance(function.get("description", ""), str | None):
        raise ApiError(400, f"{param}.function.description: give a text", param="tools")
    if schema is None:
        return name, NO_PARAMETERS
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ApiError(
            400,
            f'{param}.function.parameters: give a JSON schema of "type": "object", which arguments are',
            param="tools",
        )
    return name, {**schema, "type": "object"}


def _check_depth(value: object, param: str, most: int) -> None:
    """Raise ApiError for nesting that a recursive reader could fail at."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > most:
            raise ApiError(400, f"{param}: nested deeper than {most} levels, which is what is taken", param="tools")
        inner = (list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [entry for entries in inner for entry in entries]


def _format(settings: Settings, template: str) -> ToolFormat:
    known = ", ".join(TOOL_FORMATS)
    if settings.tool_call_parser is None:
        found = detected(template)
        if found is None:
            raise ApiError(
                400,
                "tools: the chat template does not tell how this model writes calls; whoever starts the server gives "
                f"--tool-call-parser, one of {known}",
                param="tools",
            )
        return found
    return TOOL_FORMATS[settings.tool_call_parser]
