"""vLLM's ``speculative_config``: every method and key has an answer, which the documentation repeats."""

import json
import logging
import re

import pytest

import paceline
from paceline.api import build
from paceline.api.build import build_drafter, build_drafting
from paceline.api.loading import load
from paceline.api.speculative_config import ModelSpeculation, NgramSpeculation, read_speculative_config
from paceline.api.speculative_fields import HARMLESS, HONOURED, KEYS, METHODS, REFUSED, REFUSED_METHODS
from paceline.core.plan import Fixed
from paceline.core.tree import Draw
from paceline.draft_heads.files import save_head
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import pair
from tests.api.speculative_config_table import PAGE, rewrite
from tests.draft_heads.test_prophet import make
from tests.harness import request, run

ANY = frozenset(Draw)
TREE = "[(0,), (1,), (1,0), (0, 0), (0,0,0)]"

# Of vLLM 0.33, and what 0.32 has besides, as their config/speculative.py lists them.
VLLM_METHODS = """ngram draft_model suffix custom_class eagle eagle3 extract_hidden_states deepseek_mtp dots3_note_mtp
mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp glm_ocr_mtp ernie_mtp nemotron_h_mtp exaone_moe_mtp exaone4_5_mtp
qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp longcat_flash_mtp bailing_hybrid_v3_mtp minimax_m3_mtp bailing_hybrid_mtp mtp
kimi_k3_mtp pangu_ultra_moe_mtp step3p5_mtp step5_mtp hy_v3_mtp hy_v4_mtp gemma4_mtp inkling_mtp glm5_next_mtp dflash
ngram_gpu dspark medusa mlp_speculator""".split()
VLLM_KEYS = """enforce_eager num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size
quantization moe_backend attention_backend kv_cache_dtype max_model_len revision code_revision
index_share_for_mtp_iteration disable_padded_drafter_batch disable_eagle_block_drop disable_lookahead_block_hashes
draft_lm_head_quantization use_local_argmax_reduction use_heterogeneous_vocab prompt_lookup_max prompt_lookup_min
parallel_drafting target_model_config target_parallel_config num_speculative_tokens_per_batch_size draft_model_config
draft_parallel_config suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
suffix_decoding_min_token_prob draft_load_config rejection_sample_method synthetic_acceptance_rates
synthetic_acceptance_length enable_adaptive_verification draft_sample_method dspark_draft_topk xpress_topc
fly_window_size fly_entropy_threshold fly_entropy_top_k""".split()


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


def test_configured_tree_is_drafted_and_changes_no_token(target):
    config = {"model": str(pair().draft), "speculative_token_tree": TREE}
    drafting = build_drafting(config, target=target)
    assert drafting.num_draft_tokens == 3 and drafting.drafter.max_nodes(3) == 6
    params = paceline.SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    plain, drafted = (paceline.generate(target, [[5, 9, 2], [7]], params, drafter=d) for d in (None, config))
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    assert [len(r.stats.per_position_acceptance) for r in drafted] == [3, 3]


N = {"num_speculative_tokens": 4}
NGRAM = {"method": "ngram", **N}
MODEL = {"method": "draft_model", "model": "owner/draft", **N}

READ = [
    (NGRAM, NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5)),
    ({**NGRAM, "prompt_lookup_max": 3}, NgramSpeculation(num_draft_tokens=4, max_ngram=3, min_ngram=3)),
    ({**NGRAM, "prompt_lookup_min": 2}, NgramSpeculation(num_draft_tokens=4, max_ngram=2, min_ngram=2)),
    (
        {**NGRAM, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        NgramSpeculation(num_draft_tokens=4, max_ngram=4, min_ngram=2),
    ),
    (
        {**NGRAM, "model": None, "prompt_lookup_max": None, "quantization": None},
        NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5),
    ),
    (MODEL, ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY)),
    (
        {"model": "owner/draft", **N},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY),
    ),
    (
        {**MODEL, "draft_sample_method": "greedy", "revision": "main"},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision="main", draws=frozenset({Draw.FIXED})),
    ),
    (
        {**MODEL, "draft_sample_method": "probabilistic", "draft_tensor_parallel_size": 1},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY - {Draw.FIXED}),
    ),
    (
        {"model": "owner/draft", "num_speculative_tokens": 5, "speculative_token_tree": TREE},
        ModelSpeculation(
            num_draft_tokens=3,
            model="owner/draft",
            revision=None,
            draws=ANY,
            tree=Topology(((0,), (1,), (0, 0), (1, 0), (0, 0, 0))),
        ),
    ),
    (
        {"model": "owner/draft", "speculative_token_tree": "((0,), (1,))", "draft_sample_method": "greedy"},
        ModelSpeculation(
            num_draft_tokens=1,
            model="owner/draft",
            revision=None,
            draws=frozenset({Draw.FIXED}),
            tree=Topology(((0,), (1,))),
        ),
    ),
    (
        {"method": "ngram_gpu", "prompt_lookup_max": 3},
        NgramSpeculation(num_draft_tokens=None, max_ngram=3, min_ngram=3),
    ),
    ({"model": "ngram", **N}, NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5)),
    (
        {**MODEL, "parallel_drafting": False, "moe_backend": "triton", "draft_tensor_parallel_size": 1},
        ModelSpeculation(num_draft_tokens=4, model="owner/draft", revision=None, draws=ANY, unused=("moe_backend",)),
    ),
    ({**NGRAM, "rejection_sample_method": "strict"}, NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5)),
    ({**NGRAM, "rejection_sample_method": "standard"}, NgramSpeculation(num_draft_tokens=4, max_ngram=5, min_ngram=5)),
]


