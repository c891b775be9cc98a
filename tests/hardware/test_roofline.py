"""Rooflines of forwards and steps, and the measured rates they are computed from."""

import pytest
import torch

from paceline.engine.quantized_rates import measure_integers
from paceline.hardware.rates import Products, Rates, measure_rates
from paceline.hardware.roofline import Work, bound
from paceline.hardware.speed_limit import limit
from paceline.models.backend import gemm_for
from paceline.models.loading import build_on_meta
from paceline.models.native.quantization import SCHEMES
from paceline.models.work import forward_work
from tests import tiny

# A made-up machine: 100 GB/s, 1 TFLOP/s, products as fast as memory at one row.
PRODUCTS = Products(itemsize=2, rows=(1, 2, 8), bytes_per_second=(100e9, 50e9, 25e9), peak=1e12)
RATES = Rates(device="cpu", num_threads=1, working_set=1 << 29, read=100e9, copy=90e9, products={"bfloat16": PRODUCTS})
TARGET = Work(dtype="bfloat16", weight_bytes=2 * 10**9, num_weights=10**9, slot_bytes=10**5, slot_flops=10**5)
DRAFT = Work(dtype="bfloat16", weight_bytes=2 * 10**8, num_weights=10**8, slot_bytes=10**4, slot_flops=10**4)
GIVEN = {"gemm_for": gemm_for}
TINY = dict(rows=(1, 2, 4), repeats=1, seconds=0.0, working_set=1 << 20)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_work_counts_the_weights_that_a_forward_uses(make, tied):
    lm = tiny.native(make(tie_word_embeddings=tied))
    work = forward_work(lm)
    parameters = sum(parameter.numel() for parameter in lm.parameters())
    table = tiny.VOCAB * 32
    positions = 0 if make is tiny.llama else 128 * 32
    assert work.num_weights == parameters - positions - (0 if tied else table)
    assert work.weight_bytes == 8 * work.num_weights and work.dtype == "float64"
    kv_heads = 2 if make is tiny.llama else 4
    assert work.slot_bytes == 2 * 3 * kv_heads * 8 * 8 == lm.slot_bytes
    assert work.slot_flops == 2 * 2 * 3 * 4 * 8


@pytest.mark.parametrize("quantization", SCHEMES)
def test_integer_products_are_measured_on_layers_of_the_model(quantization):
    config = tiny.native(tiny.llama(hidden_size=128, intermediate_size=256)).config
    whole = build_on_meta(config, dtype=torch.bfloat16, quantization=quantization)
    options = dict(dtype=torch.bfloat16, device=torch.device("cpu"), rows=(1, 4), repeats=1, seconds=0.0)
    found = measure_integers(config, quantization, working_set=1 << 20, **options)
    work = forward_work(whole)
    assert found.itemsize == pytest.approx(work.weight_bytes / work.num_weights)
    assert found.rows == (1, 4) and found.peak >= max(found.flops) > 0
    one = measure_integers(config, quantization, working_set=1, **options)
    assert one.itemsize > found.itemsize if quantization == "int4" else one.itemsize > 1


def test_forward_is_bound_by_memory_or_arithmetic():
    few = bound(TARGET, RATES, rows=1, nodes=4, slots=0)
    assert (few.memory, few.arithmetic) == pytest.approx((0.02, 0.008))
    assert few.seconds == few.memory and few.binding == "memory"
    many = bound(TARGET, RATES, rows=4, nodes=4, slots=0)
    assert (many.memory, many.arithmetic) == pytest.approx((0.02, 0.032))
    assert many.seconds == many.arithmetic and many.binding == "arithmetic"


def test_cache_is_read_once_per_row_and_attended_once_per_node():
    found = bound(TARGET, RATES, rows=3, nodes=2, slots=1000)
    assert found.memory == pytest.approx((2e9 + 3 * 1000 * 1e5) / 100e9)
    assert found.arithmetic == pytest.approx(3 * 2 * (2e9 + 1000 * 1e5) / 1e12)


