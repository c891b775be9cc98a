"""Grammars of whole answers, for llguidance: reasoning, then text, JSON or calls of tools.

A rule that is lazy ends as soon as it can, so text goes on freely until it has a mark, and what follows the mark is
bound by the grammar. Text itself is defined to have no mark, so a call can never be mistaken for text.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.api.structured import StructuredOutputs
from paceline.constraints.grammar import spelling_of
from paceline.serve.reasoning import Beginning, ReasoningFormat
from paceline.serve.tool_formats import OPENING, Element
from paceline.serve.tools import Tools
from paceline.text.tokenizer import Tokenizer

ARGUMENTS = {"x-guidance": {"whitespace_pattern": " ?"}}  # without, a weak model may write white space for ever
ANY = "(.|\\n)*"
SOME = "(.|\\n)+"
BLANK = "[ \\n]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """How reasoning is written, and how an answer begins after its prompt."""

    form: ReasoningFormat
    beginning: Beginning


def answer_grammar(
    tokenizer: Tokenizer, *, tools: Tools | None, thought: Thought | None, schema: Mapping[str, Any] | None
) -> str:
    """In Lark's syntax. ``schema`` is the JSON schema of the text (None: any text)."""
    calls = tools if tools is not None and tools.callable else None
    rules, allowed = list[str](), list[str]()
    not_text = list[str]()  # what neither text nor what stands before a call's mark may be
    think = None if thought is None else _think(tokenizer, thought, not_text)
    if calls is None or not calls.required:
        allowed.append("text" if schema is None else "space json")
    before = [*not_text]
    if calls is not None:
        not_text.append(f"{ANY if calls.form.marked else BLANK}{_literal(calls.form.mark)}{ANY}")
        allowed.append("calls")
        rules += _calls(tokenizer, calls, text="text" in allowed, but=before)
    if "text" in allowed or any("TEXT" in rule for rule in rules):
        rules.append(f"text: TEXT?\nTEXT: {_all_but(SOME, not_text)}")
    if schema is not None:
        rules.append(f"json: %json {json.dumps(schema)}")
    rules.append("space: SPACE?\nSPACE: /[ \\n]{1,2}/")
    return "\n".join([f"start: {think[0] if think else ''} ({' | '.join(allowed)})", *(think or ())[1:], *rules])


def schema_of(asked: StructuredOutputs) -> dict[str, Any] | None:
    """The JSON schema of a structured output with its options; None for one of another kind."""
    if asked.kind not in ("json", "json_object"):
        return None
    schema: dict[str, Any] = json.loads(str(asked.json)) if asked.kind == "json" else {"type": "object"}
    options: dict[str, object] = {"whitespace_flexible": False} if asked.disable_any_whitespace else {}
    if asked.whitespace_pattern is not None:
        options["whitespace_pattern"] = asked.whitespace_pattern
    return {**schema, "x-guidance": options} if options else schema


def _think(tokenizer: Tokenizer, thought: Thought, not_text: list[str]) -> tuple[str, str] | None:
    """What an answer begins with, and its rule; None where it does not reason."""
    form, beginning = thought.form, thought.beginning
    opening, closing = _literal(form.opening), _literal(form.closing)
    if beginning == "outside":
        return None
    optional = beginning == "open"
    if optional:
        not_text.append(f"{BLANK}{opening}{ANY}")
    special = _special(tokenizer, form.closing)
    if special is None:
        return (
            "think?" if optional else "think",
            f"think[lazy]: /{f'{BLANK}{opening}' if optional else ''}{ANY}{closing}/",
        )
    inside = f"THOUGHT? {special}\nTHOUGHT: {_all_but(SOME, [f'{ANY}{closing}{ANY}'])}"
    first = f"{_element(tokenizer, form.opening)} " if optional else ""
    return "think?" if optional else "think", f"think: {first}{inside}"


def _calls(tokenizer: Tokenizer, tools: Tools, *, text: bool, but: Sequence[str]) -> list[str]:
    """The rules of calls. ``text``: text may stand before them."""
    form, special = tools.form, _special(tokenizer, tools.form.mark)
    lead = ANY if text and form.marked else BLANK if text else f"{BLANK[:-1]}{{0,2}}"
    if special is not None:
        opening = f"open: {'text' if text else 'space'} {special}"
    else:
        opening = f"open[lazy]: OPEN\nOPEN: {_all_but(f'{lead}{_literal(form.mark)}', but)}"

    def spelled(elements: Iterable[Element]) -> str:
        return " ".join(_element(tokenizer, one) for one in elements)

    opened = (*form.before[1:], OPENING) if form.marked else ()
    more = f"({spelled((*form.between, OPENING))} function)*" if tools.parallel else ""
    schemas = {name: {**schema, **ARGUMENTS} for name, schema in tools.callable.items()}
    functions = [
        f'function_{number}: {json.dumps(form.head(name))} arguments_{number} "}}"\n'
        f"arguments_{number}: %json {json.dumps(schema)}"
        for number, (name, schema) in enumerate(schemas.items())
    ]
    return [
        opening,
        f"calls: open {spelled(opened)} function {more} {spelled(form.behind)}",
        f"function: {' | '.join(f'function_{number}' for number in range(len(functions)))}",
        *functions,
    ]


def _element(tokenizer: Tokenizer, element: Element) -> str:
    return "space" if element is None else _special(tokenizer, element) or json.dumps(element)


def _special(tokenizer: Tokenizer, text: str) -> str | None:
    """``text`` as the added token that it is, if llguidance takes that for a special one: it does where the tokenizer
    says so, and for names in angle brackets. Their spelling is no text to it. None if it is none.
    """
    token = tokenizer.added_token(text)
    return None if token is None or not spelling_of(tokenizer).tokenizer.is_special_token(token) else f"<[{token}]>"


def _literal(text: str) -> str:
    """A regular expression of ``text``."""
    return re.escape(text).replace("/", "\\/")


def _all_but(pattern: str, others: Iterable[str]) -> str:
    """What ``pattern`` matches and none of ``others``."""
    return " & ".join([f"/{pattern}/", *(f"~/{other}/" for other in others)])
