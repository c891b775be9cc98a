"""Grammars over text: outputs match the grammar and equal the naive reference under it."""

from dataclasses import replace

import pytest
import torch

from paceline.api import SamplingParams, generate, stream
from paceline.api.grammars import grammar_of
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.tree.shapes import Topology
from tests.constraints.documents import EOS, TIGHT, check, draft, naive, target

PROMPT = [70, 71, 40, 200]
TREE = Topology(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))


def drafters():
    return {
        "none": None,
        "ngram": NgramDrafter(),
        "model": draft(),
        "iid": ModelDrafter(lm=draft().lm, draws=frozenset({Draw.IID})),
        "tree": ModelDrafter(lm=draft().lm, shape=TREE),
        "likeliest tree": ModelDrafter(lm=draft().lm, shape=TREE, draws=frozenset({Draw.FIXED})),
    }


GRAMMARS = {
    "schema": TIGHT,
    "regex": {"regex": r"(ab|ba)+-[0-9]{2,4}(x|yz)*"},
    "choice": {"choice": ["first", "second item", "print(first)", "é"]},
    "one choice": {"choice": ["return first"]},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_every_drafter_gives_the_tokens_of_the_naive_reference(grammar, temperature):
    params = SamplingParams(
        structured_outputs=GRAMMARS[grammar], temperature=temperature, max_tokens=70, seed=11, top_p=0.98
    )
    wanted = naive(PROMPT, params)
    for name, drafter in drafters().items():
        (result,) = generate(target(), [PROMPT], params, drafter=drafter, num_draft_tokens=5)
        assert result.error is None and result.tokens == wanted, name


def test_every_sample_is_a_document_and_unconstrained_drafts_are_accepted():
    """Nested, at temperature 1; the draft knows nothing of the schema."""
    constraints = (
        ("coupled", "model", 16),
        ("rejection", "iid", 10),
        ("spectr", "iid", 10),
        ("traversal", "tree", 10),
    )
    for verifier, drafter, count in constraints:
        params = SamplingParams(structured_outputs=TIGHT, max_tokens=140, n=count, seed=5)
        results = generate(
            target(),
            [PROMPT],
            params,
            drafter=drafters()[drafter],
            num_draft_tokens=5,
            verifier=verifier,
            batch_size=16,
        )
        assert len(results) == count
        for result in results:
            assert (result.error, result.finish_reason) == (None, "stop") and result.tokens[-1] == EOS
            check(result.text)
        assert sum(sum(result.stats.accepted) for result in results) > 0
        assert len({result.tokens for result in results}) > 0.9 * len(results)


def test_rows_with_different_grammars_beside_a_free_one_are_those_alone():
    asked = [
        SamplingParams(structured_outputs=given, temperature=1.0, max_tokens=40, seed=at)
        for at, given in enumerate([TIGHT, GRAMMARS["regex"], None, GRAMMARS["choice"], {"regex": "[ab]*"}])
    ]
    prompts = [[60 + at, 61] for at in range(len(asked))]
    wanted = [naive(prompt, params) for prompt, params in zip(prompts, asked, strict=True)]
    for name in ("none", "model", "tree"):
        together = generate(target(), prompts, asked, drafter=drafters()[name], num_draft_tokens=5)
        for prompt, params, result, tokens in zip(prompts, asked, together, wanted, strict=True):
            (alone,) = generate(target(), [prompt], params, drafter=drafters()[name], num_draft_tokens=5)
            assert result.tokens == alone.tokens == tokens


def test_a_complete_grammar_is_followed_by_the_end_of_text_token():
    for given, text in (({"regex": "ab"}, "ab"), ({"choice": ["first"]}, "first")):
        (result,) = generate(
            target(), [PROMPT], SamplingParams(structured_outputs=given, seed=1), drafter="ngram", num_draft_tokens=5
        )
        assert (result.text, result.tokens[-1], result.finish_reason) == (text, EOS, "stop")


def test_without_an_end_of_text_token_the_output_ends_with_the_grammar():
    for drafter in drafters().values():
        params = SamplingParams(structured_outputs={"choice": ["first", "second"]}, seed=3, ignore_eos=True)
        (result,) = generate(target(), [PROMPT], params, drafter=drafter, num_draft_tokens=5)
        assert result.text in ("first", "second") and result.finish_reason == "stop" and result.error is None
        assert EOS not in result.tokens
        pieces = list(stream(target(), [PROMPT], params))
        assert "".join(piece.text for piece in pieces) == result.text and pieces[-1].finish_reason == "stop"
        (bare,) = generate(replace_eos(target()), [PROMPT], replace(params, ignore_eos=False))
        assert bare.tokens == result.tokens


def replace_eos(loaded):
    return replace(loaded, eos=())


def test_min_tokens_keeps_a_grammar_going_only_where_it_can():
    """A complete grammar ends the output all the same."""
    params = SamplingParams(structured_outputs={"regex": "a{1,30}"}, min_tokens=20, max_tokens=40, seed=2)
    (result,) = generate(target(), [PROMPT], params, drafter="ngram", num_draft_tokens=5)
    assert set(result.text) == {"a"} and len(result.tokens) >= 20 and result.finish_reason == "stop"
    for drafter in ("ngram", None):
        asked = replace(params, structured_outputs={"regex": "a{3}"})
        (short,) = generate(target(), [PROMPT], asked, drafter=drafter, num_draft_tokens=5)
        assert (short.text, short.finish_reason, short.error) == ("aaa", "stop", None)


def test_max_tokens_cuts_a_grammar():
    params = SamplingParams(structured_outputs=TIGHT, max_tokens=5, seed=2)
    (result,) = generate(target(), [PROMPT], params, drafter=drafters()["model"], num_draft_tokens=5)
    assert result.finish_reason == "length" and len(result.tokens) == 5 and result.text.startswith("{")


def test_log_probabilities_are_of_the_distribution_under_the_grammar():
    params = SamplingParams(structured_outputs={"regex": "[ab]{4}"}, logprobs=3, seed=4)
    (result,) = generate(target(), [PROMPT], params, drafter="ngram", num_draft_tokens=5)
    plain = generate(target(), [PROMPT], params)[0]
    assert result.tokens == plain.tokens
    for one, other in zip(result.logprobs, plain.logprobs, strict=True):
        torch.testing.assert_close(one.processed, other.processed)
    assert result.logprobs[-1].processed == 0.0, "nothing but the end may follow"


WRONG = {
    "not a grammar": ({"json": '{"not": {}}'}, r'^prompt 0: structured_outputs: json: Unimplemented keys: \["not"\]'),
    "no JSON": ({"json": "{"}, "^prompt 0: structured_outputs: json: "),
    "impossible": ({"json": {"type": "integer", "minimum": 3, "maximum": 1}}, "Unsatisfiable schema"),
    "open group": ({"regex": "a("}, "structured_outputs: regex: .*unclosed group"),
    "look-ahead": ({"regex": "(?=a)b"}, "look-around"),
    "unknown rule": ({"grammar": "start: foo"}, 'structured_outputs: grammar: .*unknown name: "foo"'),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_grammar_that_cannot_be_followed_is_refused_before_any_work(case):
    given, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        generate(target(), [PROMPT], SamplingParams(structured_outputs=given))


def test_grammars_of_lark_and_of_llama_cpp():
    for text in ('start: "a" ("b" | "c")+ "d"', 'root ::= "a" ("b" | "c")+ "d"'):
        params = SamplingParams(structured_outputs={"grammar": text}, max_tokens=60, seed=1)
        (result,) = generate(target(), [PROMPT], params, drafter="ngram", num_draft_tokens=5)
        assert result.text.startswith("a") and set(result.text[1:].rstrip("d")) <= {"b", "c"}


def test_any_object():
    params = SamplingParams(structured_outputs={"json_object": True}, max_tokens=12, seed=1)
    assert generate(target(), [PROMPT], params)[0].text.startswith("{")


def test_other_options_that_leave_no_token_fail_the_request_alone():
    """The grammar does not know of a bias; other rows go on."""
    free = SamplingParams(seed=3, max_tokens=12)
    bad = SamplingParams(structured_outputs={"regex": "ab"}, logits_processors=[without_b], seed=1)
    for drafter, text in ((None, "a"), ("ngram", "")):  # a draft finds out in the step that would have given "a"
        results = generate(target(), [PROMPT, [66, 67]], [bad, free], drafter=drafter, num_draft_tokens=5)
        assert "forbid every token that the grammar allows" in results[0].error
        assert (results[0].text, results[0].finish_reason) == (text, "error")
        assert results[1].tokens == naive([66, 67], free)


def test_forced_text_is_drafted_by_every_drafter():
    """A repeated beginning has nothing to copy from, and the draft model expects something else."""
    words = "return first + second\n"
    params = SamplingParams(structured_outputs={"choice": [words]}, temperature=1.0, seed=2, max_tokens=40)
    plain = generate(target(), [PROMPT], params)[0]
    for name in ("ngram", "model", "iid"):
        (result,) = generate(target(), [PROMPT], params, drafter=drafters()[name], num_draft_tokens=4)
        assert result.tokens[-1] == EOS and result.text == words
        assert result.stats.steps < len(result.tokens) and sum(result.stats.accepted) > 0
        assert result.tokens == plain.tokens


def test_an_end_that_was_drafted_is_taken_back():
    state = grammar_of(target(), SamplingParams(structured_outputs={"regex": "ab*"})).begin(())
    assert state.advance(65) and state.advance(EOS)
    assert not state.advance(66) and list(state.forced()) == []
    state.rollback(1)
    assert state.advance(66) and state.advance(EOS)
    state.rollback(3)
    assert state.allowed().nonzero()[:, 0].tolist() == [65]


def without_b(input_ids, scores):
    scores[:, 66] = -torch.inf
    return scores
