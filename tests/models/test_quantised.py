"""Quantised models: memory, rounding error of weights, output with drafts, and unsupported requests."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from paceline import SamplingParams, generate, load
from paceline.api import embedded_pair, total
from paceline.cli import run
from paceline.models.native.quantization import SCHEMES, quantise
from tests import tiny
from tests.api.checkpoints import config_of, pair, without_tokenizer

PROMPTS = ["def add(first", "for item in", "return first + "]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=3, max_tokens=40, ignore_eos=True)
BITS = {"int8": 8, "int4": 4.25}  # per weight; with four bits those of the scales are among them
HEAD_BITS = 8
SLACK = {"int8": 1e-3, "int4": 0.05}  # scales of bfloat16 are rounded themselves
MATRICES = ("blocks.0.attention.qkv", "blocks.1.attention.output", "blocks.2.ffn.gate_up", "blocks.0.ffn.down", "head")


@pytest.fixture(scope="module", params=SCHEMES)
def quantization(request):
    return request.param


def load_pair(quantization, **options):
    return load(pair().target, device="cpu", **{"dtype": "bfloat16", "quantization": quantization, **options})


def texts(loaded, params, drafter=None, num_draft_tokens=5, batch_size=None):
    results = generate(
        loaded, PROMPTS, params, drafter=drafter, num_draft_tokens=num_draft_tokens, batch_size=batch_size
    )
    return [result.tokens for result in results]


def test_a_matrix_is_stored_as_integers_and_scales_only(quantization, tmp_path):
    folder = without_tokenizer(tmp_path, hidden_size=256, intermediate_size=512, head_dim=64)
    plain, lm = (load(folder, dtype="bfloat16", device="cpu", quantization=one).lm for one in (None, quantization))
    for name, module in plain.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        own = lm.get_submodule(name)
        bits = HEAD_BITS if name == "head" else BITS[quantization]
        scales = 4 * own.out_features if bits == 8 else 0
        assert sum(tensor.nbytes for tensor in own.parameters()) == module.weight.numel() * bits / 8 + scales
    kept = [tensor for tensor in lm.parameters() if tensor.is_floating_point() and tensor.dim() == 2]
    assert [tensor for tensor in kept if tensor.shape[1] == 256] == [lm.embed.weight]
    assert len({tensor.untyped_storage().data_ptr() for tensor in lm.parameters()}) == 1


@pytest.mark.parametrize("name", MATRICES)
def test_weights_are_off_by_half_a_step_at_most(quantization, name):
    lm = tiny.native(tiny.llama())
    weight = lm.get_submodule(name).weight.bfloat16().double()
    layer = SCHEMES[quantization](weight.shape[1], weight.shape[0], bias=False)
    layer.load_state_dict(layer.quantise(weight), assign=True)
    seen = layer(torch.eye(weight.shape[1], dtype=torch.float64)).T
    assert float(((seen - weight) / layer.steps()).abs().max()) <= 0.5 + SLACK[quantization]


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_quantised_and_the_embedding_is_not(quantization, tied, tmp_path):
    folder = without_tokenizer(tmp_path, tie_word_embeddings=tied)
    plain, lm = (load(folder, dtype="bfloat16", device="cpu", quantization=one).lm for one in (None, quantization))
    assert torch.equal(lm.embed.weight, plain.embed.weight)
    assert not lm.head.weight.is_floating_point()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_do_not_change_the_output_of_a_quantised_target(quantization, params):
    target = load_pair(quantization)
    plain = texts(target, params)
    assert plain == texts(target, params, batch_size=1)
    for drafter in (
        "ngram",
        pair().draft,
        load(pair().draft, device="cpu", dtype="bfloat16", quantization=quantization),
    ):
        assert texts(target, params, drafter) == plain
    eager = texts(load_pair(quantization, dtype="float64", enforce_eager=True), params, pair().draft)
    assert eager == texts(load_pair(quantization, dtype="float64"), params)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_quantised_draft_changes_no_output_and_is_accepted_as_often(quantization, params):
    folders = embedded_pair()
    target = load(folders[0], dtype="bfloat16", device="cpu")
    found = []
    for one in (None, quantization):
        draft = load(folders[1], dtype="bfloat16", device="cpu", quantization=one)
        results = generate(target, PROMPTS, params, drafter=draft, num_draft_tokens=5)
        found.append(([result.tokens for result in results], total(results).mean_acceptance_length))
    assert found[0][0] == found[1][0] == texts(target, params)
    assert found[1][1] >= 0.9 * found[0][1]


def test_a_quantised_target_is_exact(quantization):
    load_pair(quantization, exact=True)  # refused where a token's logits depend on its company


def test_torchao_quantises_a_transformers_model(quantization="int8"):
    folder = pair().target
    adapted = load(folder, dtype="float32", device="cpu", backend="hf", quantization=quantization)
    native = load(folder, dtype="float32", device="cpu", quantization=quantization)
    plain = texts(adapted, GREEDY)
    assert texts(adapted, GREEDY, "ngram") == plain
    assert type(adapted.lm.model.lm_head.weight).__module__.startswith("torchao")
    assert [own[:4] for own in texts(native, GREEDY)] == [text[:4] for text in plain]


def quantised_already(folder):
    without_tokenizer(folder)
    config_of(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    return folder


REFUSALS = {
    "unknown": (lambda folder: (pair().target, dict(quantization="int3")), "quantization 'int3': known are int8, int4"),
    "in memory": (
        lambda folder: (tiny.llama(), dict(quantization="int8")),
        "quantization='int8': LlamaForCausalLM is loaded already, and its weights are its own; give its directory",
    ),
    "quantized already": (
        lambda folder: (quantised_already(folder), dict(quantization="int8")),
        r"quantization='int8': .* is quantized already \(quantization_config\); leave it out, or give unquantized",
    ),
    "four bits by transformers": (
        lambda folder: (pair().target, dict(quantization="int4", backend="hf")),
        "quantization='int4' is for native models; give quantization='int8', or leave backend='hf' out",
    ),
    "no linear layers": (
        lambda folder: (gpt2(folder), dict(quantization="int8", backend="hf")),
        "quantization='int8': GPT2LMHeadModel has no linear layers that torchao knows in its blocks",
    ),
}


def gpt2(folder):
    tiny.gpt2().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", REFUSALS)
def test_unsupported_quantisation_is_refused_by_name(case, tmp_path):
    arrange, message = REFUSALS[case]
    model, options = arrange(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(model, device="cpu", **options)


def test_a_missing_torchao_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torchao" else find(name, *more)
    )
    with pytest.raises(
        ValueError, match=r"needs torchao, which is not installed: pip install 'paceline\[quantization\]'"
    ):
        load(pair().target, quantization="int8")


def test_given_matrices_are_released_one_by_one(quantization):
    state = {f"blocks.{at}.ffn.down.weight": torch.randn(8, 32) for at in range(3)} | {"norm.weight": torch.ones(8)}
    done = quantise(state, quantization, tied_head=False)
    assert not state and "norm.weight" in done and "blocks.2.ffn.down.scale" in done


SCRIPT = """
import sys, psutil, torch, paceline
loaded = paceline.load(sys.argv[1], dtype="bfloat16", device="cpu", quantization=sys.argv[2] or None)
paceline.generate(loaded, [[1, 2, 3]], paceline.SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
print(psutil.Process().memory_info().rss)
"""


@pytest.mark.slow
def test_a_process_takes_less_memory(quantization, tmp_path):
    folder = without_tokenizer(
        tmp_path, hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, head_dim=128, num_attention_heads=8
    )
    weights = sum(tensor.nbytes for tensor in load(folder, dtype="bfloat16", device="cpu").lm.parameters())
    resident = []
    for scheme in ("", quantization):
        command = [sys.executable, "-c", SCRIPT, str(folder), scheme]
        resident.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    # torchao itself takes some tens of megabytes.
    assert resident[0] - resident[1] >= weights * (1 - BITS[quantization] / 16) - (100 << 20)


def test_the_command_line_options_are_passed_on(capsys, quantization):
    words = [
        "generate",
        "--model",
        str(pair().target),
        "--dtype",
        "bfloat16",
        "--device",
        "cpu",
        "--max-tokens",
        "8",
        "def",
    ]
    assert run([*words, "--quantization", quantization]) == 0
    plain = capsys.readouterr().out
    drafting = ["--draft", str(pair().draft), "--draft-quantization", quantization]
    assert run([*words, "--quantization", quantization, *drafting]) == 0
    assert capsys.readouterr().out == plain
    for options, complaint in (
        (["--quantization", "int3"], "--quantization int3: known are int8, int4"),
        (["--draft-quantization", quantization], f"--draft-quantization {quantization}: it needs a draft model"),
    ):
        assert run([*words, *options]) != 0
        assert complaint in capsys.readouterr().err
