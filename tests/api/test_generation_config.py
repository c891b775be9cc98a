import json
import re

import pytest
import torch
from transformers import GenerationConfig

from paceline.api.generation_config import GenerationOptions, from_generation_config, generation_options
from paceline.api.generation_fields import HARMLESS, HONOURED, REFUSED
from paceline.api.params import SamplingParams
from paceline.core.sampling import SamplingState
from tests import tiny

GREEDY = SamplingParams(temperature=0, max_tokens=20)
OLDER = {"return_legacy_cache", "_commit_hash"}  # still found in files
SAMPLE = {"do_sample": True}

# For every refused field a value that would change the output, and the other fields it needs.
ACTIVE = {
    "num_beams": (4, {}),
    "num_beam_groups": (2, {}),
    "diversity_penalty": (0.5, {}),
    "penalty_alpha": (0.6, {}),
    "constraints": ([[1]], {}),
    "force_words_ids": ([[5]], {}),
    "dola_layers": ("high", {}),
    "encoder_repetition_penalty": (1.2, {}),
    "encoder_no_repeat_ngram_size": (2, {}),
    "exponential_decay_length_penalty": ([5, 1.1], {}),
    "top_h": (0.4, SAMPLE),
    "watermarking_config": ({"bias": 2.5}, {}),
    "remove_invalid_values": (True, {}),
    "token_healing": (True, {}),
    "cache_implementation": ("quantized", {}),
    "is_assistant": (True, {}),
    "assistant_early_exit": (2, {}),
    "assistant_ensemble_weight": (0.5, {}),
    "use_mtp": (True, {}),
    "speculation_type": ("dflash", {}),
    "output_attentions": (True, {"return_dict_in_generate": True}),
    "output_hidden_states": (True, {"return_dict_in_generate": True}),
}


@pytest.fixture(scope="module")
def model():
    return tiny.llama()


def processors(model, config):
    """The full configuration of transformers, with its defaults, and its logits processors."""
    full, _ = model._prepare_generation_config(config)
    model._prepare_special_tokens(full, True, device=torch.device("cpu"))
    ids = torch.ones(1, 3, dtype=torch.long)
    return full, model._get_logits_processor(full, input_ids_seq_length=3, encoder_input_ids=ids, device="cpu")


def test_every_field_of_transformers_is_classified_once():
    fields = set(GenerationConfig().to_dict())
    tables = [set(HONOURED), set(HARMLESS), set(REFUSED)]
    assert fields <= set.union(*tables)
    assert set.union(*tables) - fields == OLDER
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert all(HONOURED.values()) and all(HARMLESS.values())


def test_every_refused_field_has_an_active_value():
    assert set(ACTIVE) == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_field_is_named_with_its_value(name):
    value, others = ACTIVE[name]
    with pytest.raises(ValueError) as refusal:
        generation_options({name: value, **others})
    assert str(refusal.value) == f"generation configuration: cannot honour: {name}={value!r}; leave them out"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_field_is_accepted_at_neutral_values_or_if_unread(name):
    for value in (None, *REFUSED[name].neutral):
        assert generation_options({name: value}) == generation_options({})
        assert generation_options({name: value, **SAMPLE}) == generation_options(SAMPLE)
    value, others = ACTIVE[name]
    if others:
        assert generation_options({name: value}) == generation_options({})


@pytest.mark.parametrize("name", [name for name in REFUSED if REFUSED[name].neutral])
def test_neutral_values_change_nothing_in_transformers(model, name):
    _, plain = processors(model, GenerationConfig(**SAMPLE))
    scores = torch.randn(1, tiny.VOCAB, dtype=torch.float64)
    ids = torch.tensor([[5, 6, 5]])
    for value in REFUSED[name].neutral:
        _, given = processors(model, GenerationConfig(**SAMPLE, **{name: value}))
        assert torch.equal(given(ids, scores), plain(ids, scores)), value


@pytest.mark.parametrize("name", [name for name in REFUSED if ACTIVE[name][1] == SAMPLE])
def test_transformers_ignores_filters_without_sampling(model, name):
    assert not processors(model, GenerationConfig(**{name: ACTIVE[name][0]}))[1]
    assert len(processors(model, GenerationConfig(**SAMPLE, **{name: ACTIVE[name][0]}))[1]) == 2  # it, and top-k


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_field_is_accepted_with_any_value(name):
    assert generation_options({name: 7}) == generation_options({})


