import json
from dataclasses import fields, replace

import numpy as np
import pytest

from paceline.api.params import NOT_YET, READERS, SamplingParams
from paceline.core.sampling import FilterOrder, Sampling

# vLLM's own defaults, written out: a default that drifts would change what a copied program does.
VLLM = dict(
    n=1,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    seed=None,
    stop=(),
    stop_token_ids=(),
    ignore_eos=False,
    max_tokens=16,
    min_tokens=0,
    logprobs=None,
    prompt_logprobs=None,
    detokenize=True,
    skip_special_tokens=True,
    include_stop_str_in_output=False,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    logit_bias=(),
    allowed_token_ids=None,
    bad_words=(),
    structured_outputs=None,
    logits_processors=None,
    truncate_prompt_tokens=None,
    spaces_between_special_tokens=True,
)

# What transformers has beyond vLLM, neutral; and our own.
OTHERS = dict(
    typical_p=1.0,
    epsilon_cutoff=0.0,
    eta_cutoff=0.0,
    no_repeat_ngram_size=0,
    suppress_tokens=(),
    begin_suppress_tokens=(),
    bad_words_ids=(),
    sequence_bias=(),
    filter_order="transformers",
    guidance_scale=1.0,
    negative_prompt=None,
)

REFUSED = [
    (dict(n=0), "n=0: give from 1 to 16384"),
    (dict(n=10_000_000), "n=10000000: give from 1 to 16384"),
    (dict(n=1.5), "n=1.5: give an integer"),
    (dict(n=True), "n=True: give an integer"),
    (dict(temperature=-0.5), r"temperature=-0.5: give a finite number of at least 0"),
    (dict(temperature=float("nan")), "temperature=nan: give a finite number"),
    (dict(temperature=float("inf")), "temperature=inf: give a finite number"),
    (dict(temperature="1"), "temperature='1': give a number"),
    (dict(temperature=True), "temperature=True: give a number"),
    (dict(temperature=None), "temperature=None: give a number"),
    (dict(top_p=0.0), "top_p=0.0: give a number above 0 and at most 1"),
    (dict(top_p=1.5), "top_p=1.5: give a number above 0 and at most 1"),
    (dict(top_p=float("nan")), "top_p=nan: give a number above 0"),
    (dict(top_p=False), "top_p=False: give a number"),
    (dict(top_k=-2), r"top_k=-2: give 0 \(off\) or a positive count"),
    (dict(top_k=50.0), "top_k=50.0: give an integer"),
    (dict(min_p=-0.1), r"min_p=-0.1: give a number from 0 \(off\) to 1"),
    (dict(min_p=1.1), "min_p=1.1: give a number from 0"),
    (dict(min_p=float("nan")), "min_p=nan: give a number from 0"),
    (dict(seed=-7), r"seed=-7: give an integer from 0 to 2\*\*63 - 1"),
    (dict(seed=1 << 63), r"seed=\d+: give an integer from 0 to 2\*\*63 - 1"),
    (dict(seed=1.0), "seed=1.0: give an integer"),
    (dict(stop=""), "stop='': give a string or several, none of them empty"),
    (dict(stop=["a", ""]), r"stop=\['a', ''\]: give a string or several, none"),
    (dict(stop=[1]), r"stop=\[1\]: give a string or several"),
    (dict(stop=5), "stop=5: give a string or several"),
    (
        dict(stop="end", detokenize=False),
        r"stop=\['end'\] with detokenize=False: stop strings are found in the text; leave detokenize at True, or give",
    ),
    (dict(stop_token_ids=5), "stop_token_ids=5: give a list of token ids"),
    (dict(stop_token_ids="57"), "stop_token_ids='57': give a list of token ids"),
    (dict(stop_token_ids=[3, -1]), r"stop_token_ids=\[3, -1\]: give token ids of at least 0"),
    (dict(stop_token_ids=[3.0]), "stop_token_ids=3.0: give an integer"),
    (dict(max_tokens=0), r"max_tokens=0: give at least 1, or None \(until the context is full\)"),
    (dict(max_tokens=8.0), "max_tokens=8.0: give an integer"),
    (dict(min_tokens=-1), "min_tokens=-1: give 0 or a positive count"),
    (dict(min_tokens=9, max_tokens=8), "min_tokens=9 is more than max_tokens=8: lower it or raise max_tokens"),
    (dict(logprobs=-1), r"logprobs=-1: give a count from 0 to 20, or None \(off\)"),
    (dict(prompt_logprobs=21), "prompt_logprobs=21: give a count from 0 to 20"),
    (dict(logprobs=True), "logprobs=True: give an integer"),
    (dict(ignore_eos=1), "ignore_eos=1: give True or False"),
    (dict(skip_special_tokens=None), "skip_special_tokens=None: give True or False"),
    (dict(detokenize="no"), "detokenize='no': give True or False"),
    (dict(include_stop_str_in_output=0), "include_stop_str_in_output=0: give True or False"),
    (dict(presence_penalty=2.5), r"presence_penalty=2.5: give a number from -2 to 2 \(0 is off\)"),
    (dict(frequency_penalty=-3), r"frequency_penalty=-3.0: give a number from -2 to 2"),
    (dict(presence_penalty=float("nan")), "presence_penalty=nan: give a number from -2"),
    (dict(frequency_penalty="1"), "frequency_penalty='1': give a number"),
    (dict(repetition_penalty=0), r"repetition_penalty=0.0: give a finite number above 0"),
    (dict(repetition_penalty=float("inf")), r"repetition_penalty=inf: give a finite"),
    (dict(logit_bias=5), r"logit_bias=5: give \{token id: bias\}"),
    (dict(logit_bias="5"), r"logit_bias='5': give \{token id: bias\}"),
    (dict(logit_bias=[5]), r"logit_bias=\[5\]: give \{token id: bias\}"),
    (dict(logit_bias={"word": 1.0}), r"logit_bias='word': give an integer"),
    (dict(logit_bias={-1: 1.0}), "logit_bias: token id -1; give ids of at least 0"),
    (dict(logit_bias={5: float("inf")}), r"logit_bias\[5\]=inf: give a finite bias, or -inf to ban"),
    (dict(logit_bias={5: float("nan")}), r"logit_bias\[5\]=nan: give a finite bias"),
    (dict(logit_bias={5: True}), r"logit_bias\[5\]=True: give a number"),
    (dict(allowed_token_ids=[]), r"allowed_token_ids=\[\]: no token is left; give at least one"),
    (dict(allowed_token_ids=[4, -2]), r"allowed_token_ids=\[4, -2\]: give token ids of at least 0"),
    (dict(bad_words=["a", ""]), r"bad_words=\['a', ''\]: give a string or several, none of them empty"),
    (dict(bad_words=[5]), r"bad_words=\[5\]: give a string or several"),
    (dict(bad_words_ids=[5]), "bad_words_ids=5: give a list of token ids"),
    (dict(bad_words_ids=5), r"bad_words_ids=5: give lists of token ids, such as"),
    (dict(bad_words_ids=[[5], []]), "bad_words_ids has an empty list of token ids: leave it out"),
    (dict(suppress_tokens=5), "suppress_tokens=5: give a list of token ids"),
    (dict(begin_suppress_tokens=[-1]), r"begin_suppress_tokens=\[-1\]: give token ids of at"),
    (dict(sequence_bias=[[5]]), r"sequence_bias=\[\[5\]\]: give \[\[token ids, bias\], ...\]"),
    (dict(sequence_bias=[[5, 1.0]]), "sequence_bias=5: give a list of token ids"),
    (dict(sequence_bias=[[[5], float("inf")]]), r"sequence_bias\[\[5\]\]=inf: give a finite bias"),
    (dict(no_repeat_ngram_size=-1), r"no_repeat_ngram_size=-1: give 0 \(off\) or a"),
    (dict(no_repeat_ngram_size=2.0), r"no_repeat_ngram_size=2.0: give an integer"),
    (dict(typical_p=0.0), "typical_p=0.0: give a number above 0 and at most 1"),
    (dict(epsilon_cutoff=1.0), r"epsilon_cutoff=1.0: give a number from 0 \(off\) to below 1"),
    (dict(eta_cutoff=-0.1), "eta_cutoff=-0.1: give a number from 0"),
    (dict(filter_order="openai"), "filter_order='openai': give 'transformers' or 'vllm'"),
    (dict(negative_prompt="no"), "negative_prompt='no' with guidance_scale=1: give a guidance_scale other than 1"),
    (dict(guidance_scale=float("nan")), "guidance_scale=nan: give a finite number"),
    (dict(temperature=10**400), "temperature is an integer above"),
    (
        dict(temperature=1e-320),
        r"temperature=1e-320: give a finite number of at least 0 \(0 is greedy\), others from 1e-30",
    ),
    (dict(top_k=2**31), "top_k=2147483648: give at most 2147483647"),
    (dict(no_repeat_ngram_size=2**31), "no_repeat_ngram_size=2147483648: give 0"),
    (
        dict(stop_token_ids=[2**31]),
        r"stop_token_ids=\[2147483648\]: give token ids of at least 0, and at most 2147483647",
    ),
    (dict(logit_bias={2**31: 1.0}), "logit_bias: token id 2147483648; give ids of at least 0, and at most"),
    (dict(logit_bias={"\u0663": 1.0}), "logit_bias='\u0663': give an integer"),
    (dict(logit_bias={5: 1e31}), r"logit_bias\[5\]=1e\+31: give a finite bias.*from -1e\+30"),
    (dict(repetition_penalty=1e-320), "repetition_penalty=1e-320: give a finite number above 0, from 1e-30"),
    (dict(guidance_scale=1e31), r"guidance_scale=1e\+31: give a finite number"),
    (dict(negative_prompt=[], guidance_scale=2), r"negative_prompt=\[\]: give a text or token ids"),
]

