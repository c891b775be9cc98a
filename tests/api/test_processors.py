"""Options that change the distribution match transformers' and vLLM's processors at every token.

The target is a GPT-2, because transformers' Llama computes norms and rotary angles in float32 whatever its weights are.
"""

from functools import cache

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from paceline import SamplingParams, load
from paceline.api.processors import processing, tokenized
from paceline.core.request import MAX_STOP_TOKENS, NEVER, Processing
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from tests import tiny
from tests.api.checkpoints import pair
from tests.api.engines import bare, engine, greedy

PROMPTS = ([5, 9, 2, 5, 9], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [17, 4, 33, 17, 4])
LENGTH = 14

# Fields that transformers has under the same names; GenerationConfig makes its own processors of them.
THEIRS = {
    "repetition_penalty": dict(repetition_penalty=1.4),
    "repetition welcome": dict(repetition_penalty=0.6, temperature=0.7),
    "no_repeat_ngram_size": dict(no_repeat_ngram_size=2, temperature=0.5),
    "no_repeat_ngram_size 1": dict(no_repeat_ngram_size=1, top_k=20),
    "bad_words_ids": dict(bad_words_ids=[[9, 2], [5], [8, 8], [4, 1, 4]], temperature=0.5),
    "sequence_bias": dict(sequence_bias=[[[9, 2], 2.0], [[5], -1.5], [[4], 3.0], [[4, 4], -2.0]]),
    "suppress_tokens": dict(suppress_tokens=list(range(0, 40)), begin_suppress_tokens=list(range(40, 58))),
    "typical_p": dict(typical_p=0.6, temperature=1.2),
    "epsilon_cutoff": dict(epsilon_cutoff=0.02),
    "eta_cutoff": dict(eta_cutoff=0.05, temperature=0.8),
    "all": dict(
        repetition_penalty=1.2,
        no_repeat_ngram_size=3,
        bad_words_ids=[[9, 2], [5]],
        sequence_bias=[[[4], 2.0], [[17, 4], -1.0]],
        suppress_tokens=[7, 11],
        begin_suppress_tokens=[4],
        temperature=1.1,
        top_k=40,
        top_p=0.95,
        min_p=0.005,
        typical_p=0.9,
        epsilon_cutoff=0.003,
        eta_cutoff=0.01,
    ),
}
# Fields of vLLM, some with its order of filters.
VLLM = {
    "presence_penalty": dict(presence_penalty=1.5),
    "frequency_penalty": dict(frequency_penalty=-0.7, temperature=0.6),
    "logit_bias": dict(logit_bias={5: 2.0, 9: -3.0, 11: -float("inf")}),
    "allowed_token_ids": dict(allowed_token_ids=[3, 8, 13, 21, 34, 55]),
    "min_p first": dict(min_p=0.1, top_p=0.7, filter_order="vllm"),
    "all": dict(
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={5: 1.0, 9: -2.0},
        allowed_token_ids=list(range(3, 50)),
        temperature=1.1,
        top_k=25,
        top_p=0.8,
        min_p=0.02,
        filter_order="vllm",
    ),
}


@cache
def gpt2():
    """(transformers model, ours as a loaded model, a draft that is often right)"""
    model = tiny.gpt2(4)
    lm = tiny.native(model)
    return model, bare(lm), tiny.noisy(tiny.native(model), 0.02)


def drafters():
    """By name: (drafter, verifier)."""
    draft = gpt2()[2]
    return {
        "plain": ("none", "coupled"),
        "chain": (ModelDrafter(lm=draft), "coupled"),
        "chain, rejection": (ModelDrafter(lm=draft), "rejection"),
        "tree": (ModelDrafter(lm=draft, shape=Topology.branching((2, 2, 1))), "coupled"),
        "tree, recursive": (ModelDrafter(lm=draft, shape=Topology.branching((2, 2, 1))), "recursive"),
    }


WAYS = ("plain", "chain", "chain, rejection", "tree", "tree, recursive")


def logits_of(prompt, tokens):
    with torch.no_grad():
        logits = gpt2()[0](torch.tensor([[*prompt, *tokens]])).logits[0]
    return logits[len(prompt) - 1 : -1].clone()


def distribution_of_transformers(fields, num_prompt):
    """(text, logits [V]) -> log-probabilities [V]."""
    model = gpt2()[0]
    config = GenerationConfig(**{"do_sample": True, "top_k": 0, **fields})
    full, _ = model._prepare_generation_config(config)
    model._prepare_special_tokens(full, True, device=torch.device("cpu"))
    ids = torch.ones(1, num_prompt, dtype=torch.long)
    own = model._get_logits_processor(full, input_ids_seq_length=num_prompt, encoder_input_ids=ids, device="cpu")
    return lambda text, logits: own(torch.tensor([text]), logits[None].clone())[0].log_softmax(-1)