def test_one_message_lists_all_problems():
    config = {"num_beams": 4, "temprature": 1.0, "penalty_alpha": 0.6, "top_k": 4, "best_of": None}
    with pytest.raises(ValueError) as refusal:
        from_generation_config(config)
    assert str(refusal.value) == (
        "generation configuration: cannot honour: num_beams=4, penalty_alpha=0.6; unknown fields: temprature, best_of; "
        "leave them out"
    )


# Fields, and the equivalent parameters.
MEANING = [
    ({}, GREEDY),
    (dict(do_sample=False, temperature=0.7, top_k=5, top_p=0.5, min_p=0.1), GREEDY),
    (dict(temperature=0.7, top_k=5, typical_p=0.5), GREEDY),
    (SAMPLE, SamplingParams(temperature=1, top_k=50, max_tokens=20)),
    (dict(SAMPLE, top_k=0), SamplingParams(max_tokens=20)),
    (
        dict(SAMPLE, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, max_new_tokens=7),
        SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, max_tokens=7),
    ),
    (dict(max_new_tokens=30, min_new_tokens=4), SamplingParams(temperature=0, max_tokens=30, min_tokens=4)),
    (
        dict(max_new_tokens=30, max_length=9, min_new_tokens=0, min_length=8),
        SamplingParams(temperature=0, max_tokens=30),
    ),
    (dict(min_length=0), GREEDY),
    (dict(eos_token_id=2), SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[2], ignore_eos=True)),
    (dict(eos_token_id=[7, 2]), SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[7, 2], ignore_eos=True)),
    (dict(eos_token_id=-1), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)),
    (dict(stop_strings="end"), SamplingParams(temperature=0, max_tokens=20, stop=["end"])),
    (dict(stop_strings=["a", "b"]), SamplingParams(temperature=0, max_tokens=20, stop=["a", "b"])),
    (
        dict(SAMPLE, typical_p=0.9, epsilon_cutoff=0.01, eta_cutoff=0.02),
        SamplingParams(top_k=50, typical_p=0.9, epsilon_cutoff=0.01, eta_cutoff=0.02, max_tokens=20),
    ),
    (dict(SAMPLE, typical_p=1.0, epsilon_cutoff=1.0, eta_cutoff=0), SamplingParams(top_k=50, max_tokens=20)),
    (dict(typical_p=0.9, epsilon_cutoff=0.01, eta_cutoff=2.0), GREEDY),
    (
        dict(
            repetition_penalty=1.3,
            no_repeat_ngram_size=3,
            bad_words_ids=[[5], [2, 6]],
            suppress_tokens=[7, -1],
            begin_suppress_tokens=[8, -1],
            sequence_bias=[[[5, 6], 2.0]],
        ),
        SamplingParams(
            temperature=0,
            max_tokens=20,
            repetition_penalty=1.3,
            no_repeat_ngram_size=3,
            bad_words_ids=[[5], [2, 6]],
            suppress_tokens=[7],
            begin_suppress_tokens=[8],
            sequence_bias=[[[5, 6], 2.0]],
        ),
    ),
    (dict(repetition_penalty=1.0, no_repeat_ngram_size=0, suppress_tokens=[], begin_suppress_tokens=[]), GREEDY),
    (
        dict(bad_words_ids=[[5], [2], [2, 5]], eos_token_id=[2, 3]),
        SamplingParams(
            temperature=0, max_tokens=20, stop_token_ids=[2, 3], ignore_eos=True, bad_words_ids=[[5], [2, 5]]
        ),
    ),
    (dict(SAMPLE, num_return_sequences=3), SamplingParams(n=3, top_k=50, max_tokens=20)),
]


@pytest.mark.parametrize(("fields", "params"), MEANING)
def test_object_dict_and_file_become_sampling_params(fields, params, tmp_path):
    config = GenerationConfig(**fields)
    (tmp_path / "generation_config.json").write_text(config.to_json_string())
    for given in (fields, config, config.to_dict(), tmp_path, str(tmp_path), tmp_path / "generation_config.json"):
        assert from_generation_config(given) == params
    assert from_generation_config(GenerationConfig.from_pretrained(tmp_path)) == params