# One value that vLLM would act on for each parameter that is not built yet.
ACTIVE = dict(
    structured_outputs={"regex": "a+"},
    logits_processors=[print],
    truncate_prompt_tokens=5,
    spaces_between_special_tokens=False,
)


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_invalid_value_is_refused_with_the_way_out(values, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**values)
    with pytest.raises(ValueError, match=message):
        SamplingParams.from_vllm(values)


@pytest.mark.parametrize("name", NOT_YET)
def test_unsupported_parameter_is_only_accepted_at_its_default(name):
    with pytest.raises(ValueError) as refusal:
        SamplingParams(**{name: ACTIVE[name]})
    default, reason = NOT_YET[name].default, NOT_YET[name].reason
    assert str(refusal.value) == f"{name}={ACTIVE[name]!r} is not supported: {reason}; leave it at {default!r}"
    assert SamplingParams(**{name: default}) == SamplingParams()


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert set(READERS) == {field.name for field in fields(SamplingParams)}
    assert {field.name: getattr(params, field.name) for field in fields(params)} == VLLM | OTHERS


def test_every_field_is_documented_with_its_default():
    for field in fields(SamplingParams):
        text = " ".join(SamplingParams.__doc__.split())
        default = f'"{field.default}"' if isinstance(field.default, str) else field.default
        assert f"``{field.name}`` ({default})" in text, field.name