def test_step_is_one_target_forward_and_a_draft_forward_per_token():
    plain = limit(TARGET, DRAFT, RATES, acceptance=[])
    drafted = limit(TARGET, DRAFT, RATES, acceptance=[0.9, 0.6, 0.5])
    assert (plain.tokens_per_step, plain.tokens_per_second) == pytest.approx((1, 50))
    assert drafted.num_draft_tokens == 3 and drafted.tokens_per_step == pytest.approx(3)
    assert drafted.seconds == pytest.approx(0.02 + 3 * 0.002)
    assert drafted.tokens_per_second == pytest.approx(3 / 0.026)
    free = limit(TARGET, None, RATES, acceptance=[0.9, 0.6, 0.5])
    assert free.draft is None and free.seconds == pytest.approx(0.02)
    assert limit(TARGET, DRAFT, RATES, acceptance=[], rows=4).tokens_per_second == pytest.approx(200)


def test_attainable_time_is_that_of_the_measured_products():
    plain, drafted = (limit(TARGET, DRAFT, RATES, acceptance=acceptance) for acceptance in ([], [0.5]))
    assert plain.attainable == pytest.approx(0.02)
    assert drafted.attainable == pytest.approx(2e9 / 50e9 + 2e8 / 100e9)
    assert drafted.break_even(plain) == pytest.approx(0.042 / 0.02)
    assert drafted.speed_up(plain) == pytest.approx(1.5 / (0.042 / 0.02))
    assert drafted.attainable >= drafted.seconds and plain.speed_up(plain) == 1


def test_attainable_speed_is_never_above_the_limit():
    quick = Products(itemsize=2, rows=(1,), bytes_per_second=(1e15,), peak=1e12)
    rates = Rates(device="cpu", num_threads=1, working_set=1 << 29, read=100e9, copy=90e9, products={"bfloat16": quick})
    for acceptance in ([], [1.0] * 3, [1.0] * 40):
        found = limit(TARGET, DRAFT, rates, acceptance=acceptance, slots=100)
        assert found.attainable_tokens_per_second == pytest.approx(found.tokens_per_second)


def test_product_rates_are_interpolated_linearly():
    costs = [1e9 * PRODUCTS.seconds_per_byte(rows) for rows in (1, 2, 5, 8, 16, 80)]
    assert costs == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.08, 0.4])
    assert PRODUCTS.flops == pytest.approx((100e9, 100e9, 200e9))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(acceptance=[0.5, 1.1]), "acceptance"),
        (dict(acceptance=[float("nan")]), "acceptance"),
        (dict(acceptance=[], rows=0), "0 rows"),
        (dict(acceptance=[], slots=-1), "-1 slots"),
    ],
)
def test_invalid_arguments_of_limit_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        limit(TARGET, DRAFT, RATES, **options)


def test_unmeasured_precision_is_refused():
    other = Work(dtype="float16", weight_bytes=2, num_weights=1, slot_bytes=0, slot_flops=0)
    for target, draft in ((other, None), (TARGET, other)):
        with pytest.raises(ValueError, match="no rates for float16; measured are bfloat16"):
            limit(target, draft, RATES, acceptance=[0.5])


def test_measurement_returns_every_rate():
    messages = []
    rates = measure_rates(
        dtypes=[torch.float32, torch.bfloat16], device=torch.device("cpu"), **GIVEN, progress=messages.append, **TINY
    )
    assert rates.read > 0 and rates.copy > 0
    assert (rates.device, rates.num_threads, rates.working_set) == ("cpu", torch.get_num_threads(), 1 << 20)
    assert [*rates.products] == ["float32", "bfloat16"] and "multiplying in bfloat16" in messages
    for name, found in rates.products.items():
        assert found.rows == (1, 2, 4) and all(speed > 0 for speed in found.bytes_per_second), name
        assert found.peak >= max(found.flops), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(working_set=1000), "working_set=1000"),
        (dict(rows=(0, 1)), "rows"),
        (dict(rows=(2, 1)), "rows"),
        (dict(rows=()), "rows"),
        (dict(repeats=0), "repeats=0"),
    ],
)
def test_invalid_arguments_of_measure_rates_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        measure_rates(dtypes=[torch.float32], device=torch.device("cpu"), **GIVEN, **{**TINY, **changes})
