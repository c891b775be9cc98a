"""structured_outputs and logits_processors as parameters: forms, refusals, and what is missing."""

import sys
from dataclasses import replace

import pytest

from paceline.api import SamplingParams, generate
from paceline.api.grammars import MOST_COMPILED, grammar_of
from paceline.api.structured import KINDS, StructuredOutputs
from paceline.constraints import grammar as grammars
from paceline.constraints.external_processors import TransformersConstraint, VllmConstraint, constraint_of
from tests.api.engines import bare
from tests.constraints.documents import target

GIVEN = {
    "json": {"type": "object"},
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'start: "a"',
    "json_object": True,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_is_kept_as_a_value_and_given_back(kind):
    params = SamplingParams(structured_outputs={kind: GIVEN[kind]})
    assert params.structured_outputs.kind == kind and hash(params.structured_outputs) is not None
    assert replace(params, seed=3).structured_outputs == params.structured_outputs
    assert SamplingParams.from_vllm(params.to_vllm()) == params
    assert params.to_vllm()["structured_outputs"].keys() == {kind}


def test_unset_keys_of_vllm_are_taken():
    given = {**dict.fromkeys(KINDS), "regex": "a+", "disable_any_whitespace": False, "structural_tag": None}
    asked = {**given, "disable_additional_properties": False, "whitespace_pattern": None}
    assert SamplingParams(structured_outputs=asked) == SamplingParams(structured_outputs={"regex": "a+"})
    assert SamplingParams(structured_outputs=StructuredOutputs(regex="a+")) == SamplingParams(structured_outputs=asked)


REFUSED = {
    "nothing": ({}, "none of json, regex, choice, grammar, json_object; give exactly one"),
    "two": ({"regex": "a", "json": "{}"}, "json and regex of json, regex, .*; give exactly one"),
    "text": ("a+", r"structured_outputs='a\+': give a mapping"),
    "unknown": ({"regexp": "a"}, "structured_outputs: regexp is not supported; known: json, regex"),
    "structural tags": ({"structural_tag": "x", "regex": "a"}, "structural_tag is not supported"),
    "a number": ({"regex": 3}, "regex=3; give a text"),
    "a choice of one text": ({"choice": "abc"}, "choice='abc'; give a list of texts"),
    "a choice of numbers": ({"choice": [1, 2]}, r"choice=\(1, 2\); give a list of texts"),
    "space in an expression": ({"regex": "a", "disable_any_whitespace": True}, "go with json alone"),
    "half a truth": ({"json_object": "yes"}, "json_object='yes'; give True or False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused(case):
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        SamplingParams(structured_outputs=given)


def test_without_llguidance_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for asked in ({"regex": "b+c"}, {"json": {}}):
        with pytest.raises(ValueError, match=r"^prompt 0: structured_outputs: .*pip install paceline\[grammar\]"):
            generate(target(), [[5]], SamplingParams(structured_outputs=asked))


def test_a_grammar_needs_a_tokenizer_of_the_fast_library(monkeypatch):
    params = SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(ValueError, match="tiny has no tokenizer to encode them with"):
        generate(bare(), [[5]], params)
    monkeypatch.setattr(type(target().tokenizer), "definition", None)
    with pytest.raises(ValueError, match="needs a tokenizer of the fast library"):
        grammars._spell(target().tokenizer)


def test_a_grammar_of_the_empty_text_needs_an_end_of_text_token():
    params = SamplingParams(structured_outputs={"choice": [""]}, ignore_eos=True)
    with pytest.raises(ValueError, match="it allows only the empty text, and no end-of-text token can end it"):
        generate(target(), [[5]], params)
    (result,) = generate(target(), [[5]], replace(params, ignore_eos=False))
    assert (result.text, result.finish_reason) == ("", "stop")


def test_a_grammar_is_compiled_once_for_its_tokenizer_and_ends():
    params = SamplingParams(structured_outputs={"regex": "ab*"})
    assert grammar_of(target(), params) is grammar_of(target(), replace(params, seed=5))
    assert grammar_of(target(), replace(params, ignore_eos=True)).ends == frozenset()
    first = grammar_of(target(), params)
    for index in range(MOST_COMPILED):
        grammar_of(target(), SamplingParams(structured_outputs={"regex": f"a{{{index + 1}}}"}))
    assert grammar_of(target(), params) is not first


def test_stop_tokens_end_a_grammar_only_if_they_have_no_text():
    params = SamplingParams(structured_outputs={"regex": "ab*"}, stop_token_ids=[66, 310], ignore_eos=True)
    assert grammar_of(target(), params).ends == {310}


def test_conventions_are_reported_by_the_arguments_that_are_needed():
    class Called:
        def __call__(self, input_ids, scores, **more):
            return scores

    assert isinstance(constraint_of(Called()), TransformersConstraint)
    assert isinstance(constraint_of(lambda ids, scores, extra=3: scores), TransformersConstraint)
    assert isinstance(constraint_of(lambda prompt, output, logits: logits), VllmConstraint)