STORED = [
    (dict(stop="end"), dict(stop=("end",))),
    (dict(stop=["a", "b", "a"]), dict(stop=("a", "b"))),
    (dict(stop=[]), dict(stop=())),
    (dict(stop_token_ids=[5, 2, 5]), dict(stop_token_ids=(5, 2))),
    (dict(top_k=-1), dict(top_k=0)),
    (dict(seed=-1), dict(seed=None)),
    (dict(temperature=1), dict(temperature=1.0)),
    (
        dict(temperature=np.float32(0.5), top_k=np.int64(7), stop_token_ids=[np.int32(3)]),
        dict(temperature=0.5, top_k=7, stop_token_ids=(3,)),
    ),
    (dict(max_tokens=None, min_tokens=90), dict(max_tokens=None, min_tokens=90)),
    (dict(max_tokens=8, min_tokens=8), dict(min_tokens=8, max_tokens=8)),
    (dict(logprobs=0, prompt_logprobs=20), dict(logprobs=0, prompt_logprobs=20)),
    (dict(n=3, temperature=0), dict(n=3, temperature=0.0)),
    (dict(logit_bias={"9": 1, 5: -float("inf")}), dict(logit_bias=((5, -float("inf")), (9, 1.0)))),
    (dict(logit_bias={}, sequence_bias=[]), dict(logit_bias=(), sequence_bias=())),
    (dict(sequence_bias=[[[5, 6], 1.0], [[7], -2]]), dict(sequence_bias=(((5, 6), 1.0), ((7,), -2.0)))),
    (dict(sequence_bias={(5, 6): 1.0}), dict(sequence_bias=(((5, 6), 1.0),))),
    (dict(bad_words_ids=[[5], [5, 6], [5]]), dict(bad_words_ids=((5,), (5, 6)))),
    (dict(bad_words=["a", "b", "a"]), dict(bad_words=("a", "b"))),
    (dict(allowed_token_ids=[5, 2, 5]), dict(allowed_token_ids=(5, 2))),
    (dict(suppress_tokens=[5, 5], begin_suppress_tokens=[]), dict(suppress_tokens=(5,), begin_suppress_tokens=())),
    (dict(seed=(1 << 63) - 1), dict(seed=(1 << 63) - 1)),
]