DISTRIBUTIONS = [
    SAMPLE,
    dict(SAMPLE, top_k=0, typical_p=0.5),
    dict(SAMPLE, typical_p=0.9, temperature=1.4),
    dict(SAMPLE, top_k=0, epsilon_cutoff=0.02),
    dict(SAMPLE, top_k=0, eta_cutoff=0.05, temperature=1.4),
    dict(SAMPLE, top_k=0, eta_cutoff=0.6),
    dict(SAMPLE, top_k=30, top_p=0.9, min_p=0.01, typical_p=0.8, epsilon_cutoff=0.01, eta_cutoff=0.1, temperature=1.3),
    dict(SAMPLE, temperature=0.6),
    dict(SAMPLE, top_k=0, top_p=0.8),
    dict(SAMPLE, top_k=7, temperature=1.7),
    dict(SAMPLE, top_k=0, min_p=0.2),
    dict(SAMPLE, top_k=9, top_p=0.7, min_p=0.05, temperature=0.9),
    dict(SAMPLE, top_p=1.0, renormalize_logits=True),
]


@pytest.mark.parametrize("fields", DISTRIBUTIONS, ids=",".join)
def test_distribution_matches_transformers(model, fields):
    _, theirs = processors(model, GenerationConfig(**fields))
    logits = 3 * torch.randn(8, tiny.VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = theirs(torch.ones(8, 3, dtype=torch.long), logits.clone()).softmax(-1)
    state = SamplingState(8, torch.device("cpu"))
    state.assign(range(8), [from_generation_config(fields).sampling(0)] * 8)
    torch.testing.assert_close(state.warp(logits[:, None])[:, 0].softmax(-1), expected)


ALMOST_ALL = list(range(4, tiny.VOCAB))  # ends the output at once unless a minimum length prevents it
LENGTHS = [
    {},
    dict(max_new_tokens=3),
    dict(max_length=9),
    dict(max_length=9, max_new_tokens=4),
    dict(max_length=30, min_length=12, eos_token_id=ALMOST_ALL),
    dict(max_new_tokens=30, min_new_tokens=5, min_length=30, eos_token_id=ALMOST_ALL),
]


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("fields", LENGTHS, ids=",".join)
@pytest.mark.parametrize("prompt", [[5], [5, 9, 2, 31, 7, 8], [5] * 120], ids=len)
def test_length_limits_match_transformers(model, fields, prompt):
    context = model.config.max_position_embeddings
    try:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **fields, pad_token_id=0)[
            0, len(prompt) :
        ].tolist()
    except ValueError:
        with pytest.raises(
            ValueError, match=rf"max_length=\d+ counts the prompt too, and its {len(prompt)} tokens leave"
        ):
            generation_options(fields).for_prompt(len(prompt), context=context)
        return
    params = generation_options(fields).for_prompt(len(prompt), context=context)
    eos = set(params.stop_tokens)
    ended = [index + 1 for index, token in enumerate(out) if token in eos]
    assert ended[:1] == [len(out)] if ended else len(out) == params.max_tokens
    if params.min_tokens:
        free = dict(fields, min_length=0, min_new_tokens=0)
        early = model.generate(ids, attention_mask=torch.ones_like(ids), **free, pad_token_id=0)
        assert early.shape[1] - len(prompt) < params.min_tokens <= len(out) < params.max_tokens


def test_prompt_that_fills_the_context_is_refused():
    with pytest.raises(ValueError, match="context=64 counts the prompt too, and its 64 tokens leave no room for a new"):
        generation_options({}).for_prompt(64, context=64)
    assert generation_options({}).for_prompt(60, context=64).max_tokens == 4
    assert generation_options(dict(max_new_tokens=9)).for_prompt(60, context=64).max_tokens == 9


def test_limits_that_count_the_prompt_are_refused_without_a_prompt():
    for name, fields in (("max", dict(max_length=90)), ("min", dict(min_length=5, max_new_tokens=9))):
        message = (
            rf"{name}_length=\d+ counts the prompt too: give {name}_new_tokens, or take generation_options\(config\)"
        )
        with pytest.raises(ValueError, match=message):
            from_generation_config(fields)


