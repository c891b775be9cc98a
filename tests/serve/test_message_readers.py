"""Parsers of reasoning and of calls: a text that is cut anywhere is read as it is whole; nothing of it is lost."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.serve.answer_grammar import Thought
from paceline.serve.message_parts import joined
from paceline.serve.message_reader import MessageReader
from paceline.serve.reasoning import REASONING_FORMATS
from paceline.serve.tool_formats import TOOL_FORMATS
from paceline.serve.tools import Tools

CALLS = [("f", {"a": 'x"}{\\', "b": [1, {"c": "</tool_call>"}]}), ("g", {})]
THINK = REASONING_FORMATS["qwen3"]


def tools(name):
    return Tools(given=(), callable={"f": {}, "g": {}}, form=TOOL_FORMATS[name], required=False, parallel=True)


def written(name, calls=CALLS):
    """Calls as a model of this format writes them."""
    form = TOOL_FORMATS[name]
    bodies = [json.dumps({"name": one, form.key: arguments}) for one, arguments in calls]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    if name == "mistral":
        return f"[TOOL_CALLS] [{', '.join(bodies)}]"
    return "; ".join(bodies) if name == "llama3_json" else f"[{', '.join(bodies)}]"


def read(text, cuts=(), *, name=None, beginning=None, form=THINK):
    reader = MessageReader(
        None if name is None else tools(name), None if beginning is None else Thought(form=form, beginning=beginning)
    )
    ends = [*sorted(cuts), len(text)]
    parts = [
        reader.push(text[start:end], ended=number == len(ends) - 1)
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    found = joined(parts)
    assert reader.called == bool(found.calls)
    assert all((call.id is None) == (call.name is None) for part in parts for call in part.calls[1:])
    return found.reasoning, found.content, [(call.index, call.name, call.arguments) for call in found.calls]


CASES = [  # format, text, content, number of calls
    *((name, written(name), "", 2) for name in TOOL_FORMATS),
    *((name, f"\n{written(name)}\n", "", 2) for name in TOOL_FORMATS),
    *((name, f"Let me see. \n{written(name)}", "Let me see.", 2) for name in ("hermes", "mistral")),
    *((name, "no call \n", "no call \n", 0) for name in TOOL_FORMATS),
    *((name, " ", " ", 0) for name in TOOL_FORMATS),
    *((name, f"say {written(name)}", f"say {written(name)}", 0) for name in ("llama3_json", "json")),
    ("hermes", f"{written('hermes')}\nand more", "and more", 2),
    (
        "hermes",
        'a <tool_call>\n{"name": "unknown", "arguments": {}}',
        'a <tool_call>\n{"name": "unknown", "arguments": {}}',
        0,
    ),
    ("hermes", "<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", 0),
    ("hermes", f"<tool_call> {written('hermes')}", "<tool_call>", 2),
    ("hermes", "half <tool_c", "half <tool_c", 0),
    ("mistral", "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", 0),
    ("llama3_json", '{"name": "f"}', '{"name": "f"}', 0),
    ("json", "[1, 2]", "[1, 2]", 0),
]


@pytest.mark.parametrize(("name", "text", "content", "count"), CASES)
def test_calls_are_found_wherever_the_text_is_cut(name, text, content, count):
    reasoning, found, calls = read(text, name=name)
    assert (reasoning, found) == ("", content)
    assert [(one, json.loads(arguments)) for _, one, arguments in calls] == CALLS[:count]
    assert [index for index, _, _ in calls] == list(range(count))
    for first in range(len(text) + 1):
        assert read(text, [first], name=name) == (reasoning, found, calls)
    assert read(text, range(len(text)), name=name) == (reasoning, found, calls)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_call_that_is_cut_off_has_the_arguments_that_there_were(name):
    text = written(name, CALLS[:1])
    start = text.index('{"a"')
    end = start + len(json.dumps(CALLS[0][1]))
    for length in range(len(text)):
        _, content, calls = read(text[:length], name=name)
        if length <= start:
            assert calls == [] and content == text[:length]
        else:
            assert calls == [(0, "f", text[start : min(length, end)])] and content == ""


WORDS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "{}",
    '{"x": 1}',
    "tool",
    "th",
    ", ",
    "; ",
]
HEADS = ['{"name": "f", "arguments": ', '{"name": "g", "parameters": ']
PIECES = st.sampled_from([*WORDS, *HEADS, *'[]{}"\\\n a<'])


@given(
    pieces=st.lists(PIECES, max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    name=st.sampled_from([None, *TOOL_FORMATS]),
    beginning=st.sampled_from([None, "inside", "outside", "open", "assumed"]),
)
@example(pieces=["<think>", "a", "</think>", "\n", "<tool_call>"], cuts=[2, 9], name="hermes", beginning="open")
@settings(max_examples=400, deadline=None)
def test_how_a_text_is_cut_makes_no_difference(pieces, cuts, name, beginning):
    text = "".join(pieces)
    whole = read(text, name=name, beginning=beginning)
    assert read(text, [min(cut, len(text)) for cut in cuts], name=name, beginning=beginning) == whole
    if not whole[2] and beginning is None:
        assert whole[1] == text, "a text without calls stays as it is"


THOUGHTS = [  # beginning, text, reasoning, content
    ("inside", "a </think>\n\nb", "a ", "\n\nb"),
    ("inside", "never ends </thin", "never ends </thin", ""),
    ("outside", "b </think>", "", "b </think>"),
    ("open", "\n<think>a</think>b", "a", "b"),
    ("open", "b <think>", "", "b <think>"),
    ("open", "<thin", "", "<thin"),
    ("assumed", "a</think>b", "a", "b"),
    ("assumed", "<think>a</think>b", "a", "b"),
    ("assumed", "a", "a", ""),
    ("assumed", "<th", "<th", ""),
]


@pytest.mark.parametrize(("beginning", "text", "reasoning", "content"), THOUGHTS)
def test_reasoning_is_split_from_content(beginning, text, reasoning, content):
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert read(text, [first, second], beginning=beginning) == (reasoning, content, [])


def test_the_prompt_says_how_an_answer_begins():
    qwen, deepseek = THINK, REASONING_FORMATS["deepseek_r1"]
    assert qwen.begins("<assistant>\n<think>\n") == deepseek.begins("<think>") == "inside"
    assert qwen.begins("<think>\n\n</think>\n\n") == deepseek.begins("</think>") == "outside"
    assert (qwen.begins("<user><think></user><assistant>"), deepseek.begins("<assistant>")) == ("open", "assumed")


def test_calls_follow_reasoning():
    text = f"<think>a <tool_call></think>{written('hermes')}"
    assert read(text, name="hermes", beginning="open")[0] == "a <tool_call>"
    assert len(read(text, name="hermes", beginning="open")[2]) == 2
