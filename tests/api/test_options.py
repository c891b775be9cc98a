"""The table of options matches the code: refused options raise, the others work on every path."""

import re
from dataclasses import fields
from functools import cache

import pytest
import torch

from paceline import hf
from paceline.api import SamplingParams, load
from paceline.api.generation_fields import HONOURED, REFUSED
from paceline.api.params import NOT_YET
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.hf.inputs import ARGUMENTS
from paceline.hf.options import DROP_IN, OPTIONS, Guarantee
from paceline.models import loading
from paceline.verifiers import VERIFIERS
from tests import tiny
from tests.api.checkpoints import pair
from tests.api.engines import engine
from tests.api.test_generation_config import ACTIVE as ACTIVE_FIELDS
from tests.api.test_params import ACTIVE as REFUSED_VALUES

BY_NAME = {option.name: option for option in OPTIONS}
FREE = range(200, 320)
# A value of every supported option, and the other options it needs to change the output.
ACTIVE = {
    "guidance_scale": dict(guidance_scale=3.0),
    "negative_prompt": dict(guidance_scale=3.0, negative_prompt="def add("),
    "logit_bias": dict(logit_bias={token: 3.0 for token in FREE}),
    "sequence_bias": dict(sequence_bias=[[[token], 3.0] for token in FREE] + [[[250, token], 4.0] for token in FREE]),
    "suppress_tokens": dict(suppress_tokens=list(FREE)),
    "bad_words_ids": dict(bad_words_ids=[[token] for token in FREE] + [[100, token] for token in range(100)]),
    "bad_words": dict(bad_words=["e", "s", "return", "for item"]),
    "allowed_token_ids": dict(allowed_token_ids=list(FREE)),
    "repetition_penalty": dict(repetition_penalty=3.0, temperature=0.3),
    "frequency_penalty": dict(frequency_penalty=2.0, temperature=0.3),
    "presence_penalty": dict(presence_penalty=2.0, temperature=0.3),
    "no_repeat_ngram_size": dict(no_repeat_ngram_size=1),
    "begin_suppress_tokens": dict(begin_suppress_tokens=list(FREE)),
    "min_tokens": dict(min_tokens=12, stop_token_ids=list(range(120, 180))),
    "temperature": dict(temperature=0.4),
    "top_k": dict(top_k=3),
    "top_p": dict(top_p=0.4),
    "min_p": dict(min_p=0.3),
    "typical_p": dict(typical_p=0.3),
    "epsilon_cutoff": dict(epsilon_cutoff=0.03),
    "eta_cutoff": dict(eta_cutoff=0.2),
    "filter_order": dict(min_p=0.1, top_p=0.6, filter_order="vllm"),
    "seed": dict(seed=99),
    "n": dict(n=2),
    "max_tokens": dict(max_tokens=7),
    "stop_token_ids": dict(stop_token_ids=list(range(120, 180))),
    "ignore_eos": dict(ignore_eos=True, logit_bias={0: 3.0}),
    "stop": dict(stop=["e", "s", "("]),
    "include_stop_str_in_output": dict(include_stop_str_in_output=True, stop=["e", "s", "("]),
    "logprobs": dict(logprobs=2),
    "prompt_logprobs": dict(prompt_logprobs=2),
    "detokenize": dict(detokenize=False),
    "skip_special_tokens": dict(skip_special_tokens=False, ignore_eos=True, logit_bias={0: 3.0}),
    "structured_outputs": dict(structured_outputs={"regex": "[a-z]+"}),
    "logits_processors": dict(logits_processors=[lambda prompt, output, logits: -logits]),
}
HONOURED_OPTIONS = [option.name for option in OPTIONS if option.refusal is None]


@cache
def target():
    return load(pair().target, dtype="float64", device="cpu")


@cache
def draft(path):
    return loading.load(path, dtype=torch.float64, device=torch.device("cpu"))


def drafter(path, lm=None):
    if path == "plain":
        return "none"
    shape = Topology.branching((2, 2)) if path == "tree" else None
    return ModelDrafter(lm=lm or draft(pair().draft), shape=shape)


def run(drafting, fields_, verifier="coupled"):
    options = SamplingParams(**{"max_tokens": 20, "seed": 5, **fields_})
    guidance = "guidance_scale" in fields_
    return engine(drafting, verifier, target=target(), batch_size=3, guidance=guidance).generate(
        ["for item in", "def add("], options
    )


