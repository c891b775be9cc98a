"""Grammars over the decoded text, by llguidance: JSON schemas, regular expressions, choices, context-free grammars."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from paceline.core.constraint import Constraint, Grammar
from paceline.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MISSING = "it needs llguidance: pip install paceline[grammar]"
# A fifth and a quarter of llguidance's own: for steps of some milliseconds, as other rows wait for them.
LIMITS = {"step_max_items": 10_000, "step_lexer_fuel": 50_000}
END = "<|the end of the text|>"  # a token of our own behind the tokenizer's: llguidance knows no other end


class GrammarError(ValueError):
    """A grammar that cannot be compiled or followed, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A tokenizer as llguidance reads it."""

    tokenizer: "LLTokenizer"
    end: int  # the number of END


_SPELLINGS: WeakKeyDictionary[Tokenizer, Spelling] = WeakKeyDictionary()


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """``tokenizer`` for llguidance, made once. Raises GrammarError without it, and for what it cannot read."""
    if tokenizer not in _SPELLINGS:
        _SPELLINGS[tokenizer] = _spell(tokenizer)
    return _SPELLINGS[tokenizer]


def tokenizer_of(tokenizer: Tokenizer) -> tuple[str, int]:
    """Its definition as llguidance reads it, and the number of END. Raises GrammarError for what it cannot read."""
    definition = tokenizer.definition
    if definition is None:
        raise GrammarError(
            f"it needs a tokenizer of the fast library, and {tokenizer.name} has another: save it as tokenizer.json"
        )
    whole = json.loads(definition)
    end = {"id": tokenizer.size, "content": END, "special": True}
    end |= {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    whole["added_tokens"].append(end)
    return json.dumps(whole), tokenizer.size


def _spell(tokenizer: Tokenizer) -> Spelling:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise GrammarError(MISSING) from error
    definition, end = tokenizer_of(tokenizer)
    try:
        return Spelling(tokenizer=LLTokenizer(definition, eos_token=end), end=end)
    except ValueError as error:
        raise GrammarError(f"llguidance cannot read the tokenizer of {tokenizer.name}: {error}") from error


def describe(kind: str, value: object, *, spaces: Mapping[str, object]) -> str:
    """llguidance's definition of a grammar given as vLLM does: ``kind`` is json, regex, choice, grammar or json_object.

    ``spaces`` are llguidance's options of JSON. Raises GrammarError.
    """
    try:
        from llguidance import LLMatcher, grammar_from
    except ImportError as error:
        raise GrammarError(MISSING) from error
    try:
        if kind in ("json", "json_object"):
            schema = str(value) if kind == "json" else '{"type": "object"}'
            return LLMatcher.grammar_from_json_schema(schema, overrides=cast("JsonCompileOptions", dict(spaces)))
        if kind == "choice":
            return grammar_from("choice", json.dumps(value))
        return grammar_from("regex" if kind == "regex" else "grammar", str(value))
    except ValueError as error:
        raise GrammarError(" ".join(str(error).split())) from error


@final
class TextGrammar(Constraint):
    """The text of the output must match ``definition``, and is followed by one of the tokens ``ends``.

    ``definition`` is in llguidance's format, as its ``grammar_from`` returns it. Raises GrammarError naming what is not
    supported.
    """

    def __init__(self, *, definition: str, spelling: Spelling, ends: Iterable[int]) -> None:
        from llguidance import LLMatcher, LLParserLimits

        self.spelling, self.ends = spelling, frozenset(ends)
        limits = LLParserLimits(step_max_items=LIMITS["step_max_items"], step_lexer_fuel=LIMITS["step_lexer_fuel"])
        self._matcher = LLMatcher(spelling.tokenizer, definition, limits=limits)
        _check(self._matcher)
        first = self._matcher.deep_copy()
        first.compute_bitmask()
        _check(first)  # such as a grammar that no text matches

    def begin(self, prompt: Sequence[int]) -> "TextGrammarState":
        """A new state; it does not depend on the prompt."""
        return TextGrammarState(matcher=self._matcher.deep_copy(), spelling=self.spelling, ends=self.ends)


@final
class TextGrammarState(Grammar):
    """The state of one output in a grammar."""

    def __init__(self, *, matcher: "LLMatcher", spelling: Spelling, ends: frozenset[int]) -> None:
        self._matcher, self._end, self._ends = matcher, spelling.end, ends
        self._ended = False

    def advance(self, token: int) -> bool:
        """A token of ``ends`` is allowed if the grammar is satisfied; nothing follows it."""
        if self._ended:
            return False
        if token in self._ends:
            self._ended = self._matcher.is_accepting()
            return self._ended
        if token >= self._end:
            return False
        taken = self._matcher.try_consume_tokens([token])
        _check(self._matcher)
        return taken == 1

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` tokens; the end of the output is the first to be undone."""
        if self._ended:
            self._ended = False
            count -= 1
        if count and not self._matcher.rollback(count):
            raise RuntimeError(f"llguidance could not go back by {count} tokens: {self._matcher.get_error()}")

    def forced(self) -> Sequence[int]:
        """The tokens of the forced text, as the tokenizer encodes it."""
        return () if self._ended else self._matcher.compute_ff_tokens()

    def allowed(self) -> Tensor:
        """The tokens allowed next; all of them after the end, where the mask is not used."""
        mask = self._mask()
        if self._ended:
            return torch.ones_like(mask)
        may_end = bool(mask[self._end])
        mask[self._end] = False
        width = max(self._ends, default=-1) + 1
        if width > len(mask):
            mask = torch.nn.functional.pad(mask, (0, width - len(mask)))
        mask[list(self._ends)] = may_end
        return mask

    @property
    def is_complete(self) -> bool:
        """Whether only the end of the output may follow."""
        mask = self._mask()
        return not self._ended and bool(mask[self._end]) and int(mask.sum()) == 1

    def _mask(self) -> Tensor:
        bits = self._matcher.compute_bitmask()
        _check(self._matcher)
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._end + 1, bitorder="little")
        return torch.from_numpy(flags.view(np.bool_))


def _check(matcher: "LLMatcher") -> None:
    """Raise GrammarError if llguidance reports an error."""
    if matcher.is_error():
        # What the parser adds on its own state is of no use to whoever wrote the grammar.
        reason = " ".join(matcher.get_error().partition("<state>")[0].split())
        raise GrammarError("no text matches it" if reason.startswith("NoExtension") else reason)
