import time
import warnings
from dataclasses import replace

import pytest
import torch

from paceline.api import load
from paceline.bench.peers.transformers import (
    ASSISTED,
    CONFIDENT,
    LOOKUP,
    PLAIN,
    Transformers,
    load_peer,
    transformers_decoding,
)
from paceline.bench.raw import RawFile
from paceline.bench.sweep import Cell, Protocols, run_sweep
from paceline.bench.workbench import ModelBench, check_batches, check_lengths
from tests.api.checkpoints import pair

PROMPTS = ["def add(first,", "x = 1\n", "for item in items:\n    print(item)\nfor", "import os"]


@pytest.fixture(scope="module")
def bench():
    target = load(pair().target)
    alone = ModelBench(
        target=target,
        draft=load(pair().draft),
        target_path=pair().target,
        draft_path=pair().draft,
        prompts=[target.tokenizer.encode(prompt) for prompt in PROMPTS],
        seed=3,
    )
    return replace(alone, peers=[Transformers(setting=alone.setting())])


def cell(drafter, num_draft_tokens=3, batch_size=1, temperature=0.0, top_p=1.0):
    return Cell(
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        temperature=temperature,
        max_tokens=12,
        top_p=top_p,
    )


@pytest.mark.parametrize(
    "chosen",
    [
        cell("ngram"),
        cell("model"),
        cell("model", batch_size=2),
        cell("model", batch_size=4, temperature=0.9),
        cell("model", temperature=0.9, top_p=0.5),
        cell("model tree 8"),
        cell("model tree 6", batch_size=2, temperature=0.9),
        cell(PLAIN, 0),
        cell(PLAIN, 0, batch_size=4),
        cell(ASSISTED),
        cell(CONFIDENT),
        cell(LOOKUP),
    ],
    ids=str,
)
def test_every_way_gives_plain_texts(bench, chosen):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="transformers")
        sample = bench.candidate("own", chosen).run()
    assert sample.tokens == bench.plain("plain", chosen).run().tokens
    assert sample.num_tokens == 4 * 12


def test_sampled_texts_do_not_depend_on_the_batch(bench):
    one = bench.plain("one", cell("ngram", temperature=0.9)).run().tokens
    assert one == bench.plain("four", cell("ngram", batch_size=4, temperature=0.9)).run().tokens
    assert one != bench.plain("greedy", cell("ngram")).run().tokens


@pytest.mark.parametrize("kind", [PLAIN, ASSISTED, LOOKUP])
def test_peers_sample_as_many_tokens(bench, kind):
    chosen = cell(kind, temperature=0.9)
    first, again = bench.candidate("own", chosen).run(), bench.candidate("own", chosen).run()
    assert first.tokens == again.tokens and first.num_tokens == 4 * 12


def test_runs_say_where_their_time_went(bench):
    sample = bench.candidate("own", cell("model", batch_size=2)).run()
    assert sample.phases is not None and all(seconds > 0 for seconds in sample.phases)
    assert sample.texts is not None and sum(text.emitted for text in sample.texts) == 4 * 12
    assert bench.plain("plain", cell("model")).run().summary.mean_acceptance_length == 1


def test_a_sweep_over_models_counts_steps(bench, tmp_path):
    raw = RawFile(tmp_path / "raw.jsonl")
    protocol = Protocols(repeats=1, attempts=1)
    run_sweep([cell("model")], workbench=bench, raw=raw, conditions={}, notes={}, protocol=protocol)
    record = raw.records[-1]
    assert record["steps"]["plain"] == 48 > record["steps"]["candidate"]
    assert all(text["first_difference"] is None for text in record["texts"]) and record["repeatable"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "vllm"}, "unknown way 'vllm' of transformers; known: transformers"),
        ({"kind": LOOKUP, "batch_size": 2}, "one text at a time"),
        ({"kind": ASSISTED}, "needs a draft model"),
    ],
)
def test_what_a_peer_cannot_do_is_refused(changes, message):
    settings = dict(prompts=[[1]], num_tokens=2, num_draft_tokens=2, batch_size=1, temperature=0.0, seed=0)
    with pytest.raises(ValueError, match=message):
        transformers_decoding("peer", model=None, draft=None, **{**settings, **changes})


def test_peers_have_our_precision(bench):
    assert load_peer(pair().target, dtype=torch.bfloat16).dtype == torch.bfloat16
    peer, alone = bench.peers[0], Transformers(setting=replace(bench.setting(), draft=None))
    assert peer.ways.drafting_at(1) == (LOOKUP, ASSISTED, CONFIDENT) and peer.ways.drafting_at(2) == ()
    assert alone.ways.drafting_at(1) == (LOOKUP,) and alone.ways.plain == PLAIN


def test_peers_are_given_what_we_have(bench):
    setting = bench.setting()
    assert (setting.target, setting.draft, setting.dtype) == (pair().target, pair().draft, torch.float64)
    assert setting.num_threads == torch.get_num_threads() and len(setting.cores) >= 1


def test_prompts_that_do_not_fit_are_refused(bench):
    with pytest.raises(ValueError, match=r"prompt 1 of 3 tokens and 510 more leave the target's context of 512"):
        check_lengths(bench.target, [[1], [1, 2, 3]], [12, 510], num_nodes=3)
    with pytest.raises(ValueError, match="6 prompts and batch size 4"):
        check_batches(6, [1, 2, 4])


def test_top_p_changes_sampled_texts_alone(bench):
    texts = {
        (temperature, top_p): bench.plain("one", cell("ngram", temperature=temperature, top_p=top_p)).run().tokens
        for temperature in (0.0, 2.0)
        for top_p in (0.3, 1.0)
    }
    assert texts[0.0, 0.3] == texts[0.0, 1.0] and texts[2.0, 0.3] != texts[2.0, 1.0]


@pytest.mark.parametrize(("kind", "batch_size"), [(PLAIN, 1), (PLAIN, 4), (ASSISTED, 1), (LOOKUP, 1)])
def test_steps_of_transformers_are_counted(bench, kind, batch_size):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="transformers")
        sample = bench.candidate("own", cell(kind, batch_size=batch_size)).run()
    assert sample.summary.emitted == 48 and len(sample.texts) == 4
    assert (sample.summary.steps == 48) if kind == PLAIN else (sample.summary.steps < 48)


def test_trees_propose_what_was_asked_for(bench):
    """A deeper tree keeps more; its depth is what counts as drafted."""
    shallow, deep = (bench.candidate("own", cell("model tree 8", depth)).run().summary for depth in (1, 4))
    assert (len(shallow.drafted), len(deep.drafted)) == (1, 4) and deep.steps < shallow.steps


def test_decoding_alone_is_shorter_than_the_call(bench):
    """Steps of a batch of two count for each row; nothing but reading prompts and making caches is left out."""
    made = bench.plain("one", cell("ngram", batch_size=2))
    begin = time.perf_counter()
    sample = made.run()
    assert 0.9 * sum(sample.phases) / 2 < sample.decode_seconds < time.perf_counter() - begin


def test_forwards_are_weighed_and_the_machine_measured(bench):
    target, draft = bench.works()
    assert target.weight_bytes > 0 and draft.weight_bytes > 0 and set(bench.rates()) == {"read", "flops"}
    assert replace(bench, draft=None).works()[1] is None
