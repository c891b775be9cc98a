import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import paceline
from paceline.api.build import Drafting, build_drafter, build_drafting
from paceline.api.loading import load
from paceline.api.speculative_config import ModelSpeculation, NgramSpeculation, read_speculative_config
from paceline.core.registry import Registry
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.grow.shapes import Topology
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from tests import tiny
from tests.api.checkpoints import CONTEXT, VOCAB, make_tokenizer, other_vocabulary, pair, without_tokenizer
from tests.harness import request, run

ANY = frozenset(Draw)
TREE = "[(0,), (1,), (1,0), (0, 0), (0,0,0)]"


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


def draft_model(**overrides):
    """A transformers model in memory with the target's vocabulary."""
    return tiny.llama(seed=3, **{"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, **overrides})


def test_drafters_are_built_from_whatever_names_them(target):
    draft = load(pair().draft, device="cpu")
    assert isinstance(build_drafter(None, target=target), NoDrafter)
    assert isinstance(build_drafter("ngram", target=target), NgramDrafter)
    for given in (draft, pair().draft, str(pair().draft)):
        assert isinstance(build_drafter(given, target=target), ModelDrafter)
    ready = NgramDrafter(max_ngram=2)
    assert build_drafter(ready, target=target) is ready
    assert build_drafting(ready, target=target) == Drafting(drafter=ready, num_draft_tokens=None)


def test_draft_directory_takes_the_precision_of_the_target():
    target = load(pair().target, dtype=torch.float32, device="cpu")
    drafter = build_drafter(pair().draft, target=target)
    assert drafter.lm.dtype is target.dtype is torch.float32
    drafter = build_drafter({"model": str(pair().draft), "num_speculative_tokens": 3}, target=target)
    assert drafter.lm.dtype is torch.float32
    assert load(pair().target).dtype is torch.float64


def test_draft_without_a_tokenizer_fits_by_size(target, tmp_path):
    folder = without_tokenizer(tmp_path / "draft", num_hidden_layers=1)
    assert isinstance(build_drafter(folder, target=target), ModelDrafter)
    assert isinstance(build_drafter(folder, target=replace(target, tokenizer=None)), ModelDrafter)


def test_draft_of_another_vocabulary_is_refused_with_both_sizes(target, tmp_path):
    folder = other_vocabulary(tmp_path / "draft")
    sizes = rf"target .*target \(297 tokens\) and draft {folder} \(280 tokens\) have different vocabularies; take"
    for given in (folder, load(folder, device="cpu"), {"model": str(folder), "num_speculative_tokens": 2}):
        with pytest.raises(ValueError, match=sizes):
            build_drafter(given, target=target)


def test_padded_vocabularies_of_one_tokenizer_fit(target, tmp_path):
    folder = without_tokenizer(tmp_path / "draft", vocab_size=304, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"\(320 tokens\) and draft .* \(304 tokens\)"):
        build_drafter(folder, target=target)  # nothing proves that they are of one tokenizer
    make_tokenizer().save(str(folder / "tokenizer.json"))
    assert isinstance(build_drafter(folder, target=target), ModelDrafter)


def test_target_drafts_for_itself(target, tmp_path):
    assert build_drafter(target, target=target).lm.lm is target.lm
    bare = load(without_tokenizer(tmp_path / "bare"), device="cpu")
    assert build_drafter(bare, target=bare).lm.lm is bare.lm
    eager = replace(bare, enforce_eager=True)
    assert build_drafter(eager, target=eager).lm is bare.lm


def test_transformers_model_drafts_over_its_own_weights(target):
    model = draft_model(num_hidden_layers=1)
    drafter = build_drafter(model, target=target)
    assert isinstance(drafter, ModelDrafter)
    with torch.no_grad():
        model.lm_head.weight.fill_(0.5)
    assert bool((drafter.lm.lm.head.weight == 0.5).all())


def test_transformers_model_of_another_vocabulary_is_refused(target):
    message = r"target .*target \(320 tokens\) and draft LlamaForCausalLM \(90 tokens\) have different vocabularies"
    with pytest.raises(ValueError, match=message):
        build_drafter(draft_model(vocab_size=90, num_hidden_layers=1), target=target)


def test_draft_on_another_device_is_refused_with_both(target):
    lm = SimpleNamespace(device=torch.device("meta"), vocab_size=VOCAB)
    with pytest.raises(ValueError, match=r"is on cpu and draft .*draft on meta: load both on one device"):
        build_drafter(replace(load(pair().draft, device="cpu"), lm=lm), target=target)


KNOWN = ", ".join(DRAFTERS)
UNKNOWN = {
    "unknown name": (
        "eagle9",
        f"unknown drafter 'eagle9': no such directory; known names: {KNOWN}; or give",
    ),
    "model without a model": ("model", "drafter 'model' needs a draft model: give its directory instead of the name"),
    "empty name": ("", "unknown drafter ''"),
    "a number": (
        5,
        f"a drafter of type int; known names: {KNOWN}; or give a draft model's directory, Hub id",
    ),
    "names": (["ngram"], "a drafter of type list; known names"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_names_no_drafter_is_refused_with_what_is_known(target, case):
    drafter, message = UNKNOWN[case]
    with pytest.raises(ValueError, match=message):
        build_drafting(drafter, target=target)


def test_missing_directory_is_refused_as_such(target, tmp_path):
    for given in (tmp_path / "nowhere", str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match=r"no such model directory: .*nowhere"):
            build_drafter(given, target=target)


class NeedsOptions(NgramDrafter.__base__):
    """A drafter of another package that cannot be made from its name alone."""

    draws = ANY

    def __init__(self, *, heads, depth=2):
        pass

    def propose(self, batch, plan):
        raise NotImplementedError


def test_registered_drafter_that_needs_options_is_refused_by_their_names(target, monkeypatch):
    entries = {**DRAFTERS.entries, "heads": f"{__name__}:NeedsOptions"}
    monkeypatch.setattr("paceline.api.build.DRAFTERS", Registry("drafter", entries))
    with pytest.raises(ValueError, match="drafter 'heads' needs heads: give a NeedsOptions instead of the name"):
        build_drafter("heads", target=target)


def test_a_configured_tree_is_drafted_to_its_depth_and_leaves_the_text_alone(target):
    config = {"model": str(pair().draft), "speculative_token_tree": TREE}
    drafting = build_drafting(config, target=target)
    assert drafting.num_draft_tokens == 3 and drafting.drafter.max_nodes(3) == 6
    params = paceline.SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    plain, drafted = (paceline.generate(target, [[5, 9, 2], [7]], params, drafter=d) for d in (None, config))
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]
    assert [len(r.stats.per_position_acceptance) for r in drafted] == [3, 3]


N = {"num_speculative_tokens": 4}
NGRAM = {"method": "ngram", **N}
MODEL = {"method": "draft_model", "model": "owner/draft", **N}

READ = {
    "ngram": (NGRAM, NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5)),
    "ngram longest": (
        {**NGRAM, "prompt_lookup_max": 3},
        NgramSpeculation(num_draft_tokens=4, max_ngram=3, min_ngram=3),
    ),
    "ngram shortest": (
        {**NGRAM, "prompt_lookup_min": 2},
        NgramSpeculation(num_draft_tokens=4, max_ngram=2, min_ngram=2),
    ),
    "ngram both": (
        {**NGRAM, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        NgramSpeculation(num_draft_tokens=4, max_ngram=4, min_ngram=2),
    ),
    "ngram, others not given": (
        {**NGRAM, "model": None, "prompt_lookup_max": None, "quantization": None},
        NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5),
    ),
    "model": (MODEL, ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY)),
    "model without method": (
        {"model": "owner/draft", **N},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY),
    ),
    "greedy model": (
        {**MODEL, "draft_sample_method": "greedy", "revision": "main"},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision="main", draws=frozenset({Draw.FIXED})),
    ),
    "drawing model": (
        {**MODEL, "draft_sample_method": "probabilistic", "draft_tensor_parallel_size": 1},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY - {Draw.FIXED}),
    ),
    "tree": (
        {"model": "owner/draft", "num_speculative_tokens": 5, "speculative_token_tree": TREE},
        ModelSpeculation(
            num_draft_tokens=3,
            model="owner/draft",
            revision=None,
            draws=ANY,
            tree=Topology(((0,), (1,), (0, 0), (1, 0), (0, 0, 0))),
        ),
    ),
    "tree that says its size": (
        {"model": "owner/draft", "speculative_token_tree": "((0,), (1,))", "draft_sample_method": "greedy"},
        ModelSpeculation(
            num_draft_tokens=1,
            model="owner/draft",
            revision=None,
            draws=frozenset({Draw.FIXED}),
            tree=Topology(((0,), (1,))),
        ),
    ),
    "rejection as always": (
        {**NGRAM, "rejection_sample_method": "strict"},
        NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5),
    ),
    "rejection by its new name": (
        {**NGRAM, "rejection_sample_method": "standard"},
        NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_speculative_config_means_the_same_as_mapping_and_as_json(case):
    config, speculation = READ[case]
    assert read_speculative_config(config) == speculation
    assert read_speculative_config(json.dumps(config, indent=1)) == speculation


REFUSED = {
    "nothing": ({}, "speculative_config without method and model: give method, one of ngram, draft_model"),
    "unknown method": (
        {"method": "eagle3", **N},
        "speculative_config: method='eagle3' is not supported; known: ngram, draft_model",
    ),
    "method that is no name": ({"method": ["ngram"], **N}, "method=['ngram'] is not supported; known"),
    "unknown keys": (
        {**MODEL, "quantization": "fp8", "parallel_drafting": False},
        "speculative_config: quantization='fp8', parallel_drafting=False cannot be honoured with method='draft_model'; "
        "known: method, num_speculative_tokens, rejection_sample_method, model, revision, draft_sample_method, "
        "speculative_token_tree, draft_tensor_parallel_size",
    ),
    "tree that is no list": (
        {**MODEL, "speculative_token_tree": "[(0,), 1]"},
        "speculative_token_tree='[(0,), 1]': give a list of tuples, like '[(0,), (1,), (0, 0)]'",
    ),
    "tree of truths": ({**MODEL, "speculative_token_tree": "[(False,)]"}, "give a list of tuples"),
    "broken tree": ({**MODEL, "speculative_token_tree": "[(0,"}, "give a list of tuples"),
    "tree that calls": ({**MODEL, "speculative_token_tree": "list()"}, "give a list of tuples"),
    "no tree": ({**MODEL, "speculative_token_tree": "[]"}, "give a list of tuples"),
    "tree without a node": (
        {**MODEL, "speculative_token_tree": "[(0,), (1, 0)]"},
        "speculative_token_tree='[(0,), (1, 0)]': tree node (1, 0) without its parent (1,): give that one too",
    ),
    "tree of another size": (
        {**MODEL, "speculative_token_tree": TREE},
        "speculative_config: num_speculative_tokens=4 and a speculative_token_tree of 5 nodes: give 5, or leave it out",
    ),
    "tree for copies": (
        {**NGRAM, "speculative_token_tree": TREE},
        "cannot be honoured with method='ngram'",
    ),
    "key of the other method": (
        {**NGRAM, "draft_sample_method": "greedy"},
        "draft_sample_method='greedy' cannot be honoured with method='ngram'; known: method, num_speculative_tokens, "
        "rejection_sample_method, prompt_lookup_max, prompt_lookup_min",
    ),
    "lookup with a model": (
        {**MODEL, "prompt_lookup_max": 3},
        "prompt_lookup_max=3 cannot be honoured with method='draft_model'",
    ),
    "no number": (
        {"method": "ngram"},
        "speculative_config without num_speculative_tokens: give how many tokens to draft a step",
    ),
    "zero tokens": ({**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens=0: give a count of at least 1"),
    "truth as tokens": ({**NGRAM, "num_speculative_tokens": True}, "num_speculative_tokens=True: give a count"),
    "tokens as text": ({**NGRAM, "num_speculative_tokens": "4"}, "num_speculative_tokens='4': give a count"),
    "no match": ({**NGRAM, "prompt_lookup_min": 0}, "prompt_lookup_min=0: give a count of at least 1"),
    "crossed matches": (
        {**NGRAM, "prompt_lookup_max": 2, "prompt_lookup_min": 3},
        "speculative_config: prompt_lookup_min=3 is more than prompt_lookup_max=2: lower it",
    ),
    "no model": (
        {"method": "draft_model", **N},
        "speculative_config: method='draft_model' needs model: give a directory or Hub id",
    ),
    "model that is no name": ({**MODEL, "model": 5}, "speculative_config: model=5: give a string"),
    "parallel draft": (
        {**MODEL, "draft_tensor_parallel_size": 2},
        "speculative_config: draft_tensor_parallel_size=2 is not supported; give 1",
    ),
    "unknown draw": (
        {**MODEL, "draft_sample_method": "beam"},
        "speculative_config: draft_sample_method='beam' is not supported; known: greedy, probabilistic",
    ),
    "lossy verification": (
        {**NGRAM, "rejection_sample_method": "synthetic"},
        "speculative_config: rejection_sample_method='synthetic' is not supported; known: standard, strict",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_speculative_config_that_cannot_be_honoured_is_refused_by_name(target, case, monkeypatch):
    config, message = REFUSED[case]
    monkeypatch.setattr("paceline.api.build.load", None)  # any work would call it
    for given in (config, json.dumps(config)):
        with pytest.raises(ValueError, match=re.escape(message)):
            build_drafting(given, target=target)


TEXTS = {
    "broken": ('{"method": ', "speculative_config '{\"method\": ' is not JSON: "),
    "trailing": ("{} {}", "speculative_config '{} {}' is not JSON: "),
    "list": ("[]", "speculative_config '[]' is no JSON object: give one, like '{\"method\": \"ngram\"}'"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_that_is_no_json_object_is_refused(case):
    text, message = TEXTS[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        read_speculative_config(text)


def test_ngram_of_a_configuration_matches_as_asked(target):
    drafting = build_drafting(
        '\n {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 2}', target=target
    )
    assert drafting.num_draft_tokens == 6
    assert (drafting.drafter.max_ngram, drafting.drafter.min_ngram) == (2, 2)


@pytest.mark.parametrize(
    ("method", "draws"),
    [(None, ANY), ("greedy", {Draw.FIXED}), ("probabilistic", ANY - {Draw.FIXED})],
)
def test_model_of_a_configuration_draws_as_asked_and_leaves_the_text(target, method, draws):
    config = {"method": "draft_model", "model": str(pair().draft), "num_speculative_tokens": 3}
    drafting = build_drafting(config | ({"draft_sample_method": method} if method else {}), target=target)
    assert drafting.num_draft_tokens == 3 and drafting.drafter.draws == draws
    texts = [request([5, 6, 7], max_tokens=12, temperature=0.8, seed=4)]
    plain = run(NoDrafter(), "coupled", texts, target=target.lm, k=3)
    drafted = run(drafting.drafter, "coupled", texts, target=target.lm, k=3)
    assert drafted.texts == plain.texts and sum(drafted.summary.drafted) > 0


def test_revision_of_a_local_draft_is_refused_where_it_is_loaded(target):
    config = {"model": str(pair().draft), "revision": "v2", **N}
    with pytest.raises(ValueError, match=r"revision='v2': .*draft is a local directory"):
        build_drafting(config, target=target)


def test_draft_directory_may_hold_a_brace_in_its_name(target, tmp_path):
    shutil.copytree(pair().draft, tmp_path / "{draft}")
    assert isinstance(build_drafter(tmp_path / "{draft}", target=target), ModelDrafter)
