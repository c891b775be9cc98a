"""Advice from steps on imagined machines, and what it becomes on others."""

import pytest
import torch

from paceline.api import build_drafter, load
from paceline.bench import what_if
from paceline.bench.advice import Advice, Setting, advise, fit, measure
from paceline.bench.advisor import find_advice
from paceline.bench.depth_trials import HOLD, DepthTrials
from paceline.bench.statistics import Estimate
from paceline.bench.what_if import Imagined, Products, WhatIf, imagine, read_what_if
from paceline.core.step import PhaseSeconds
from paceline.engine.costs import StepWork
from paceline.engine.knowledge import MAX_DRAFT_TOKENS
from paceline.hardware.rates import Products as Rate
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Work
from tests.api.checkpoints import pair
from tests.engine.machine import Machine

SETTING = Setting(drafter="ngram", batch_size=1, temperature=0.0)


def trials(acceptance, *, rows=1, num_tokens=1500, **machine):
    plan = DepthTrials(rows=rows, max_draft_tokens=MAX_DRAFT_TOKENS, prompts={(1,): 0})
    plan.begin()
    Machine(plan, rows=rows, **machine).serve(lambda *_: acceptance, num_tokens=num_tokens)
    return plan.trials


def best(found):
    return advise(SETTING, found, device="cpu")


def speedup(acceptance, depth, *, rows=1, growth, draft):
    """Of a fixed length on such a machine."""
    expected = sum(acceptance**at for at in range(depth + 1))
    plain = 1 + growth * (rows - 1)
    return expected * plain / (1 + growth * (rows * (1 + depth) - 1) + draft * depth)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_the_advice_is_what_the_machine_gives(acceptance, rows):
    costs = dict(growth=0.05, draft=0.05)
    found = best(trials(acceptance, rows=rows, num_tokens=6000, disturbed=20, **costs))
    for depth in range(MAX_DRAFT_TOKENS + 1):
        true = speedup(acceptance, depth, rows=rows, **costs)
        assert found.speedups[depth].value == pytest.approx(true, rel=0.12)
    assert found.depths[0].break_even == 1 and found.depths[0].expected == 1
    assert speedup(acceptance, found.best, rows=rows, **costs) > 0.95 * max(
        speedup(acceptance, depth, rows=rows, **costs) for depth in range(1, MAX_DRAFT_TOKENS + 1)
    )
    assert found.speedup.low <= found.speedup.value <= found.speedup.high


def test_a_length_that_pays_goes_before_one_that_may():
    def ranges(*given):
        values = [Estimate(value=1.0, low=1.0, high=1.0), *(Estimate(value=v, low=low, high=2.0) for v, low in given)]
        return Advice(setting=SETTING, depths=(), speedups=values, num_steps=1)

    assert ranges((1.2, 1.1), (1.3, 0.9)).best == 1 and ranges((1.2, 1.1), (1.3, 0.9)).pays
    assert ranges((1.2, 0.8), (1.3, 0.9)).best == 2 and not ranges((1.2, 0.8), (1.3, 0.9)).pays


def test_useless_drafts_do_not_pay():
    found = best(trials(0.02, growth=0.1, draft=0.1))
    assert not found.pays and found.speedup.value < 1 and found.best == 1


def test_all_lengths_are_timed_alike_often_and_not_right_after_a_change():
    found = trials(0.5, growth=0.05, draft=0.05)
    timed = [sum(step.work.depth == depth for step in found.steps) for depth in range(MAX_DRAFT_TOKENS + 1)]
    assert max(timed) - min(timed) <= HOLD + 1 and min(timed) > 10
    assert sum(found.num_steps.values()) == pytest.approx(sum(timed) * HOLD / (HOLD - 1), rel=0.1)


def test_nothing_counts_before_it_begins():
    plan = DepthTrials(rows=1, max_draft_tokens=4, prompts={(1,): 0})
    Machine(plan).serve(lambda *_: 0.5, num_tokens=200)
    assert not plan.trials.steps and not plan.trials.counts and plan.max_draft_tokens == 4


def test_what_a_controller_begins_with_is_of_all_trials():
    found = [trials(0.8, growth=0.05, draft=0.05), trials(0.8, rows=4, growth=0.05, draft=0.05)]
    known = fit(found, device="cpu")
    assert known.greedy.rates[0] == pytest.approx(0.8, abs=0.08) and not known.sampled.counts.asked
    found[1].greedy = False
    assert fit(found, device="cpu").sampled.counts.asked > 0
    assert known.costs.score.measured(1) and known.costs.score.measured(4, 3)
    work = StepWork(4, 20, 4, 16)
    assert known.costs.seconds(work).score / known.costs.seconds(StepWork(1, 1)).score == pytest.approx(1.95, rel=0.02)