@pytest.mark.parametrize("name", ["forced_bos_token_id", "forced_eos_token_id"])
def test_forced_tokens_are_no_sampling_parameters(name):
    with pytest.raises(ValueError, match=rf"{name}=4: leave it out; paceline.hf.generate takes it"):
        from_generation_config({name: 4})
    with pytest.raises(ValueError, match=name):
        generation_options({name: [4, 5]})


def test_generation_options_hold_all_other_fields():
    fields = dict(
        SAMPLE,
        top_k=0,
        max_length=40,
        min_length=6,
        eos_token_id=[2, -1],
        pad_token_id=0,
        num_return_sequences=2,
        return_dict_in_generate=True,
        output_logits=True,
        max_time=2,
        forced_bos_token_id=7,
        forced_eos_token_id=[2],
        num_assistant_tokens=4,
        prompt_lookup_num_tokens=10,
        max_matching_ngram_size=3,
    )
    options = generation_options(fields)
    assert options == GenerationOptions(
        params=SamplingParams(n=2, max_tokens=None),
        max_new_tokens=None,
        max_length=40,
        min_length=6,
        eos=(2,),
        pad=0,
        return_dict=True,
        output_scores=False,
        output_logits=True,
        max_time=2.0,
        forced_bos=7,
        forced_eos=2,
        num_assistant_tokens=4,
        prompt_lookup_num_tokens=10,
        max_matching_ngram_size=3,
    )
    assert options.num_return_sequences == 2
    assert options.for_prompt(10, context=64) == SamplingParams(n=2, max_tokens=30, stop_token_ids=[2], ignore_eos=True)
    assert generation_options({}).eos is None and generation_options(dict(eos_token_id=[])).eos == ()


VALUES = [
    (dict(SAMPLE, temperature=0.0), "do_sample=True with temperature=0: give do_sample=False"),
    (dict(SAMPLE, temperature=-1.0), "temperature=-1.0: give a finite number"),
    (dict(SAMPLE, top_k=-1), "top_k=-1: give at least 0, or None"),
    (dict(SAMPLE, top_p=0.0), "top_p=0.0: give a number above 0"),
    (dict(do_sample=1), "do_sample=1: give True, False or None"),
    (dict(max_new_tokens=0), "max_new_tokens=0: give at least 1, or None"),
    (dict(max_length=1.5), "max_length=1.5: give an integer, or None"),
    (dict(min_new_tokens=21), "min_tokens=21 is more than max_tokens=20: lower it"),
    (dict(num_return_sequences=2), "num_return_sequences=2 without do_sample=True: greedy decoding has one output"),
    (dict(repetition_penalty=0.0), "repetition_penalty=0.0: give a finite number above 0"),
    (dict(suppress_tokens=["a"]), "suppress_tokens='a': give an integer"),
    (dict(bad_words_ids=["ab"]), "bad_words_ids='ab': give a list of token ids"),
    (dict(SAMPLE, epsilon_cutoff=-0.1), "epsilon_cutoff=-0.1: give a number from 0"),
    (dict(eos_token_id="</s>"), "eos_token_id='</s>': give a token id or a list"),
    (dict(eos_token_id=[True]), r"eos_token_id=\[True\]: give a token id or a list"),
    (dict(pad_token_id="<pad>"), "pad_token_id='<pad>': give an integer, or None"),
    (dict(prompt_lookup_num_tokens=0), "prompt_lookup_num_tokens=0: give at least 1"),
    (dict(stop_strings=[""]), r"stop=\[''\]: give a string or several, none of them empty"),
    (5, "5 is not a generation configuration: give a GenerationConfig, its dict, or a path"),
]


@pytest.mark.parametrize(("config", "message"), VALUES)
def test_invalid_value_is_refused_with_the_way_out(config, message):
    with pytest.raises(ValueError, match=message):
        from_generation_config(config)


FILES = {
    "missing": (None, "no such generation configuration: {path}; give the file or its directory"),
    "no JSON": ("{", "{path} is not JSON"),
    "no object": ("[]", "{path} is not a generation configuration: it holds no JSON object"),
    "unknown field": (json.dumps({"chat_format": "chatml"}), "unknown fields: chat_format"),
}


@pytest.mark.parametrize("case", FILES)
def test_invalid_file_is_refused_with_the_reason(case, tmp_path):
    content, message = FILES[case]
    path = tmp_path / "generation_config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message.format(path=re.escape(str(path)))):
        from_generation_config(tmp_path)