def distribution_of_vllm(
    *,
    logit_bias=None,
    allowed_token_ids=None,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    filter_order="vllm",
    num_prompt,
):
    """The same by vLLM's sampler: mask, bias, penalties of prompt and output, temperature, min-p, top-k, top-p."""

    def distribution(text, logits):
        logits = logits.numpy().copy()
        if allowed_token_ids:
            logits[[token for token in range(len(logits)) if token not in allowed_token_ids]] = -np.inf
        for token, value in (logit_bias or {}).items():
            logits[token] += value
        for token in set(text):
            logits[token] = logits[token] * (repetition_penalty if logits[token] < 0 else 1 / repetition_penalty)
        for token in text[num_prompt:]:
            logits[token] -= frequency_penalty
        for token in set(text[num_prompt:]):
            logits[token] -= presence_penalty
        logits /= temperature
        logits[logits < logits.max() + np.log(max(min_p, 1e-300))] = -np.inf
        if top_k:
            logits[logits < np.sort(logits)[-top_k]] = -np.inf
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")
        if top_p < 1:
            weights[order[np.cumsum(weights[order]) - weights[order] >= top_p]] = 0
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(weights / weights.sum()))

    return distribution


def assert_logprobs(results, distribution_for):
    """Every chosen token, and the 20 likeliest, have the log-probabilities of ``distribution_for`` (number in the
    prompt).
    """
    for result in results:
        prompt, tokens = list(result.prompt_tokens), list(result.token_ids)
        distribution = distribution_for(len(prompt))
        for at, (logits, found) in enumerate(zip(logits_of(prompt, tokens), result.logprobs, strict=True)):
            wanted = distribution([*prompt, *tokens[:at]], logits)
            assert abs(found.raw - float(logits.log_softmax(-1)[tokens[at]])) < 1e-9
            assert abs(found.processed - float(wanted[tokens[at]])) < 1e-9, (at, tokens[at])
            best = wanted.sort(descending=True, stable=True)
            kept = int((best.values[:20] > -np.inf).sum())
            assert len(found.top_processed) == kept
            np.testing.assert_allclose([value for _, value in found.top_processed], best.values[:kept], atol=1e-9)


def run(way, fields):
    drafter, verifier = drafters()[way]
    options = SamplingParams(max_tokens=LENGTH, seed=3, logprobs=20, **fields)
    results = engine(drafter, verifier, target=gpt2()[1], batch_size=3).generate(PROMPTS, options)
    assert all(len(result.token_ids) == LENGTH for result in results)
    return results


