"""Grammars of answers alone: whatever they allow is text, or calls that match their schemas."""

import random

import pytest

from paceline.constraints.grammar import TextGrammar, describe, spelling_of
from paceline.serve.answer_grammar import Thought, answer_grammar
from paceline.serve.message_reader import MessageReader
from paceline.serve.reasoning import REASONING_FORMATS
from paceline.serve.tool_formats import TOOL_FORMATS
from paceline.serve.tools import NO_PARAMETERS, Tools
from tests.serve.chatting import MARKS, SCHEMA, check_call, target

END = 0
SEEDS = 25


def made(form, *, required, parallel, beginning=None):
    tools = Tools(
        given=(),
        callable={"weather": SCHEMA, "now": NO_PARAMETERS},
        form=TOOL_FORMATS[form],
        required=required,
        parallel=parallel,
    )
    thought = None if beginning is None else Thought(form=REASONING_FORMATS["qwen3"], beginning=beginning)
    tokenizer = target().tokenizer
    source = answer_grammar(tokenizer, tools=tools, thought=thought, schema=None)
    definition = describe("grammar", source, spaces={})
    return TextGrammar(definition=definition, spelling=spelling_of(tokenizer), ends=[END]), tools, thought


def drawn(grammar, seed):
    """A random output that the grammar allows, which prefers marks and the end; None if it takes long."""
    choose, state, tokens = random.Random(seed), grammar.begin(()), []
    marks = {target().tokenizer.encode(mark)[0] for mark in MARKS} | set(target().tokenizer.encode('[{"'))
    for _ in range(150):
        allowed = state.allowed().nonzero()[:, 0].tolist()
        if (END in allowed and choose.random() < 0.3) or allowed == [END]:
            return target().tokenizer.decode(tokens, skip_special=False)
        likely = [token for token in allowed if token in marks]
        rest = [token for token in allowed if token != END]
        token = choose.choice(likely if likely and choose.random() < 0.5 else rest)
        assert state.advance(token)
        tokens.append(token)
    return None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("beginning", [None, "open", "inside"])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_what_is_allowed_is_read_as_text_or_as_valid_calls(form, required, beginning):
    counts = set()
    for seed in range(SEEDS):
        grammar, tools, thought = made(form, required=required, parallel=bool(seed % 2), beginning=beginning)
        text = drawn(grammar, seed)
        if text is None:
            continue
        parts = MessageReader(tools, thought).whole(text)
        for call in parts.calls:
            check_call(call.name, call.arguments)
        assert TOOL_FORMATS[form].mark not in parts.content, "what has a mark is a call"
        assert len(parts.calls) >= required and (seed % 2 or len(parts.calls) <= 1), text
        assert not required or not parts.content.strip(), text
        counts.add(len(parts.calls))
    decides = not required and not TOOL_FORMATS[form].marked  # the whole opening of a call is never drawn by chance
    assert decides or counts - {0}
    assert required or 0 in counts


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_text_cannot_have_a_mark_however_it_is_spelled(form):
    grammar, _, _ = made(form, required=False, parallel=True)
    mark = TOOL_FORMATS[form].mark
    for text, taken in (("say " * 5, True), (mark[:-1], True), (f"{mark}zz", False)):
        state = grammar.begin(())
        assert all(state.advance(target().tokenizer.encode(letter)[0]) for letter in text) == taken, text
