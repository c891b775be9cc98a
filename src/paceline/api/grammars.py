"""The constraints of a request, from ``structured_outputs`` and ``logits_processors``. Compiled grammars are cached."""

from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from paceline.api.completion import Criterion
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.api.structured import StructuredOutputs
from paceline.constraints.external_processors import constraint_of
from paceline.constraints.grammar import TextGrammar, describe, spelling_of
from paceline.core.constraint import Constraint
from paceline.text.tokenizer import Tokenizer

MOST_COMPILED = 32  # grammars that are cached per tokenizer

_COMPILED: WeakKeyDictionary[Tokenizer, OrderedDict[tuple[StructuredOutputs, frozenset[int]], TextGrammar]] = (
    WeakKeyDictionary()
)


def constraints_of(target: Loaded, params: SamplingParams) -> tuple[Constraint, ...]:
    """The constraints of ``params``. Raises ValueError, with the reason, for an unsupported grammar."""
    grammar = grammar_of(target, params)
    return (*(() if grammar is None else (grammar,)), *map(constraint_of, params.logits_processors or ()))


def grammar_of(target: Loaded, params: SamplingParams) -> TextGrammar | None:
    """The grammar of ``params``, compiled once per tokenizer; None if there is none."""
    asked, tokenizer = params.structured_outputs, target.tokenizer
    if not isinstance(asked, StructuredOutputs):
        return None
    if tokenizer is None:
        raise ValueError(f"structured_outputs: {target.name} has no tokenizer to encode them with; leave them out")
    ends = _ends(target, tokenizer, params)
    known = _COMPILED.setdefault(tokenizer, OrderedDict())
    if (asked, ends) not in known:
        known[asked, ends] = _compile(asked, tokenizer, ends)
        if len(known) > MOST_COMPILED:
            known.popitem(last=False)
    known.move_to_end((asked, ends))
    return known[asked, ends]


def closing(target: Loaded, params: SamplingParams, criterion: Criterion | None) -> Criterion | None:
    """``criterion``, extended to end an output whose grammar is complete where no end-of-text token can end it.

    That is the case if there is no such token, and before ``min_tokens``.
    """
    grammar = grammar_of(target, params)
    if grammar is None or (grammar.ends and not params.min_tokens):
        return criterion
    state = grammar.begin(())

    def ends(tokens: Sequence[int]) -> bool:
        complete = state.advance(tokens[-1]) and state.is_complete
        wanted = criterion is not None and criterion(tokens)
        return wanted or (complete and (not grammar.ends or len(tokens) < params.min_tokens))

    return ends


def _compile(asked: StructuredOutputs, tokenizer: Tokenizer, ends: frozenset[int]) -> TextGrammar:
    try:
        spelling = spelling_of(tokenizer)
        definition = describe(asked.kind, getattr(asked, asked.kind), spaces=asked.spaces)
        grammar = TextGrammar(definition=definition, spelling=spelling, ends=ends)
    except ValueError as error:
        raise ValueError(f"structured_outputs: {asked.kind}: {error}") from error
    if not ends and grammar.begin(()).is_complete:
        raise ValueError(
            f"structured_outputs: {asked.kind}: it allows only the empty text, and no end-of-text token can end it"
        )
    return grammar


def _ends(target: Loaded, tokenizer: Tokenizer, params: SamplingParams) -> frozenset[int]:
    """Tokens that may follow a complete output: the model's end-of-text tokens, and stop tokens without text."""
    own = () if params.ignore_eos else target.eos
    bare = (token for token in params.stop_tokens if tokenizer.is_special(token) or not tokenizer.is_known(token))
    return frozenset((*own, *bare))