def rates(read, peak, *, rows=(1, 8)):
    """Of a machine whose products of one row are memory-bound and of eight compute-bound, if ``peak`` is small."""
    speeds = tuple(1 / max(1 / read, 2 * count / 2 / peak) for count in rows)
    products = Rate(itemsize=2, rows=rows, bytes_per_second=speeds, peak=peak)
    return Rates(
        device="cpu",
        num_threads=torch.get_num_threads(),
        working_set=1,
        read=read,
        copy=read,
        products={"bfloat16": products},
    )


WORK = Work(dtype="bfloat16", weight_bytes=10**9, num_weights=5 * 10**8, slot_bytes=0, slot_flops=0)


def imagined(*, kernel=False, **changes):
    """A change of a machine of 10 GB/s and 1000 GFLOP/s: the forward of one node reads for 0.1 s."""
    here = rates(10e9, 1e12)
    there = what_if._scaled(here, **{"memory": 1.0, "arithmetic": 1.0, **changes})
    return Products(work=WORK, now=here, there=there, kernel=kernel)


def test_memory_bound_forwards_follow_the_bandwidth_and_not_the_arithmetic():
    assert imagined(memory=2.0).scaled(0.1, 1) == pytest.approx(0.2, rel=0.01)
    assert imagined(arithmetic=2.0).scaled(0.1, 1) == pytest.approx(0.1, rel=0.01)


def test_compute_bound_forwards_follow_the_arithmetic_and_not_the_bandwidth():
    here = rates(1e12, 1e10)
    for changes, factor in ((dict(memory=2.0, arithmetic=1.0), 1), (dict(memory=1.0, arithmetic=2.0), 2)):
        change = Products(work=WORK, now=here, there=what_if._scaled(here, **changes), kernel=False)
        assert change.scaled(0.8, 8) == pytest.approx(0.8 * factor, rel=0.01)


def test_what_is_no_product_stays_as_measured():
    assert imagined(memory=2.0).scaled(0.15, 1) == pytest.approx(0.25, rel=0.01)
    change = Imagined(target=imagined(memory=2.0), draft=None, drafts_with_target=False, assumptions=())
    taken = change(StepWork(1, 1, 2, 2), PhaseSeconds(draft=0.3, score=0.1, decide=0.4, rest=0.5))
    assert (taken.draft, taken.decide, taken.rest) == (0.3, 0.4, 0.5) and taken.score == pytest.approx(0.2, rel=0.01)
    own = Imagined(target=change.target, draft=imagined(memory=3.0), drafts_with_target=True, assumptions=())
    assert own(StepWork(1, 3, 2, 2), PhaseSeconds(draft=0.2, score=0.1)).draft == pytest.approx(0.6, rel=0.01)
    shared = Imagined(target=change.target, draft=None, drafts_with_target=True, assumptions=())
    assert shared(StepWork(1, 3, 2, 2), PhaseSeconds(draft=0.2, score=0.1)).draft == pytest.approx(0.4, rel=0.01)
    assert shared(StepWork(1, 1), PhaseSeconds(draft=0.2, score=0.1)).draft == 0.2, "a plain step drafts nothing"


def test_the_rest_of_a_forward_in_the_kernel_follows_the_arithmetic():
    assert imagined(kernel=True, arithmetic=2.0).scaled(0.15, 1) == pytest.approx(0.2, rel=0.01)
    assert imagined(kernel=True, memory=2.0).scaled(0.15, 1) == pytest.approx(0.25, rel=0.01)


def test_the_same_machine_changes_nothing():
    found = trials(0.6, growth=0.05, draft=0.05)
    change = Imagined(target=imagined(), draft=imagined(), drafts_with_target=True, assumptions=())
    same = advise(SETTING, found, device="cpu", change=change)
    for one, other in zip(best(found).depths, same.depths, strict=True):
        assert one.seconds == pytest.approx(other.seconds, rel=1e-6)


