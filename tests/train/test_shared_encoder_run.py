"""Runs that train a draft of the layers of an encoder-decoder: what they raise, write, resume and refuse."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BartForConditionalGeneration, T5ForConditionalGeneration

import paceline.hf
from paceline.api import Engine, SamplingParams, load, total
from paceline.cli import run
from paceline.models.copied_layers import copy_layers
from paceline.models.loading import load as load_native
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.config_file import read_train_config
from paceline.train.loop.trainer import Trainer
from paceline.train.run import Run
from tests.models.test_encoder_decoders import counted
from tests.train.configs import recipe as decoder_recipe
from tests.train.configs import train, write_target
from tests.train.pairs import CHAIN, END, one_thread, pair, recipe, teacher, words, write_pairs

MODELS = {"bart": BartForConditionalGeneration, "t5": T5ForConditionalGeneration}
GREEDY = SamplingParams(temperature=0.0, max_tokens=26)


@pytest.fixture(scope="module", params=["bart", "t5"])
def trained(request, tmp_path_factory):
    """The kind, and the folder of a run that ended."""
    root = tmp_path_factory.mktemp(request.param)
    with one_thread():
        assert train(recipe(root, request.param, validation={"every": 40, "prompts": 12, "tokens": 24, "k": 3})) == 0
    return request.param, root


def sources(count=12, seed=77):
    random = np.random.default_rng(seed)
    return [words(pair(random)[0]) for _ in range(count)]


def acceptance(target, drafter, temperature=0.0):
    engine = Engine(target, drafter=drafter, num_draft_tokens=3, batch_size=4)
    return total(engine.generate(sources(), replace(GREEDY, temperature=temperature, seed=1))).mean_acceptance_length


@pytest.mark.one_in(3)
def test_training_raises_acceptance(trained):
    kind, root = trained
    if kind == "t5":
        pytest.skip("of this teacher the layer between is hardly needed")
    target = load(teacher(kind))
    untrained = replace(target, lm=copy_layers(target.lm, (0, -1)))
    for temperature in (0.0, 1.0):
        before, after = (acceptance(target, one, temperature) for one in (untrained, root / "run" / "draft"))
        assert after > before + 0.3 and after > 2.2


def test_a_validation_ends_where_an_output_does(tmp_path):
    config = read_train_config(recipe(tmp_path))
    asked = Run(config=config).requests()
    assert len(asked) == config.validation.prompts and all(list(one.stop_tokens) == [END] for one in asked)


def test_the_export_is_a_checkpoint_of_transformers_with_equal_logits(trained):
    kind, root = trained
    folder = root / "run" / "draft"
    theirs = MODELS[kind].from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_native(folder)
    assert isinstance(ours, EncoderDecoderLM) and ours.encoder is not None and ours.num_layers == 2
    ids, tokens = torch.tensor([[CHAIN[3], 9, 14]]), torch.tensor([[3, *CHAIN[3:9]]])
    with torch.no_grad():
        wanted = theirs(input_ids=ids, decoder_input_ids=tokens).logits
        length = torch.tensor([3])
        found = ours.causal(tokens, source=ours.source_of(ours.encode_inputs(ids, length), length)).logits
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    card = (folder / "README.md").read_text()
    assert "Drafts for" in card and "On 12 held-out sources" in card and "speculative-decoding" in card


def test_the_exported_encoder_is_the_targets_and_is_run_once(trained, monkeypatch):
    kind, root = trained
    target, draft = (load(folder, dtype="float64") for folder in (teacher(kind), root / "run" / "draft"))
    own, theirs = draft.lm.encoder.state_dict(), target.lm.encoder.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.items())
    texts = sources(4)
    plain = [one.token_ids for one in Engine(target, drafter=None).generate(texts, GREEDY)]
    assert len({len(one) for one in texts}) > 1
    read, apart = counted(target.lm, monkeypatch), counted(draft.lm, monkeypatch)
    for some in (texts, texts[:1]):
        for drafter in (draft, root / "run" / "draft"):
            results = Engine(target, drafter=drafter, num_draft_tokens=3).generate(some, GREEDY)
            assert [one.token_ids for one in results] == plain[: len(some)]
            assert total(results).mean_acceptance_length > 1.5
            assert sum(read) == len(some) and apart == []
            read.clear()


def test_transformers_generate_takes_it_as_assistant(trained):
    kind, root = trained
    if kind == "t5":
        pytest.skip("its generate takes T5s with as many layers on both sides")
    model, assistant = (
        MODELS[kind].from_pretrained(folder).eval() for folder in (teacher(kind), root / "run" / "draft")
    )
    ids = torch.tensor([[CHAIN[2], 9, 14], [CHAIN[12], 5, 5]])
    options = {"max_new_tokens": 26, "do_sample": False, "num_beams": 1}
    found = paceline.hf.generate(model, ids, assistant_model=assistant, return_dict_in_generate=True, **options)
    assert torch.equal(found.sequences, model.generate(ids, attention_mask=torch.ones_like(ids), **options))
    assert sum(one.mean_acceptance_length for one in found.statistics) > 4


def test_the_command_line_drafts_with_it(trained, capsys):
    kind, root = trained
    given = ["generate", "--model", str(teacher(kind)), "--temperature", "0", "--max-tokens", "26", sources(1)[0]]
    assert run(given) == 0
    plain = capsys.readouterr().out
    draft = root / "run" / "draft"
    for option in (["--draft", str(draft)], ["--drafter", f"model:draft={draft}"]):
        assert run([*given, *option]) == 0
        assert capsys.readouterr().out == plain != "\n"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_gives_the_same_weights(accumulate, tmp_path, monkeypatch):
    fields = {
        "schedule": {"steps": 8, "warmup": 2},
        "checkpoints": {"every": 3},
        "validation": {"every": 8, "prompts": 4, "tokens": 8, "k": 2},
        "batch": {"rows": 8, "length": 28, "accumulate": accumulate},
        "ema": 0.5 if accumulate == 2 else None,
    }
    whole = recipe(tmp_path, **fields)
    assert train(whole) == 0
    broken = recipe(tmp_path, output=str(tmp_path / "second"), **fields)
    advance = Trainer.advance

    def stopping(self, progress, *, stop=False):
        return advance(self, progress, stop=stop or self.step == 5)

    monkeypatch.setattr(Trainer, "advance", stopping)
    assert train(broken) == 130
    monkeypatch.undo()
    assert train(broken) == 0
    first, second = (load_file(tmp_path / name / "draft" / "model.safetensors") for name in ("run", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_target_in_bfloat16_is_exported_as_its_files_have_it(tmp_path):
    target = {"path": str(teacher("bart")), "dtype": "bfloat16"}
    fields = {"target": target, "precision": "bf16", "schedule": {"steps": 1, "warmup": 0}}
    assert train(recipe(tmp_path, validation={"every": 1, "prompts": 2, "tokens": 4, "k": 2}, **fields)) == 0
    own, theirs = (load_native(folder) for folder in (tmp_path / "run" / "draft", teacher("bart")))
    assert all(torch.equal(one, theirs.encoder.state_dict()[name]) for name, one in own.encoder.state_dict().items())
    assert torch.equal(own.embed.weight, theirs.embed.weight)


def test_a_dry_run_says_what_is_trained(tmp_path, capsys):
    assert train(recipe(tmp_path), "--dry-run") == 0
    said = capsys.readouterr().out
    target = load_native(teacher("bart"))
    size = sum(one.numel() for one in copy_layers(target, (0, -1)).parameters()) - target.embed.weight.numel()
    assert f"trained parameters  {size:,}" in said and not (tmp_path / "run").exists()


REFUSED = {
    "heads": ({"heads": [{"kind": "prophet"}]}, "heads and draft"),
    "hidden states": (
        {"hidden_states": {"folder": "x"}},
        "hidden_states with draft.layers: .* leave hidden_states out",
    ),
    "fsdp": ({"distributed": "fsdp2"}, "draft.layers with distributed=fsdp2: .* give ddp"),
    "a trained target": (
        {"target": {"path": "TARGET", "trained": True}},
        "a draft model is trained on a frozen target; give target.path alone",
    ),
    "prompt tokens": ({"validation": {"prompt_tokens": 4}}, "validation.prompt_tokens=4 with draft.layers"),
    "two models": ({"draft": {"layers": [0], "path": "x"}}, "draft: give one of path .*, config .* and layers"),
    "no layers": ({"draft": {"layers": []}}, "draft.layers=no layers: give at least one"),
    "a layer too many": ({"draft": {"layers": [0, 3]}}, r"draft.layers=\[0, 3\]: there is no layer 3"),
    "layers in another order": ({"draft": {"layers": [-1, 0]}}, "layer 0 comes after layer 2"),
    "the same layer": ({"draft": {"layers": [2, -1]}}, "layer 2 is there twice"),
    "a draft of another kind": (
        {"draft": {"path": "TARGET"}, "data": {"sources": [{"kind": "standard_library"}]}},
        "only a draft of layers of its own decoder .* give draft.layers",
    ),
    "pairs for a model of its own": (
        {"draft": {"path": "TARGET"}},
        "pairs for an encoder-decoder, its draft heads, or a",
    ),
    "texts": (
        {"data": {"sources": [{"kind": "standard_library"}]}},
        "sources of kind standard_library, and .* is an encoder-decoder, which reads pairs; give sources of kind pairs",
    ),
    "packed rows": (
        {"data": {"sources": [{"kind": "pairs", "paths": ["x"]}]}},
        "packing packed with pairs: a row is one of them; give packing: documents",
    ),
    "bytes": (
        {"data": {"sources": [{"kind": "pairs", "paths": ["x"]}], "packing": "documents", "tokenizer": "bytes"}},
        "tokenizer bytes with pairs",
    ),
    "pairs and texts": (
        {
            "data": {
                "sources": [{"kind": "pairs", "paths": ["x"]}, {"kind": "standard_library"}],
                "packing": "documents",
            }
        },
        "sources of kind pairs and standard_library: pairs are not mixed with others",
    ),
    "sounds": (
        {"data": {"sources": [{"kind": "sounds", "paths": ["PAIRS"]}], "packing": "documents"}},
        "sources of kind sounds, and .* reads text: give sources of kind pairs",
    ),
    "long validations": ({"validation": {"tokens": 127, "k": 5}}, "127 tokens and 5 drafted ones exceed the 128"),
    "long rows": ({"batch": {"rows": 8, "length": 129}}, "batch.length=129: the target reads 128 tokens at most"),
    "other layers than before": ({"draft": {"layers": [1, 2]}}, "began with draft.layers.0=0 and now has 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path, capsys):
    fields, said = REFUSED[case]
    write_pairs(tmp_path / "pairs.jsonl", 40)
    text = json.dumps(fields).replace("TARGET", str(teacher("bart"))).replace("PAIRS", str(tmp_path / "pairs.jsonl"))
    if case == "other layers than before":
        ended = {"schedule": {"steps": 2}, "checkpoints": {"every": 1}}
        fast = {"validation": {"every": 2, "prompts": 2, "tokens": 4, "k": 2}}
        assert train(recipe(tmp_path, **ended, **fast)) == 0
        text = json.dumps({**ended, **fast, **fields})
    capsys.readouterr()
    assert train(recipe(tmp_path, **json.loads(text))) == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error


def test_layers_of_a_target_without_encoder_are_refused(tmp_path, capsys):
    folder = write_target(tmp_path)
    fields = {"heads": [], "draft": {"layers": [0, -1]}, "validation": {}}
    assert train(decoder_recipe(folder, tmp_path / "run", **fields)) == 2
    assert "has no encoder, and the draft would share it: give draft.config or draft.path" in capsys.readouterr().err
    (tmp_path / "pairs.jsonl").write_text('{"source": "a", "output": "b"}\n', encoding="utf-8")
    paired = {"sources": [{"kind": "pairs", "paths": [str(tmp_path / "pairs.jsonl")]}], "packing": "documents"}
    assert train(decoder_recipe(folder, tmp_path / "run", data=paired, validation={})) == 2
    assert "sources of kind pairs are pairs for an encoder-decoder, and the target is none" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "compile"])
def test_two_processes_and_compiled_code_give_the_weights_of_one(how, tmp_path, monkeypatch):
    fast = {
        "schedule": {"steps": 4, "warmup": 1},
        "validation": {"every": 4, "prompts": 2, "tokens": 4, "k": 2},
        "checkpoints": {"every": 4},
    }
    assert train(recipe(tmp_path, **fast)) == 0
    other = recipe(
        tmp_path, output=str(tmp_path / "other"), **fast, **{"ddp": {"distributed": "ddp"}}.get(how, {how: True})
    )
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"] if how == "ddp" else []
    command = [sys.executable, "-m", *launcher, "paceline", "train", str(other)]
    subprocess.run(command, check=True, timeout=500)
    first, second = (load_file(tmp_path / name / "draft" / "model.safetensors") for name in ("run", "other"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        # A bias of keys moves all scores of a query alike: its gradient is rounding alone, which Adam scales up.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(second[name], tensor, rtol=0, atol=1e-4, msg=name)
