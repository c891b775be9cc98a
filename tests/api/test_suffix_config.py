"""Method suffix of vLLM's ``speculative_config``: its limits are options of the drafter `suffix`."""

import json
import re

import pytest

import paceline
from paceline.api.build import build_drafting
from paceline.api.loading import load
from paceline.api.speculative_config import SuffixSpeculation, read_speculative_config
from paceline.drafters.host import HostDrafting
from paceline.drafters.suffix import SuffixDrafter
from tests.api.checkpoints import pair

SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
DEPTH, REQUESTS = "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"
FACTOR, PROB = "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


def speculation(**given):
    """With the defaults of vLLM."""
    defaults = dict(num_draft_tokens=8, max_depth=24, max_outputs=10_000, factor=1.0, min_prob=0.1)
    return SuffixSpeculation(**(defaults | given))


READ = [
    (SUFFIX, speculation()),
    ({"method": "suffix"}, speculation(num_draft_tokens=None)),
    ({**SUFFIX, DEPTH: 64, REQUESTS: 0}, speculation(max_depth=64, max_outputs=0)),
    ({**SUFFIX, REQUESTS: 7, FACTOR: 2, PROB: 0}, speculation(max_outputs=7, factor=2.0, min_prob=0.0)),
    ({**SUFFIX, FACTOR: 0.5, PROB: 0.25, DEPTH: None}, speculation(factor=0.5, min_prob=0.25)),
    ({**SUFFIX, DEPTH: 257}, speculation(max_depth=257)),
    ({**SUFFIX, "rejection_sample_method": "standard"}, speculation()),
    ({**SUFFIX, "enforce_eager": True}, speculation(unused=("enforce_eager",))),
]


@pytest.mark.parametrize(("config", "wanted"), READ)
def test_configurations_are_read_from_mapping_and_json(config, wanted):
    assert read_speculative_config(config) == wanted
    assert read_speculative_config(json.dumps(config)) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({DEPTH: 1}, f"{DEPTH}=1: give 2 to 257, for the tokens of a match and of its draft"),
        ({DEPTH: 258}, f"{DEPTH}=258: give 2 to 257"),
        ({DEPTH: 0}, f"{DEPTH}=0: give a count of at least 1"),
        ({DEPTH: 2.5}, f"{DEPTH}=2.5: give a count"),
        ({REQUESTS: -1}, f"{REQUESTS}=-1: give 0 (keep no outputs) or a count"),
        ({REQUESTS: True}, f"{REQUESTS}=True: give 0"),
        ({FACTOR: -0.5}, f"{FACTOR}=-0.5: give a number of at least 0"),
        ({FACTOR: float("inf")}, f"{FACTOR}=inf: give a number of at least 0"),
        ({FACTOR: "2"}, f"{FACTOR}='2': give a number"),
        ({PROB: 1.5}, f"{PROB}=1.5: give a number from 0 to 1"),
        ({PROB: float("nan")}, f"{PROB}=nan: give a number from 0 to 1"),
        ({"prompt_lookup_max": 3}, "prompt_lookup_max=3 is for method ngram or ngram_gpu, and this is suffix"),
        (
            {"model": "owner/draft"},
            "model='owner/draft' is for method draft_model or one of a draft head, and this is suffix: leave it out",
        ),
        (
            {"draft_sample_method": "greedy"},
            "is for method draft_model or one of a draft head, and this is suffix: leave it out",
        ),
    ],
)
def test_what_is_out_of_range_or_of_another_method_is_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_speculative_config({**SUFFIX, **given})


@pytest.mark.parametrize("key", [DEPTH, REQUESTS, FACTOR, PROB])
def test_other_methods_have_none_of_its_keys(key):
    with pytest.raises(ValueError, match=f"{key}=2 is for method suffix, and this is ngram: leave it out"):
        read_speculative_config({"method": "ngram", key: 2})


def test_the_drafter_has_the_limits(target):
    config = {**SUFFIX, DEPTH: 100, REQUESTS: 7, FACTOR: 1.5, PROB: 0.2}
    drafting = build_drafting(config, target=target)
    assert drafting.num_draft_tokens == 8 and isinstance(drafting.drafter, HostDrafting)
    drafter = drafting.drafter.drafter
    assert isinstance(drafter, SuffixDrafter) and drafter.max_outputs == 7 and drafter.max_tokens == 1_000_000
    options = drafter.options
    assert (options.min_match, options.max_match, options.max_depth) == (1, 99, 100)
    assert (options.factor, options.offset, options.min_prob, options.branches) == (1.5, 0.0, 0.2, False)


def test_later_requests_copy_from_earlier_ones_and_no_token_changes(target):
    params = paceline.SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    prompts = [[5, 9, 2]] * 2
    plain = paceline.generate(target, prompts, params)
    steps = {}
    for kept in (0, 5):
        config = {**SUFFIX, REQUESTS: kept, FACTOR: 4.0}
        results = paceline.generate(target, prompts, params, drafter=config, batch_size=1)
        assert [one.token_ids for one in results] == [one.token_ids for one in plain]
        steps[kept] = [one.stats.steps for one in results]
    assert steps[5][0] == steps[0][0] and steps[5][1] < steps[0][1] / 2, "the second is a copy of the first"
