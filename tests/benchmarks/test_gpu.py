"""The benchmark of a device runs whole on a CPU, on one set of weights and in its time; without one it says so."""

import json
from dataclasses import asdict

import pytest
import torch

from benchmarks import gpu_sides
from benchmarks.gpu import SPEEDUPS, batches_of, goals_of, least_seconds
from benchmarks.gpu_sides import CONTROL, PLAIN, Plan, make_models, run_plan
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import RUN, RawFile
from paceline.hardware.rates import Products, Rates
from paceline.hardware.roofline import Work, bound
from paceline.models.native.attention import TreeAttention
from tests.api.checkpoints import pair
from tests.benchmarks.command import measured, run, small

RATES = Rates(
    device="cuda",
    num_threads=1,
    working_set=1 << 29,
    read=1e9,
    copy=1e9,
    products={"bfloat16": Products(itemsize=2, rows=(1,), bytes_per_second=(1e9,), peak=1e12)},
)
WORK = Work(dtype="bfloat16", weight_bytes=10**8, num_weights=5 * 10**7, slot_bytes=1000, slot_flops=1000)


def models():
    return make_models(
        pair().target, pair().draft, num_parameters=500_000, dtype=torch.float64, device=torch.device("cpu")
    )


def test_both_targets_are_one_model_in_one_memory():
    made = models()
    tokens = torch.arange(40).reshape(2, 20) * 7 % 300
    with torch.no_grad():
        theirs, ours = made.peer(tokens).logits, made.target.lm.causal(tokens).logits
    assert (theirs - ours).abs().max() < 1e-5 * ours.abs().max()  # transformers computes its norms in float32
    places = [
        {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        for model in (made.peer, made.target.lm)
    ]
    assert places[0] == places[1]
    assert made.target.lm.config.hidden_size > made.draft.lm.config.hidden_size


def test_a_device_without_room_is_refused_before_anything_is_made(monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_sides.free_memory", lambda device: 4 << 20)
    monkeypatch.setattr("benchmarks.gpu_sides.inflate_to", None)
    with pytest.raises(ValueError, match=r"500,000 parameters take .* give --parameters 0M or fewer"):
        models()


@pytest.mark.slow
def test_the_command_measures_draws_and_goes_on(tmp_path, capsys, still_machine):
    records, out = measured("gpu", tmp_path / "gpu.jsonl", capsys)
    assert "plain decoding reaches" in out and "times as fast as transformers-assisted k=2 (goal 2)" in out
    assert (tmp_path / "gpu.svg").read_text().startswith("<svg")
    assert [record["kind"] for record in records] == [RUN, "device", "device"]
    one, two = records[1:]
    assert set(one["sides"]) == {PLAIN, CONTROL, PEER, "drafted k=2", "transformers-assisted k=2"}
    assert set(two["sides"]) == {PLAIN, CONTROL, PEER, "drafted k=2"}
    assert all(side["tokens"] == 4 * 6 for record in (one, two) for side in record["sides"].values())
    assert all(side["identical"] for side in one["sides"].values()), "greedy in float64: all say the same"


def test_dense_attention_is_for_comparing_with_flex(monkeypatch, tmp_path, still_machine):
    monkeypatch.setattr("benchmarks.gpu.DEVICES", {"cpu"})
    made = []
    monkeypatch.setattr("benchmarks.gpu.run_plan", lambda *_, models, **__: made.append(models) or [])
    small("gpu", tmp_path / "gpu.jsonl", "--dense")
    assert [loaded.lm.attention for loaded in (made[0].target, made[0].draft)] == [TreeAttention] * 2


def test_batches_that_there_is_no_time_for_are_left_out_and_said(tmp_path, capsys, still_machine):
    assert small("gpu", tmp_path / "gpu.jsonl", "--minutes", "0.00001") == 2, "there is nothing to show"
    out = capsys.readouterr().out
    assert "no time was left for batch 1:" in out and "no time was left for batch 2:" in out


def test_repeats_fill_an_even_share_of_the_time(monkeypatch, tmp_path):
    now = [0.0]

    class Side:
        def run(self):
            now[0] += 5.0

    taken = []
    monkeypatch.setattr(gpu_sides, "_sides", lambda *_: [Side(), Side()])  # ten seconds for all sides together

    def compare(sides, *, repeats, **_):
        taken.append(repeats)
        now[0] += 10.0 * repeats
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_sides, "compare", compare)
    for minutes, repeats in ((2.0, 5), (1.4, 3), (20.0, 7)):
        now[0] = 0.0
        with pytest.raises(KeyboardInterrupt):
            run_plan(
                Plan(batches=(1, 8), minutes=minutes),
                models=None,
                prompts=[[1, 2]],
                raw=RawFile(tmp_path / "none.jsonl"),
                run="r",
                say=lambda _: None,
                clock=lambda: now[0],
            )
        assert taken.pop() == repeats


def test_the_limit_counts_a_forward_for_each_token_and_one_for_the_prompts():
    record = {"batch": 2, "num_tokens": 10, "prompts": [30, 50, 40, 40]}
    step = bound(WORK, RATES, rows=2, nodes=1, slots=45).seconds
    prompt = bound(WORK, RATES, rows=2, nodes=40, slots=20).seconds
    assert step == pytest.approx((1e8 + 2 * 45 * 1000) / 1e9)
    assert least_seconds(record, WORK, RATES) == pytest.approx(2 * (10 * step + prompt))


def records_of(**seconds):
    """A run of one batch of four texts of ten tokens; seconds of each side, the same in all repeats."""
    sides = {
        name.replace("_", " "): dict(seconds=[value] * 3, tokens=40, steps=20, phases=[], identical=True)
        for name, value in seconds.items()
    }
    sides["transformers-assisted k=3"] = sides.pop("assisted")
    sides["drafted k=3"] = sides.pop("drafted")
    notes = {"device": "a GPU", "work": asdict(WORK), "rates": asdict(RATES)}
    run = {"kind": RUN, "run": "r", "conditions": {}, "notes": json.loads(json.dumps(notes))}
    cell = dict(kind="device", run="r", batch=1, prompts=[20] * 4, num_tokens=10, void=False, sides=sides)
    return [run, cell]


def test_figures_are_shares_of_the_limit_and_ratios_of_times():
    found = records_of(plain=8.0, control=8.0, transformers=12.0, drafted=4.0, assisted=10.0)
    (line,) = batches_of(found[0], found)
    assert line.share.value == pytest.approx(4 * (10 * (1e8 + 25_000) + 1e8 + 10_000) / 1e9 / 8)
    assert (line.rate(PLAIN), line.rate(line.best), line.tokens_per_step) == (5.0, 10.0, 2.0)
    assert [speedup(line).value for speedup in SPEEDUPS.values()] == [2.0, 3.0, 1.5, 2.5]
    assert line.best == "drafted k=3" and line.forward_share is None
    assert goals_of([line])[1] == ("drafted decoding is 2.50 times as fast as transformers-assisted k=3 (goal 2)")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_command_says_what_is_missing(tmp_path, capsys):
    assert run("gpu", "--output", tmp_path / "gpu.jsonl") == 2
    error = capsys.readouterr().err
    assert "no CUDA device" in error and "--device cpu --parameters 20M" in error
    assert not (tmp_path / "gpu.jsonl").exists()


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device")
def test_a_small_target_is_measured_on_the_device(tmp_path, capsys):
    path = tmp_path / "gpu.jsonl"
    words = ("--parameters", "100M", "--max-tokens", 8, "--batch", 1, "--k", 3, "--output", path)
    assert run("gpu", *words) == 0 and "plain decoding reaches" in capsys.readouterr().out