@pytest.mark.parametrize(("config", "speculation"), READ)
def test_speculative_config_is_parsed_from_mapping_and_json(config, speculation):
    assert read_speculative_config(config) == speculation
    assert read_speculative_config(json.dumps(config, indent=1)) == speculation


REFUSED_CONFIGS = [
    ({}, "speculative_config without method and model: give method, one of ngram, ngram_gpu, draft_model"),
    ({"method": ["ngram"], **N}, "speculative_config: unknown method=['ngram'], near ngram; give ngram, ngram_gpu"),
    ({"method": "eagel3", **N}, "unknown method='eagel3', near eagle3; give ngram"),
    ({"model": "package.Proposer", **N}, "model='package.Proposer', which is a class of Python in vLLM: a class that"),
    (
        {**MODEL, "quantization": "fp8", "num_spec_tokens": 3, "parallel_drafting": False},
        "speculative_config: quantization='fp8': load the draft quantized, by quantization of load or "
        "--draft-quantization; unknown key 'num_spec_tokens', near num_speculative_tokens",
    ),
    ({**NGRAM, "colour": 1}, "unknown key 'colour': leave it out"),
    ({**NGRAM, "num_spec": 1}, "unknown key 'num_spec', near num_speculative_tokens"),
    ({**MODEL, "use_heterogeneous_vocab": 0}, "use_heterogeneous_vocab=0: give true or false"),
    (
        {**MODEL, "speculative_token_tree": "[(0,), 1]"},
        "speculative_token_tree='[(0,), 1]': give a list of tuples, like '[(0,), (1,), (0, 0)]'",
    ),
    ({**MODEL, "speculative_token_tree": "[(False,)]"}, "give a list of tuples"),
    ({**MODEL, "speculative_token_tree": "[(0,"}, "give a list of tuples"),
    ({**MODEL, "speculative_token_tree": "list()"}, "give a list of tuples"),
    ({**MODEL, "speculative_token_tree": "[]"}, "give a list of tuples"),
    (
        {**MODEL, "speculative_token_tree": "[(0,), (1, 0)]"},
        "speculative_token_tree='[(0,), (1, 0)]': tree node (1, 0) without its parent (1,): give that one too",
    ),
    (
        {**MODEL, "speculative_token_tree": TREE},
        "speculative_config: num_speculative_tokens=4 and a speculative_token_tree of 5 nodes: give 5, or leave it out",
    ),
    (
        {**NGRAM, "speculative_token_tree": TREE},
        f"'{TREE}' is for method draft_model or one of a draft head, and this is ngram: leave it out",
    ),
    (
        {**NGRAM, "model": "owner/draft"},
        "model='owner/draft' is for method draft_model or one of a draft head, and this is ngram",
    ),
    (
        {**MODEL, "prompt_lookup_max": 3},
        "prompt_lookup_max=3 is for method ngram or ngram_gpu, and this is draft",
    ),
    ({**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens=0: give a count of at least 1"),
    ({**NGRAM, "num_speculative_tokens": True}, "num_speculative_tokens=True: give a count"),
    ({**NGRAM, "num_speculative_tokens": "4"}, "num_speculative_tokens='4': give a count"),
    ({**NGRAM, "prompt_lookup_min": 0}, "prompt_lookup_min=0: give a count of at least 1"),
    (
        {**NGRAM, "prompt_lookup_max": 2, "prompt_lookup_min": 3},
        "speculative_config: prompt_lookup_min=3 is more than prompt_lookup_max=2: lower it",
    ),
    (
        {"method": "draft_model", **N},
        "speculative_config: method='draft_model' needs model: give a directory or Hub id",
    ),
    ({**MODEL, "model": 5}, "speculative_config: model=5: give a string"),
    (
        {**NGRAM, "draft_tensor_parallel_size": 2},
        "speculative_config: draft_tensor_parallel_size=2: a draft runs on its target's device; give 1",
    ),
    (
        {**MODEL, "draft_sample_method": "beam"},
        "speculative_config: draft_sample_method='beam' is not supported; known: greedy, probabilistic",
    ),
    ({**NGRAM, "rejection_sample_method": "block"}, "rejection_sample_method='block': give the verifier 'block'"),
    (
        {**NGRAM, "rejection_sample_method": "loose"},
        "speculative_config: rejection_sample_method='loose' is not supported; known: standard, strict",
    ),
]


@pytest.mark.parametrize(("config", "message"), REFUSED_CONFIGS)
def test_unsupported_speculative_config_is_refused(target, config, message, monkeypatch):
    monkeypatch.setattr("paceline.api.build.load", None)  # any work would call it
    for given in (config, json.dumps(config)):
        with pytest.raises(ValueError, match=re.escape(message)):
            build_drafting(given, target=target)


def test_every_method_of_vllm_has_an_answer():
    assert {*VLLM_METHODS} == METHODS.keys() | REFUSED_METHODS.keys()
    for method in VLLM_METHODS:
        config = {
            "method": method,
            "num_speculative_tokens": 3,
            "model": "owner/draft" if method in HONOURED["model"][0] else None,
        }
        if method in METHODS:
            assert read_speculative_config(config).num_draft_tokens == 3
        else:
            with pytest.raises(ValueError, match=re.escape(f"method={method!r}: {REFUSED_METHODS[method]}")):
                read_speculative_config(config)


def test_every_key_of_vllm_has_an_answer():
    assert {*VLLM_KEYS} <= {*KEYS} and len(KEYS) == len({*KEYS})
    for key in KEYS:
        if key in REFUSED:
            with pytest.raises(ValueError, match=re.escape(f"{key}=7: {REFUSED[key].reason}")):
                read_speculative_config({**NGRAM, key: 7})
        elif key in HARMLESS:
            assert read_speculative_config({**NGRAM, key: True}).unused == (key,)
            assert read_speculative_config({**NGRAM, key: False}).unused == ()
        else:
            assert HONOURED[key][0] and {*HONOURED[key][0]} <= {*METHODS}


def test_page_has_the_table_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert rewrite(page) == page, "run python -m tests.api.speculative_config_table"


def test_keys_without_effect_are_noted_once(target, caplog):
    build._note_unused.cache_clear()
    config = {**NGRAM, "attention_backend": "FLASH_ATTN", "enforce_eager": True, "disable_padded_drafter_batch": False}
    with caplog.at_level(logging.WARNING, "paceline"):
        for _ in range(2):
            build_drafting(config, target=target)
    [message] = [record.getMessage() for record in caplog.records]
    assert "attention_backend: the draft's kernels are chosen here; enforce_eager: a draft runs as its" in message
    assert "disable_padded" not in message


PARAMS = paceline.SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)


def test_length_is_as_many_as_pay_where_none_is_given(target):
    config = {"method": "ngram", "prompt_lookup_max": 2}
    assert build_drafting(config, target=target).num_draft_tokens is None
    for given, deepest in (("auto", 8), (3, 3)):
        engine = paceline.Engine(target, drafter=config, num_draft_tokens=given, max_length=90)
        assert engine.decoder.plan.max_draft_tokens == deepest
    candidates = build_drafter([config, {"model": str(pair().draft)}], target=target)
    assert len(candidates.drafters) == 2


def test_two_draft_lengths_are_refused(target):
    for given in (3, Fixed(4)):
        with pytest.raises(ValueError, match=r"num_draft_tokens=.* and drafts of 4 tokens by speculative_config: give"):
            paceline.generate(target, [[5, 9]], PARAMS, drafter=NGRAM, num_draft_tokens=given)
    assert build_drafting(NGRAM, target=target).length(4) == 4


@pytest.mark.parametrize("kind", ["prophet", "linear_prophet", "early_exit", "block"])
def test_head_drafts_what_it_was_trained_for_by_default(kind, target, tmp_path):
    head = make(
        kind, target.lm, **{"early_exit": {"exit_layer": 1}, "block": {"block_size": 3}}.get(kind, {"depth": 2})
    )
    save_head(head, tmp_path, target_name="target", fingerprint=fingerprint(target.lm))
    most = 8 if kind == "early_exit" else 2
    assert head.config.trained_depth == (None if kind == "early_exit" else 2)
    plain = paceline.generate(target, [[5, 9, 2]], PARAMS, drafter=None)[0]
    drafting = build_drafting({"model": str(tmp_path)}, target=target)
    assert drafting.num_draft_tokens is None and drafting.drafter.max_nodes(8) - 1 == most
    assert drafting.drafter.ends_early  # as a chain of any length
    [drafted] = paceline.generate(target, [[5, 9, 2]], PARAMS, drafter={"model": str(tmp_path)}, num_draft_tokens=6)
    assert drafted.token_ids == plain.token_ids
    assert sum(drafted.stats.drafted[most:]) == 0 < drafted.stats.drafted[1]
    longer = build_drafting({"model": str(tmp_path), "num_speculative_tokens": 4}, target=target)
    assert longer.drafter.max_nodes(4) - 1 == (2 if kind in ("linear_prophet", "block") else 4)


def test_method_of_a_head_takes_heads_of_its_kind_alone(target, tmp_path):
    save_head(make("medusa", target.lm), tmp_path, target_name="target", fingerprint=fingerprint(target.lm))
    for method in ("medusa", "draft_model"):
        assert type(build_drafting({"method": method, "model": str(tmp_path)}, target=target).drafter) is MedusaDrafter
    with pytest.raises(ValueError, match=r"is a medusa head, and the method asks for eagle3: give another method"):
        build_drafting({"method": "eagle3", "model": str(tmp_path)}, target=target)
    with pytest.raises(ValueError, match=r"method='medusa': .* is no draft head; give one, or method 'draft_model'"):
        build_drafting({"method": "medusa", "model": str(pair().draft)}, target=target)
    with pytest.raises(ValueError, match="method='medusa' needs model: give a directory or Hub id"):
        build_drafting({"method": "medusa"}, target=target)


def test_revision_of_a_head_is_refused(target, tmp_path):
    save_head(make("prophet", target.lm), tmp_path, target_name="target", fingerprint=fingerprint(target.lm))
    with pytest.raises(ValueError, match=r"revision='v2': .* is a local directory; leave it out"):
        build_drafting({"model": str(tmp_path), "revision": "v2"}, target=target)


TEXTS = [
    ('{"method": ', "speculative_config '{\"method\": ' is not JSON: "),
    ("{} {}", "speculative_config '{} {}' is not JSON: "),
    ("[]", "speculative_config '[]' is not a JSON object: give one, like '{\"method\": \"ngram\"}'"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS)
def test_speculative_config_that_is_not_a_json_object_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_speculative_config(text)


def test_speculative_config_sets_the_ngram_sizes(target):
    drafting = build_drafting(
        '\n {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 2}', target=target
    )
    assert drafting.num_draft_tokens == 6
    assert (drafting.drafter.max_ngram, drafting.drafter.min_ngram) == (2, 2)


@pytest.mark.parametrize(
    ("method", "draws"),
    [(None, ANY), ("greedy", {Draw.FIXED}), ("probabilistic", ANY - {Draw.FIXED})],
)
def test_speculative_config_sets_the_draw_and_changes_no_token(target, method, draws):
    config = {"method": "draft_model", "model": str(pair().draft), "num_speculative_tokens": 3}
    drafting = build_drafting(config | ({"draft_sample_method": method} if method else {}), target=target)
    assert drafting.num_draft_tokens == 3 and drafting.drafter.draws == draws
    texts = [request([5, 6, 7], max_tokens=12, temperature=0.8, seed=4)]
    plain = run(NoDrafter(), "coupled", texts, target=target.lm, k=3)
    drafted = run(drafting.drafter, "coupled", texts, target=target.lm, k=3)
    assert drafted.texts == plain.texts and sum(drafted.summary.drafted) > 0


def test_revision_of_a_local_draft_is_refused(target):
    config = {"model": str(pair().draft), "revision": "v2", **N}
    with pytest.raises(ValueError, match=r"revision='v2': .*draft is a local directory"):
        build_drafting(config, target=target)