def test_every_parameter_is_in_the_table_once():
    assert sorted(option.name for option in OPTIONS) == sorted(field.name for field in fields(SamplingParams))
    assert {option.name for option in OPTIONS if option.refusal is not None} == set(NOT_YET)


@pytest.mark.parametrize("name", NOT_YET)
def test_refused_options_raise_with_their_reason(name):
    with pytest.raises(ValueError, match=f"^{name}=.*{BY_NAME[name].refusal}"):
        SamplingParams(**{name: REFUSED_VALUES[name]})


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", HONOURED_OPTIONS)
def test_supported_options_give_the_same_output_on_chains_and_trees(name):
    plain = run("none", ACTIVE[name])
    for path in ("chain", "tree"):
        found = run(drafter(path), ACTIVE[name])
        assert [(one.token_ids, one.text, one.finish_reason) for one in found] == [
            (one.token_ids, one.text, one.finish_reason) for one in plain
        ]
        assert any(sum(one.stats.accepted) for one in found)


def test_options_of_the_table_change_the_output():
    plain = run("none", {})
    for name in HONOURED_OPTIONS:
        others = {key: value for key, value in ACTIVE[name].items() if key != name}
        base = plain if not others else run("none", others)
        assert [describe(one) for one in run("none", ACTIVE[name])] != [describe(one) for one in base], name


def describe(result):
    """Everything that options may change."""
    return result.token_ids, result.text, result.logprobs, result.prompt_logprobs, result.sample


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [option.name for option in OPTIONS if option.drafts and option.refusal is None])
def test_draft_of_the_same_model_is_accepted_whole(name):
    for verifier in ("coupled", "rejection", "recursive"):
        for one in run(drafter("chain", lm=target().lm), ACTIVE[name], verifier):
            assert one.stats.acceptance_rate == 1.0 or one.finish_reason == "stop", verifier
    for one in run(drafter("tree", lm=target().lm), ACTIVE[name], "coupled"):
        assert one.stats.mean_acceptance_length > 2.5


def banned(results, tokens):
    return any(token in tokens for one in results for token in one.token_ids)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verifier", VERIFIERS.builtin)
def test_bans_are_kept_by_every_verifier(verifier):
    lossy = VERIFIERS.find(verifier)
    bans = {
        "suppress_tokens": lambda found: not banned(found, FREE),
        "allowed_token_ids": lambda found: not banned(found, range(200)),
        "no_repeat_ngram_size": lambda found: all(len(set(one.token_ids)) == len(one.token_ids) for one in found),
        "begin_suppress_tokens": lambda found: all(one.token_ids[0] not in FREE for one in found),
        "min_tokens": lambda found: all(len(one.token_ids) >= 12 for one in found),
        "bad_words_ids": lambda found: not banned(found, FREE),
    }
    for name, holds in bans.items():
        assert BY_NAME[name].guarantee is Guarantee.EVERY
        assert holds(run(drafter("chain"), ACTIVE[name], verifier)), (name, lossy)


def test_guarantees_list_the_right_verifiers():
    assert set(Guarantee.EVERY.verifiers) == set(VERIFIERS.builtin)
    assert set(Guarantee.LOSSLESS.verifiers) == {name for name in VERIFIERS.builtin if not name.startswith("lossy_")}
    assert set(Guarantee.SAME_TOKENS.verifiers) == {"coupled", "match"}
    assert {option.name for option in OPTIONS if option.guarantee is Guarantee.SAME_TOKENS} == {"seed"}


# The drop-in.


def test_table_covers_every_supported_field_of_the_drop_in():
    named = {option.field for option in OPTIONS if option.field is not None and option.refusal is None}
    elsewhere = {"do_sample", "max_length", "min_length", "pad_token_id", "bos_token_id", "max_time"}
    elsewhere |= {"return_dict_in_generate", "output_scores", "output_logits"}
    elsewhere |= {"decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"}
    drafting = {"num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"}
    assert named | elsewhere | drafting == set(HONOURED) | (named & {"logits_processor", "negative_prompt_ids"})


def test_refused_fields_of_the_drop_in_raise():
    ids = torch.tensor([[5, 9, 2]])
    assert set(DROP_IN) == set(REFUSED) | set(ARGUMENTS)
    for name in DROP_IN:
        value, others = ACTIVE_FIELDS.get(name, (object(), {}))
        message = f"{name} is not supported: leave it out"
        if name in REFUSED:
            message = f"{name}={value!r} is not supported: give {name}={(*REFUSED[name].neutral, None)[0]!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            hf.generate(tiny.llama(), ids, **{name: value}, **others)