@pytest.fixture
def measured(monkeypatch):
    """A made-up machine: half the threads, half the rates."""
    calls = []

    def measure_model_rates(lm, *, progress):
        calls.append(torch.get_num_threads())
        return rates(10e9 * calls[-1], 1e12 * calls[-1])

    monkeypatch.setattr(what_if, "measure_model_rates", measure_model_rates)
    monkeypatch.setattr(what_if, "forward_work", lambda lm: WORK)
    monkeypatch.setattr(what_if.os, "cpu_count", lambda: 2)
    return calls


def test_threads_that_the_machine_has_are_measured(measured):
    made = imagine(WhatIf(threads=2), target=None, draft=None, drafts_with_target=False, kernel=False, progress=print)
    assert measured == [1, 2] * what_if.TURNS and torch.get_num_threads() == 1
    assert made.target.scaled(0.1, 1) == pytest.approx(0.05)
    assert "10 GB/s and 1e+03 GFLOP/s here, 20 GB/s and 2e+03 GFLOP/s there" in made.assumptions[0]


def test_more_threads_than_cores_add_arithmetic_and_no_bandwidth(measured):
    made = imagine(WhatIf(threads=8), target=None, draft=None, drafts_with_target=False, kernel=False, progress=print)
    there = made.target.there
    assert there.read == 20e9 and there.products["bfloat16"].peak == pytest.approx(8e12)
    assert "8 threads are more than the 2 cores here" in made.assumptions[0]


def test_bandwidth_and_arithmetic_are_given_as_absolute_figures(measured):
    asked = WhatIf(bandwidth=5e9, flops=4e12)
    there = imagine(asked, target=None, draft=None, drafts_with_target=False, kernel=False, progress=print).target.there
    assert there.read == pytest.approx(5e9) and there.products["bfloat16"].peak == pytest.approx(4e12)
    assert str(asked) == "bandwidth=5,flops=4000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed=3", "unknown key 'speed'; known: bandwidth, flops, threads"),
        ("bandwidth", "bandwidth=: give a number of GB/s above 0"),
        ("bandwidth=fast", "bandwidth=fast: give a number of GB/s above 0"),
        ("flops=-3", "flops=-3: give a number of GFLOP/s above 0"),
        ("flops=inf", "flops=inf"),
        ("bandwidth=nan", "bandwidth=nan"),
        ("threads=1.5", "threads=1.5: give a whole number of threads above 0"),
        ("threads=0", "threads=0"),
        ("threads=1,threads=2", "threads is given twice"),
        ("", "unknown key ''"),
    ],
)
def test_other_machines_are_refused_by_name(text, said):
    with pytest.raises(ValueError, match=f"--what-if {text}: .*{said}" if said[0] == "u" else said):
        read_what_if(text)


def test_a_machine_is_read():
    assert read_what_if("bandwidth=20, flops=300,threads=2") == WhatIf(bandwidth=20e9, flops=300e9, threads=2)


def test_real_drafters_are_measured_and_tokens_counted():
    target = load(pair().target, device="cpu")
    prompts = [target.tokenizer.encode("def add(first"), target.tokenizer.encode("for item in")]
    drafter = build_drafter(pair().target, target=target)
    found = measure(target, drafter, prompts, batch_size=2, temperature=0.0, max_tokens=48)
    assert set(found.counts) == {0, 1} and min(found.pool().rates) > 0.9, "the draft is the target"
    assert {step.work.nodes for step in found.steps} == {2 * (1 + depth) for depth in range(MAX_DRAFT_TOKENS + 1)}
    progress = []
    advice = find_advice(
        target,
        {"ngram": build_drafter("ngram", target=target)},
        prompts,
        batch_sizes=[1],
        temperatures=[0.0, 1.0],
        max_tokens=32,
        seed=0,
        what_if=None,
        progress=lambda what, share: progress.append((what, share)),
    )
    assert [one.setting.temperature for one in advice.advice] == [0.0, 1.0] and not advice.imagined
    assert progress[0] == ("ngram, batch size 1, temperature 0", 0.0) and progress[-1][1] == 1.0
    assert set(advice.knowledge) == {"ngram"}


def test_a_drafter_that_fails_is_named():
    target = load(pair().target, device="cpu")
    drafter = build_drafter("ngram", target=target)

    def fail(batch, plan):
        raise RuntimeError("out of luck")

    drafter.propose = fail
    with pytest.raises(ValueError, match="the drafter failed: out of luck"):
        measure(target, drafter, [[5, 6, 7]], batch_size=1, temperature=0.0, max_tokens=32)
