from dataclasses import replace

import pytest
import torch

from paceline.api import load
from paceline.bench.generation import decoding
from paceline.bench.machine import describe, hash_source
from paceline.bench.peers.transformers import load_peer, transformers_decoding
from paceline.bench.report import make_table
from paceline.bench.runner import compare
from tests.api.checkpoints import config_of, make_tokenizer, pair, without_tokenizer

PROMPTS = ["def add(first,", "x = 1\n", "for item in items:\n    print(item)\nfor"]


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_configuration_emits_the_same_tokens(target, batch_size):
    common = dict(target=target, prompts=PROMPTS, num_tokens=20, batch_size=batch_size)
    prompts = [target.tokenizer.encode(prompt) for prompt in PROMPTS]
    comparison = compare(
        [
            transformers_decoding("peer", model=load_peer(pair().target, dtype=None), prompts=prompts, num_tokens=20),
            decoding("plain", **common),
            decoding("ngram", **common, drafter="ngram", num_draft_tokens=5),
            decoding("model", **common, drafter=pair().draft, num_draft_tokens=3),
        ],
        baseline="plain",
        repeats=2,
    )
    assert all(measured.identical for measured in comparison.measured)
    assert all(measured.sample.num_tokens == 60 for measured in comparison.measured)
    assert comparison["plain"].sample.summary.mean_acceptance_length == 1
    model = comparison["model"].sample.summary
    assert model.acceptance_rate > 0.3 and model.mean_acceptance_length > 1.5 and len(model.drafted) == 3
    assert comparison["peer"].sample.summary is None


def test_end_of_text_shortens_nobody(target, tmp_path):
    whole = decoding("plain", target=target, prompts=PROMPTS, num_tokens=20).run().tokens
    folder = without_tokenizer(tmp_path / "ending", eos_token_id=whole[0][3])
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config_of(folder, eos_token_id=whole[0][3])
    ending = load(folder)
    assert ending.eos == (whole[0][3],)
    prompts = [target.tokenizer.encode(prompt) for prompt in PROMPTS]
    peer = load_peer(folder, dtype=None)
    assert transformers_decoding("peer", model=peer, prompts=prompts, num_tokens=20).run().tokens == whole
    assert decoding("plain", target=ending, prompts=PROMPTS, num_tokens=20).run().tokens == whole


def test_tables_have_a_line_for_each(target):
    comparison = compare(
        [
            decoding("plain", target=target, prompts=PROMPTS, num_tokens=8),
            decoding("model", target=target, prompts=PROMPTS, num_tokens=8, drafter=pair().draft),
        ],
        baseline="plain",
        repeats=3,
    )
    table = make_table(comparison)
    assert table.row_count == 2 and [str(column.header) for column in table.columns][1] == "tokens/s (spread)"


def test_a_machine_is_described():
    machine = describe()
    assert machine.num_threads == torch.get_num_threads() and machine.memory_gib > 0
    assert set(machine.versions) == {"paceline", "torch", "transformers"} and "GiB of memory" in str(machine)
    assert hash_source() == hash_source() and len(hash_source()) == 16


def test_configurations_need_no_text(target):
    bare = replace(target, tokenizer=None)
    assert decoding("plain", target=bare, prompts=[[5, 6]], num_tokens=4).run().num_tokens == 4