@pytest.mark.parametrize(("given", "stored"), STORED)
def test_values_are_stored_in_one_form(given, stored):
    params = SamplingParams(**given)
    for name, value in stored.items():
        kept = getattr(params, name)
        assert kept == value and type(kept) is type(value), name
    assert params == replace(params) and hash(params) == hash(replace(params))
    assert (params.stop_strings, params.stop_tokens) == (params.stop, params.stop_token_ids)


def test_sampling_has_the_parameters_and_the_given_seed():
    params = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, seed=3)
    assert params.sampling(11) == Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, seed=11)
    assert SamplingParams(temperature=0).sampling(0) == Sampling()
    rare = dict(typical_p=0.9, epsilon_cutoff=0.01, eta_cutoff=0.02)
    expected = Sampling(temperature=1.0, order=FilterOrder.VLLM, **rare)
    assert SamplingParams(**rare, filter_order="vllm").sampling(0) == expected
    with pytest.raises(ValueError, match="seed=-1: give"):
        params.sampling(-1)


ROUND = [
    {},
    dict(temperature=0.0, max_tokens=None),
    dict(stop=["end", "\n\n"], stop_token_ids=[2, 9], include_stop_str_in_output=True),
    dict(n=4, seed=0, top_k=5, top_p=0.5, min_p=0.25, logprobs=0, prompt_logprobs=3),
    dict(ignore_eos=True, min_tokens=3, max_tokens=9, detokenize=False, skip_special_tokens=False),
    dict(logit_bias={5: 2.0, 9: -100.0}, allowed_token_ids=[5, 9], bad_words=["word"]),
    dict(presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.3),
]


@pytest.mark.parametrize("mapping", ROUND, ids=str)
def test_round_trip_through_vllm_keeps_every_value_and_names_no_default(mapping):
    params = SamplingParams.from_vllm(mapping)
    assert params.to_vllm() == mapping
    assert SamplingParams.from_vllm(params.to_vllm()) == params


LACKING = dict(
    typical_p=0.9,
    epsilon_cutoff=0.1,
    eta_cutoff=0.2,
    no_repeat_ngram_size=3,
    suppress_tokens=[5],
    begin_suppress_tokens=[5, 6],
    bad_words_ids=[[5, 6], [7]],
    sequence_bias=[[[5, 6], 2.0]],
    guidance_scale=1.5,
)


def test_options_that_vllm_lacks_are_refused_by_to_vllm():
    assert set(LACKING) | {"filter_order", "negative_prompt"} == set(OTHERS)
    for name, value in LACKING.items():
        with pytest.raises(ValueError) as refusal:
            SamplingParams(**{name: value}).to_vllm()
        assert str(refusal.value) == f"vLLM has no {name}={value!r}: leave them at their defaults"
    with pytest.raises(ValueError, match=r"vLLM has no typical_p=0\.9, bad_words_ids=\[\[5, 6\], \[7\]\]: leave"):
        SamplingParams(typical_p=0.9, bad_words_ids=LACKING["bad_words_ids"]).to_vllm()


def test_vllm_filter_order_is_used_where_it_matters():
    felt = dict(min_p=0.1, top_p=0.9)
    assert SamplingParams.from_vllm(felt) == SamplingParams(**felt, filter_order="vllm")
    assert SamplingParams.from_vllm({**felt, "filter_order": "transformers"}) == SamplingParams(**felt)
    with pytest.raises(ValueError, match="vLLM has no filter_order='transformers': leave"):
        SamplingParams(**felt).to_vllm()
    for fields_ in (dict(min_p=0.1, top_k=5), dict(top_p=0.9), dict(felt, temperature=0.0)):
        assert SamplingParams(**fields_).to_vllm() == fields_
        assert SamplingParams.from_vllm(fields_) == SamplingParams(**fields_)


def test_differing_values_round_trip_through_json():
    given = dict(LACKING, filter_order="vllm", logit_bias={5: 1.0}, stop=["x"], temperature=0.5)
    assert SamplingParams(**given).differing() == given
    assert SamplingParams(**json.loads(json.dumps(given))).differing() == given


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"unknown sampling parameters: best_of, use_beam; known: n, temperature, .*stop"
    ):
        SamplingParams.from_vllm({"best_of": 2, "n": 1, "use_beam": True})