@pytest.mark.one_in(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", THEIRS)
def test_distribution_matches_transformers_processors(case, way):
    assert_logprobs(run(way, THEIRS[case]), lambda num_prompt: distribution_of_transformers(THEIRS[case], num_prompt))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", VLLM)
def test_distribution_matches_vllm(case, way):
    assert_logprobs(run(way, VLLM[case]), lambda num_prompt: distribution_of_vllm(**VLLM[case], num_prompt=num_prompt))


def test_options_of_the_tables_change_the_output():
    plain = [result.token_ids for result in run("plain", {})]
    for fields in (*THEIRS.values(), *VLLM.values()):
        assert sum(result.token_ids != other for result, other in zip(run("plain", fields), plain, strict=True)) > 1, (
            fields
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", THEIRS)
def test_processed_tokens_do_not_depend_on_the_drafter(case):
    plain = [result.token_ids for result in run("plain", THEIRS[case])]
    for way in ("chain", "tree"):
        results = run(way, THEIRS[case])
        assert [result.token_ids for result in results] == plain
        assert sum(result.stats.accepted[0] for result in results) > 0


def test_filter_order_is_set_per_request():
    fields = dict(max_tokens=LENGTH, seed=3, logprobs=20, min_p=0.1, top_p=0.7)
    running = engine("none", target=gpt2()[1], batch_size=3)
    orders = ["transformers", "vllm", "transformers", "vllm", "vllm"]
    results = running.generate(PROMPTS, [SamplingParams(**fields, filter_order=order) for order in orders])
    for order, result in zip(orders, results, strict=True):
        theirs = dict(min_p=0.1, top_p=0.7)
        own = (
            distribution_of_transformers
            if order == "transformers"
            else lambda fields, num: distribution_of_vllm(**fields, num_prompt=num)
        )
        assert_logprobs([result], lambda num_prompt, own=own, theirs=theirs: own(theirs, num_prompt))
    (first,) = running.generate(PROMPTS[0], SamplingParams(**fields))
    (second,) = running.generate(PROMPTS[0], SamplingParams(**fields, filter_order="vllm"))
    assert {len(one.top_processed) for one in first.logprobs} != {len(one.top_processed) for one in second.logprobs}


def test_several_greedy_samples_are_equal():
    results = engine("model", target=None, batch_size=3).generate(PROMPTS[:2], greedy(n=3, max_tokens=9))
    assert [(result.index, result.sample) for result in results] == [(i, s) for i in range(2) for s in range(3)]
    assert all(results[i].token_ids == results[i // 3 * 3].token_ids for i in range(6))


def test_many_stop_tokens_are_supported():
    stops = list(range(61 - MAX_STOP_TOKENS + 4, 61))
    (free,) = engine(target=gpt2()[1]).generate(PROMPTS[0], greedy(max_tokens=30))
    (ended,) = engine(target=gpt2()[1]).generate(PROMPTS[0], greedy(max_tokens=30, stop_token_ids=stops))
    at = next(place for place, token in enumerate(free.token_ids) if token in stops)
    assert ended.token_ids == free.token_ids[: at + 1] and ended.finish_reason == "stop"


def test_token_0_is_chosen_if_no_token_is_left():
    options = greedy(max_tokens=4, allowed_token_ids=[5, 6], suppress_tokens=[5, 6])
    (result,) = engine("model", target=None).generate(PROMPTS[0], options)
    assert result.token_ids == (0, 0, 0, 0)


# Words.


def test_bad_words_are_tokenized_as_in_vllm():
    tokenizer = load(pair().target).tokenizer
    bare_, spaced = tokenizer.encode("return", special=False), tokenizer.encode(" return", special=False)
    found = tokenized(["return", " return", "x"], tokenizer)
    wanted = [tuple(bare_)]
    if len(spaced) == len(bare_) and spaced[0] != bare_[0]:
        wanted.append(tuple(spaced))
    x = tuple(tokenizer.encode("x", special=False))
    assert found[: len(wanted)] == tuple(wanted) and x in found
    with pytest.raises(ValueError, match="bad_words: '  ' has no token of its own: leave it out"):
        tokenized(["  "], tokenizer)


def test_leading_space_is_tried_for_bad_words():
    class Spelling:
        def encode(self, text, *, special):
            assert not special
            table = {"cat": [5], " cat": [6], "dog": [7], " dog": [8, 7], "cow": [9], " cow": [9]}
            return table[text]

    assert tokenized(["cat", " dog", "cow", " cat"], Spelling()) == ((5,), (6,), (7,), (9,))


def test_bad_word_does_not_occur_in_the_output():
    target = load(pair().target, dtype="float64", device="cpu")
    running = engine("model", target=target)
    (free,) = running.generate("for item in items:", greedy(max_tokens=30, ignore_eos=True))
    word = target.tokenizer.decode(free.token_ids[4:6])
    tokens = target.tokenizer.encode(word.lstrip(), special=False)
    (held,) = running.generate("for item in items:", greedy(max_tokens=30, ignore_eos=True, bad_words=[word]))
    runs = [list(held.token_ids[at : at + len(tokens)]) for at in range(len(held.token_ids))]
    assert tokens not in runs


def test_parameters_become_processors():
    params = SamplingParams(
        logit_bias={5: 1.0},
        sequence_bias=[[[1, 2], -1.0]],
        suppress_tokens=[7],
        bad_words_ids=[[3, 4]],
        allowed_token_ids=[5, 6],
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        no_repeat_ngram_size=3,
        begin_suppress_tokens=[8, 900],
    )
    assert processing(bare(), params) == Processing(
        bias=(((5,), 1.0), ((1, 2), -1.0), ((7,), NEVER), ((3, 4), NEVER)),
        allowed=(5, 6),
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        no_repeat_ngram=3,
        late=((8, 1), (900, 1)),
    )
    assert processing(bare(), SamplingParams()) == Processing()


UNKNOWN = {
    "logit_bias": (
        dict(logit_bias={61: 1.0, 5: 1.0}),
        r"logit_bias: \[61\] leave the target's vocabulary of 61 tokens",
    ),
    "sequence_bias": (
        dict(sequence_bias=[[[5, 70], 1.0]]),
        r"sequence_bias: \[70\] leave the target's vocabulary of 61",
    ),
    "bad_words_ids": (dict(bad_words_ids=[[5], [99, 61]]), r"bad_words_ids: \[61, 99\] leave the target's vocabulary"),
    "allowed_token_ids": (dict(allowed_token_ids=[61]), r"allowed_token_ids: \[61\] .*; give ids below 61"),
    "bad_words": (
        dict(bad_words=["x"]),
        r"bad_words=\['x'\]: tiny has no tokenizer to encode them with; give bad_words_i",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_ids_outside_the_vocabulary_are_refused_at_submission(name):
    fields, message = UNKNOWN[name]
    running = engine()
    with pytest.raises(ValueError, match=f"^prompt 1: {message}"):
        running.submit([[5], [6]], [SamplingParams(), SamplingParams(**fields)])
    (result,) = running.generate([[5]], greedy(max_tokens=2))  # nothing was submitted
    assert result.index == 0
