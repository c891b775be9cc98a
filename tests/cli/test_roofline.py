import json

import pytest
import torch

from paceline.api import load
from paceline.cli import run
from paceline.hardware.rates import Products, Rates
from paceline.models.native.quantization import SCHEMES
from tests.api.checkpoints import pair, without_tokenizer
from tests.cli import snapshots

PRODUCTS = {
    name: Products(itemsize=size, rows=(1, 8), bytes_per_second=(8e9, 8e9), peak=1e12)
    for name, size in (("float32", 4), ("bfloat16", 2), ("float64", 8))
}


@pytest.fixture
def asked(monkeypatch):
    """A made-up machine in place of this one; what its measurement was asked for."""
    calls = []

    def measure(*, dtypes, device, gemm_for, working_set, progress, clock):
        calls.append((dtypes, device, working_set))
        progress("reading memory")
        return Rates(device=str(device), num_threads=1, working_set=working_set, read=16e9, copy=9e9, products=PRODUCTS)

    def integers(config, quantization, *, dtype, device, working_set, clock):
        return Products(itemsize=1, rows=(1, 8), bytes_per_second=(4e9, 4e9), peak=1e9)

    monkeypatch.setattr("paceline.api.roofline.measure_rates", measure)
    monkeypatch.setattr("paceline.api.roofline.measure_integers", integers)
    return calls


