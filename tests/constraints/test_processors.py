"""External logits processors: transformers' own as the oracle, both conventions, and failures."""

from functools import partial

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TopKLogitsWarper,
)
from transformers.generation.logits_process import (
    PrefixConstrainedLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)

from paceline import hf
from paceline.api import SamplingParams, generate, stream
from tests import tiny
from tests.api.drop_in_table import PAD, Call, assistant_of, model_of, ours, prompts, theirs
from tests.api.engines import bare, engine, naive
from tests.harness import tiny_drafter

ONE, FOUR = prompts((9,)), prompts()
LONG = {"max_new_tokens": 24, "pad_token_id": PAD}


def by_history(ids, scores):
    """Scores depend on all tokens before, and on their number."""
    scores = scores.clone()
    scores[torch.arange(len(ids)), ids.sum(-1) % scores.shape[-1]] += 20.0
    scores[:, : ids.shape[1]] -= 3.0
    return scores


class Counting:
    """Allows even tokens after even ones, and notes how often it is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        odd = torch.arange(scores.shape[1]) % 2 != input_ids[:, -1:] % 2
        scores[odd] = -torch.inf  # in place: the copy is its own
        return scores


def every_third(batch_id, ids):
    return list(range((batch_id + len(ids)) % 3, 300, 3))


LISTS = {
    "repetition": lambda: [RepetitionPenaltyLogitsProcessor(1.8)],
    "n-grams": lambda: [NoRepeatNGramLogitsProcessor(2)],
    "biases": lambda: [SequenceBiasLogitsProcessor({(5,): 2.0, (7, 8): 30.0, (8, 9, 7): 30.0})],
    "several": lambda: [
        RepetitionPenaltyLogitsProcessor(1.3),
        SuppressTokensLogitsProcessor([3, 4, 5]),
        by_history,
        TopKLogitsWarper(7),
    ],
    "a function": lambda: [by_history],
    "an object": lambda: [Counting()],
    "late end": lambda: [MinLengthLogitsProcessor(20, 160)],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LISTS)
def test_the_tokens_are_those_of_transformers_with_the_same_list(name):
    model, assistant = model_of("llama"), assistant_of("llama")
    free = theirs(model, Call(inputs=FOUR, options=LONG))
    for inputs in (ONE, FOUR):
        options = {**LONG, "logits_processor": LogitsProcessorList(LISTS[name]()), "eos_token_id": 160}
        wanted = theirs(model, Call(inputs=inputs, options=options))
        for drafted in ({}, {"assistant_model": assistant}, {"prompt_lookup_num_tokens": 4}):
            found = ours(model, Call(inputs=inputs, options=options, ours=drafted))
            assert found.sequences.tolist() == wanted.tolist(), drafted
    assert wanted.tolist() != free.tolist()


def test_allowed_tokens_are_asked_for_the_row_and_before_the_list():
    model = model_of("llama")
    options = {**LONG, "prefix_allowed_tokens_fn": every_third, "logits_processor": [by_history]}
    call = Call(inputs=FOUR, options=options, ours={"assistant_model": assistant_of("llama")})
    assert ours(model, call).sequences.tolist() == theirs(model, Call(inputs=FOUR, options=options)).tolist()


def test_what_a_processor_raises_is_raised_by_the_drop_in():
    error = LookupError("no such table")

    def failing(ids, scores):
        if ids.shape[1] > 14:
            raise error
        return scores

    with pytest.raises(LookupError) as caught:
        hf.generate(model_of("llama"), **FOUR, **LONG, logits_processor=[failing])
    assert caught.value is error and error.__notes__ == ["row 0: raised by failing"]


REFUSED = {
    "what cannot be called": ([3], r"logits_processor\[0\]: int cannot be called: give a logits processor"),
    "one argument": ([len], r"logits_processor\[0\]: len takes 1 arguments"),
    "vLLM's": ([lambda prompt, output, logits: logits], r"logits_processor\[0\], <lambda>: give a processor of \("),
    "by place": (
        [PrefixConstrainedLogitsProcessor(every_third, 1)],
        "identifies rows by their index, and is called with one at a time: give one prompt, not 4 rows",
    ),
    "a state": (
        [SynthIDTextWatermarkLogitsProcessor(5, [1], 8, 8, 8, torch.device("cpu"))],
        "SynthIDTextWatermarkLogitsProcessor, keeps a state of the sequence it was last called with",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_called_row_by_row_on_drafts_is_refused(case):
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        hf.generate(model_of("llama"), **FOUR, **LONG, logits_processor=given)


def vllm_history(prompt, output, logits):
    """``by_history``, in the way of vLLM."""
    return by_history(torch.tensor([[*prompt, *output]]), logits[None])[0]


class Processed:
    """A transformers model whose logits go through ``by_history``."""

    def __init__(self, model):
        self.model = model

    def __call__(self, text):
        output = self.model(text)
        output.logits[:, -1] = by_history(text, output.logits[:, -1])
        return output


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_conventions_give_the_tokens_of_the_naive_reference_at_every_node(temperature):
    prompt = [5, 9, 2, 5, 9]
    plain = SamplingParams(temperature=temperature, seed=3, max_tokens=30)
    wanted = naive(prompt, plain, 3, Processed(tiny.target()[0]))
    assert wanted != naive(prompt, plain, 3)
    for processors in ([by_history], [vllm_history]):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=30, logits_processors=processors)
        for drafter in ("none", "ngram", "model"):
            (result,) = engine(drafter).generate([prompt], params)
            assert list(result.tokens) == wanted and result.error is None


def test_what_a_processor_does_to_what_it_was_given_does_not_matter():
    def spoiling(ids, scores):
        given = scores.clone()
        scores.fill_(7.0)
        ids.fill_(1)
        return given

    params = SamplingParams(temperature=1.0, seed=3, max_tokens=20, logits_processors=[spoiling, by_history])
    plain = SamplingParams(temperature=1.0, seed=3, max_tokens=20, logits_processors=[by_history])
    for drafter in ("none", "model"):
        (result,) = engine(drafter).generate([[5, 9, 2]], params)
        assert result.tokens == engine(drafter).generate([[5, 9, 2]], plain)[0].tokens


def test_a_processor_is_called_once_for_every_valid_node():
    noted = Counting()
    (result,) = engine("model").generate([[4, 2]], SamplingParams(logits_processors=[noted], seed=1, max_tokens=20))
    assert noted.calls == result.stats.steps + sum(result.stats.drafted)


def raising(ids, scores):
    raise ArithmeticError("no luck")


def growing(ids, scores):
    return torch.cat((scores, scores), dim=-1)


def at(length, then, ids, scores):
    """``then`` once the sequence has ``length`` tokens."""
    return then(ids, scores) if ids.shape[1] >= length else scores


BAD = {
    "raises": (raising, "no luck"),
    "another shape": (growing, r"gave \[1, 122\]: scores \[1, 61\] are wanted"),
    "nothing": (lambda ids, scores: None, "gave a NoneType: scores"),
    "integers": (lambda ids, scores: scores.long(), "a logits processor gave torch.int64"),
    "NaN": (lambda ids, scores: scores * torch.nan, "NaN, infinity or no token at all"),
    "infinity": (lambda ids, scores: scores + torch.inf, "NaN, infinity or no token at all"),
    "no token": (lambda ids, scores: scores - torch.inf, "NaN, infinity or no token at all"),
}


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("case", BAD)
def test_a_request_whose_processor_fails_fails_alone_and_keeps_what_it_had(case, drafter):
    function, message = BAD[case]
    whole = SamplingParams(temperature=1.0, seed=3, max_tokens=24)
    for length in (2, 9):
        bad = SamplingParams(temperature=1.0, seed=3, max_tokens=24, logits_processors=[partial(at, length, function)])
        others = [SamplingParams(temperature=1.0, seed=7 + i, max_tokens=24) for i in range(2)]
        prompts_ = [[4, 4], [5, 1], [9, 9, 9]]
        first, failed, last = engine(drafter, batch_size=3).generate(prompts_, [others[0], bad, others[1]])
        assert failed.finish_reason == "error" and message.split("\\")[0] in failed.error.replace("[", "[")
        assert list(failed.tokens) == naive(prompts_[1], whole, 3)[: len(failed.tokens)]
        assert len(failed.tokens) <= length - 2
        for result, prompt, params in ((first, prompts_[0], others[0]), (last, prompts_[2], others[1])):
            assert list(result.tokens) == naive(prompt, params, params.seed) and result.error is None


def test_streams_go_on_beside_one_that_fails():
    made = engine("model", batch_size=2)
    good = SamplingParams(temperature=1.0, seed=2, max_tokens=20)
    bad = SamplingParams(temperature=1.0, seed=2, max_tokens=20, logits_processors=[partial(at, 6, raising)])
    streams = [made.submit([[3, 1]], good), made.submit([[3, 1]], bad), made.submit([[8]], good)]
    pieces = [list(one) for one in streams]
    results = [one.results()[0] for one in streams]
    assert [result.error for result in results] == [None, "no luck", None]
    assert [piece.token for piece in pieces[1]] == list(results[1].tokens)
    assert [piece.token for piece in pieces[0]] == naive([3, 1], good, 2)
    assert [piece.token for piece in pieces[2]] == naive([8], good, 2), "its row is given to the next"
    assert next(stream(bare(), [[3, 1]], bad)).token == pieces[0][0].token


def test_wrong_values_are_refused_by_name():
    for given, message in (
        (print, "give a list of logits processors"),
        ([3], r"logits_processors\[0\]: int cannot be called"),
        ([lambda one: one], r"logits_processors\[0\]: <lambda> takes 1 arguments"),
    ):
        with pytest.raises(ValueError, match=message):
            SamplingParams(logits_processors=given)


def test_an_object_of_transformers_serves_the_api_too():
    penalty = RepetitionPenaltyLogitsProcessor(1.8)
    params = SamplingParams(temperature=0.0, max_tokens=24, logits_processors=[penalty])
    (result,) = engine(tiny_drafter("model", tiny.target()[1])).generate([[5, 9, 2]], params)
    model = tiny.target()[0]
    wanted = model.generate(
        torch.tensor([[5, 9, 2]]), max_new_tokens=24, do_sample=False, logits_processor=LogitsProcessorList([penalty])
    )
    assert list(result.tokens) == wanted[0, 3:].tolist()
    assert list(result.tokens) != list(
        generate(bare(), [[5, 9, 2]], SamplingParams(temperature=0.0, max_tokens=24))[0].tokens
    )
