"""paceline train makes a text-to-semantic model with its exit from pairs: the exit is accepted, guidance is learned."""

import json
from itertools import islice

import pytest
import torch
import yaml

import paceline
from benchmarks.semantic_data import pairs, runs
from paceline.models.loading import load as load_native
from paceline.train.batches import SourceBatch, TrainBatch
from paceline.train.config_file import read_train_config
from paceline.train.tasks.base import StepRandomness
from paceline.train.tasks.sources import without_sources
from tests.models.semantic_models import END, SEMANTIC_IDS, START, config
from tests.train.configs import log, train
from tests.train.test_examples import EXAMPLES

TEXT_IDS, LENGTH = 6, 40
TABLE = [run[:4] for run in runs(TEXT_IDS, SEMANTIC_IDS)]


def short_pairs(seed, count):
    found = (pair for pair in pairs(seed, TABLE, SEMANTIC_IDS) if len(pair.output) < LENGTH - 2)
    return list(islice(found, count))


def recipe(root, **fields):
    lines = [
        json.dumps({"source": pair.source, "input_ids": [START, *pair.output, END]}) for pair in short_pairs(1, 300)
    ]
    # An empty text may be a pair's too.
    lines.append(json.dumps({"source": [], "input_ids": [START, END]}))
    (root / "pairs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    target = config(num_text_ids=TEXT_IDS, hidden_size=48, decoder_layers=4, encoder_layers=1)
    whole = {
        "target": {"config": target, "source_dropout": 0.2},
        "heads": [{"kind": "early_exit", "config": {"exit_layer": 1, "blocks": "feed_forward", "own_head": True}}],
        "data": {
            "sources": [{"kind": "pairs", "paths": [str(root / "pairs.jsonl")]}],
            "packing": "documents",
            "validation": {"share": 0.1, "by": "document"},
            "cache": str(root / "cache"),
        },
        "batch": {"rows": 16, "length": LENGTH},
        "loss": {"terms": {"text": 0.5, "kl": 0.5}, "rows": 16},
        "optimiser": {"learning_rate": 0.004, "weight_decay": 0.0},
        "schedule": {"steps": 100, "warmup": 10},
        "precision": "fp32",
        "validation": {"every": 50, "prompts": 4, "tokens": 24, "k": 3},
        "checkpoints": {"every": 50},
        "log_every": 20,
        "output": str(root / "run"),
        **fields,
    }
    path = root / "recipe.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("semantic")
    assert train(recipe(root)) == 0
    return root / "run"


@pytest.mark.slow
def test_both_losses_fall_and_the_exit_is_accepted(trained):
    steps = [one for one in log(trained) if "target.text" in one]
    first, last = steps[0], steps[-1]
    assert last["target.text"] < 0.6 * first["target.text"]
    assert last["early_exit.loss"] < 0.8 * first["early_exit.loss"]
    validations = [one for one in log(trained) if "validation.loss" in one]
    assert validations[-1]["validation.early_exit.t1.tokens_per_step"] > 1.5


def test_drafted_outputs_are_plain_ones_and_most_drafts_are_accepted(trained):
    target = paceline.load(trained / "target", dtype=torch.float64)
    texts = [pair.source for pair in short_pairs(7, 4)]
    for scale in (1.0, 1.5):
        options = dict(max_tokens=30, temperature=0, guidance_scale=scale)
        plain = paceline.generate(target, texts, **options)
        drafted = paceline.generate(target, texts, drafter=trained / "early_exit", num_draft_tokens=3, **options)
        assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
        summary = paceline.total(drafted)
        assert sum(summary.accepted) > 0.5 * sum(summary.drafted)


def test_what_is_said_of_no_text_is_learned(trained):
    """Rows without a source have taught the null stream: it says more about outputs than a stream of chance."""
    lm = load_native(trained / "target")
    losses = {}
    for name in ("text", "nothing", "another text"):
        found = []
        for index, pair in enumerate(short_pairs(8, 12)):
            other = short_pairs(9, 12)[index].source
            source = {"text": pair.source, "nothing": [], "another text": other}[name]
            length = torch.tensor([len(source)])
            states = lm.encode_inputs(torch.tensor([source], dtype=torch.int64), length)
            tokens = torch.tensor([[START, *pair.output, END]])
            logits = lm.causal(tokens[:, :-1], source=lm.source_of(states, length)).logits[0]
            found.append(torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item())
        losses[name] = sum(found) / len(found)
    assert losses["text"] < losses["nothing"] < losses["another text"]


def batch(rows):
    tokens = torch.zeros(rows, 3, dtype=torch.int64)
    source = SourceBatch(inputs=torch.ones(rows, 4, dtype=torch.int64), length=torch.full((rows,), 4))
    return TrainBatch(tokens=tokens, learned=tokens > 0, source=source)


def test_sources_are_left_out_by_step_and_row():
    given = batch(400)
    found = without_sources(given, StepRandomness(seed=3, step=5, first_row=0), 0.25).source.length
    assert set(found.tolist()) == {0, 4} and 60 < int((found == 0).sum()) < 140
    part = without_sources(batch(100), StepRandomness(seed=3, step=5, first_row=300), 0.25).source.length
    assert torch.equal(part, found[300:]), "what is drawn depends on how rows are spread over processes"
    other = without_sources(given, StepRandomness(seed=3, step=6, first_row=0), 0.25).source.length
    assert not torch.equal(other, found)
    assert without_sources(given, StepRandomness(seed=3, step=5, first_row=0), 0.0) is given


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"distributed": "fsdp2"}, "pairs with distributed=fsdp2"),
        ({"validation": {"prompt_tokens": 3}}, "a validation decodes held-out sources from their start tokens"),
        ({"draft": {"layers": [0]}, "heads": []}, "a draft model is trained on a frozen target"),
    ],
)
def test_what_pairs_are_not_trained_with_is_refused(fields, message, tmp_path, capsys):
    assert train(recipe(tmp_path, **fields), "--dry-run") != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_ids_beyond_a_vocabulary_are_refused(tmp_path, capsys):
    path = recipe(tmp_path)
    for line, said in (
        (
            {"source": [TEXT_IDS], "input_ids": [START, 1, END]},
            f"token id {TEXT_IDS}, and the vocabulary has {TEXT_IDS}",
        ),
        ({"source": [1], "input_ids": [START, START + 1, END]}, f"token id {START + 1}, and the vocabulary has"),
        ({"source": [1], "output": "text"}, "outputs of a model from scratch are no text"),
    ):
        (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(line)}\n")
        assert train(path, "--dry-run") != 0
        assert said in " ".join(capsys.readouterr().err.split())


def test_the_example_is_a_configuration():
    found = read_train_config(EXAMPLES / "text_to_semantic.yaml")
    assert found.target.source_dropout and found.heads[0].config["blocks"] == "feed_forward"