def roofline(capsys, *words):
    assert run(["roofline", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def inspect(capsys, model):
    assert run(["inspect", str(model), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_machine_alone_is_measured_on_more_than_caches_hold(capsys, asked):
    found = roofline(capsys)
    assert found["limits"] == [] and found["rates"]["read_bytes_per_second"] == 16e9
    assert found["rates"]["products"]["float32"][0] == {"rows": 1, "weight_bytes_per_second": 8e9, "flops": 4e9}
    assert asked[0][2] == 512 << 20 and len(asked[0][0]) == 2


def test_limit_of_plain_decoding_is_reading_the_weights(capsys, asked):
    parameters = inspect(capsys, pair().target)["model"]["parameters"]
    found = roofline(capsys, "--model", pair().target, "--context", 0)["limits"][0]
    read = 8 * (parameters - 320 * 32)  # the head is apart, so of the embedding only rows are read
    assert found["num_draft_tokens"] == 0 and found["tokens_per_step"] == 1
    assert found["step_seconds"] == pytest.approx(read / 16e9)
    assert found["tokens_per_second"] == pytest.approx(16e9 / read)
    assert found["attainable_tokens_per_second"] == pytest.approx(8e9 / read)


def test_forwards_are_given_in_bytes_and_operations(capsys, asked):
    found = roofline(capsys, "--model", pair().target, "--draft", pair().draft)["forwards"]
    parameters = inspect(capsys, pair().target)["model"]["parameters"]
    assert set(found) == {"target", "draft"} and found["target"] == found["draft"]
    assert found["target"]["num_weights"] == parameters - 320 * 32
    assert found["target"]["weight_bytes"] == 8 * found["target"]["num_weights"]
    assert (found["target"]["slot_bytes"], found["target"]["slot_flops"]) == (2 * 3 * 2 * 8 * 8, 4 * 3 * 4 * 8)
    assert roofline(capsys)["forwards"] == {}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("quantization", SCHEMES)
def test_quantized_weights_count_as_in_memory(capsys, asked, quantization, tied, tmp_path):
    folder = without_tokenizer(tmp_path, hidden_size=256, intermediate_size=512, head_dim=64, tie_word_embeddings=tied)
    words = ["--model", folder, "--quantization", quantization, "--dtype", "bfloat16", "--context", 0]
    found, plain = roofline(capsys, *words), roofline(capsys, "--model", folder)
    lm = load(folder, dtype="bfloat16", device="cpu", quantization=quantization, enforce_eager=True).lm
    work = found["forwards"]["target"]
    assert work["weight_bytes"] == sum(part.nbytes for part in lm.parameters()) - lm.embed.weight.nbytes
    assert work["num_weights"] == plain["forwards"]["target"]["num_weights"]
    assert (work["quantization"], plain["forwards"]["target"]["quantization"]) == (quantization, None)
    assert work["weight_bytes"] < (0.55 if quantization == "int8" else 0.45) * 2 * work["num_weights"]
    assert f"bfloat16 {quantization}" in found["rates"]["products"]
    limit = found["limits"][0]
    assert limit["target_memory_seconds"] == pytest.approx(work["weight_bytes"] / 16e9)
    assert limit["target_arithmetic_seconds"] == pytest.approx(2 * work["num_weights"] / 1e12), "as floats at most"
    assert limit["attainable_step_seconds"] == pytest.approx(work["weight_bytes"] / 4e9)


def test_only_the_draft_may_be_quantized(capsys, asked):
    words = ["--model", pair().target, "--draft", pair().draft, "--draft-quantization", "int8"]
    found = roofline(capsys, *words)
    assert [found["forwards"][name]["quantization"] for name in ("target", "draft")] == [None, "int8"]
    assert list(found["rates"]["products"])[-1] == "float64 int8"
    assert run(["roofline", *map(str, words)]) == 0
    assert "integers are timed in whole forwards" in capsys.readouterr().out


def test_acceptance_is_one_share_for_all_positions_or_one_for_each(capsys, asked):
    words = ["--model", pair().target, "--draft", pair().draft, "--num-draft-tokens", 3]
    mean = roofline(capsys, *words, "--acceptance", 0.5)["limits"]
    assert [(one["num_draft_tokens"], one["tokens_per_step"]) for one in mean] == [(0, 1), (3, 2.5)]
    each = roofline(capsys, *words, "--acceptance", "0.9,0.5,0.25,0.1")["limits"]
    assert [one["tokens_per_step"] for one in each] == pytest.approx([1, 1.9, 2.4, 2.65])
    none = roofline(capsys, *words)["limits"]
    assert none[1]["tokens_per_step"] == 4
    # The draft is as large as the target: three forwards more, of the same time.
    assert none[1]["draft_seconds"] == pytest.approx(3 * none[0]["step_seconds"])
    assert none[1]["break_even_tokens_per_step"] == pytest.approx(4, rel=0.01)


def test_models_are_measured_in_their_precision_and_size(capsys, asked):
    weights = inspect(capsys, pair().target)["memory"]["weights"]
    assert weights < 4 << 20
    roofline(capsys, "--model", pair().target, "--dtype", "float64")
    assert asked[0][2] == 4 << 20 and len(set(asked[0][0])) == 3  # no less than what takes longer than a call


def test_no_weights_are_read(capsys, asked, monkeypatch):
    def refuse(*_):
        raise AssertionError("a weight was read")

    monkeypatch.setattr("paceline.models.loading._tensors", refuse)
    roofline(capsys, "--model", pair().target, "--draft", pair().draft)


def test_tables(capsys, asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("paceline.bench.machine.describe", lambda: "a machine")
    words = ["roofline", "--model", str(pair().target), "--draft", str(pair().draft), "--device", "cpu"]
    assert run([*words, "--acceptance", "0.7,0.4", "--num-draft-tokens", "2"]) == 0
    snapshots.check("roofline", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draft", "d"], "--draft d: it needs a model"),
        (["--acceptance", "0.5"], "--acceptance 0.5: it needs a model"),
        (["--model", "m", "--acceptance", "1.5"], "--acceptance 1.5: give a share from 0 to 1"),
        (["--model", "m", "--acceptance", "high"], "--acceptance high: give a share"),
        (["--model", "m", "--acceptance", "0.9,0.8"], "2 positions for --num-draft-tokens 5"),
        (["--num-draft-tokens", "0"], "--num-draft-tokens 0: give at least 1"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--context", "-1"], "--context -1"),
        (["--threads", "0"], "--threads 0"),
        (["--threads", "2", "--processor-time"], "--processor-time: it measures one CPU thread"),
        (["--dtype", "int8"], "--dtype int8: known are"),
        (["--model", "/nowhere/at/all"], "no such model directory"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(words, said, capsys, asked):
    threads = torch.get_num_threads()
    try:
        assert run(["roofline", *words]) == 2
    finally:
        torch.set_num_threads(threads)
    assert said in capsys.readouterr().err and not asked


def test_this_machine_can_be_measured(capsys, monkeypatch):
    monkeypatch.setattr("paceline.api.roofline.WORKING_SET", 1 << 20)
    words = ["--model", pair().target, "--draft", pair().draft, "--num-draft-tokens", 2, "--acceptance", 0.5]
    words += ["--context", 64, "--dtype", "float32", "--draft-quantization", "int8", "--device", "cpu", "--threads", 1]
    plain, drafted = roofline(capsys, *words, "--processor-time")["limits"]
    assert 0 < plain["step_seconds"] <= plain["attainable_step_seconds"] < drafted["attainable_step_seconds"]
