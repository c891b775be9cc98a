"""What the machine allows, from scripted rates; and that ours measures them."""

import pytest

from paceline.bench.limits import limit_of, rates_beside
from paceline.bench.sweep import Cell
from tests import tiny

# 100 bytes of 50 weights; a draft of a tenth of that.
WORK = {
    "target": {"dtype": "float32", "weight_bytes": 100, "num_weights": 50, "slot_bytes": 9, "slot_flops": 9},
    "draft": {"dtype": "float32", "weight_bytes": 10, "num_weights": 5, "slot_bytes": 9, "slot_flops": 9},
}
FAST = [{"read": 50.0, "flops": 1e9}, {"read": 100.0, "flops": 1e9}, {"read": 900.0, "flops": 1e9}]


def cell(drafter, k, batch_size=1):
    return Cell(drafter=drafter, num_draft_tokens=k, batch_size=batch_size, temperature=0.0, max_tokens=12)


def record(*, drafted=(), steps=4, rates=FAST, decoded=(1.0,)):
    counts = {"steps": steps, "emitted": 12, "drafted": list(drafted), "accepted": [0] * len(drafted)}
    return {
        "num_tokens": 12,
        "steps": {"candidate": steps},
        "decode_seconds": {"candidate": list(decoded) or None},
        "rates": rates,
        "texts": [{"counts": counts}],
    }


@pytest.mark.parametrize(
    ("chosen", "drafted", "expected"),
    [
        (cell("plain", 0), [], 3 / 1.0),  # 100 bytes at the median of 100 bytes per second
        (cell("ngram", 2), [4, 4], 3 / 1.0),  # copies cost no forward
        (cell("model", 2), [4, 4], 3 / 1.2),  # and two of 10 bytes
        (cell("model", 2), [4, 2], 3 / 1.15),  # the last drafts of a text are short
        (cell("model tree 16", 2), [4, 4], 3 / 1.2),  # a forward for each level
        (cell("model", 2, batch_size=4), [4, 4], 4 * 3 / 1.2),
    ],
)
def test_weights_are_read_once_in_each_forward(chosen, drafted, expected):
    assert limit_of(record(drafted=drafted), {"work": WORK}, chosen) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("chosen", "nodes"), [(cell("plain", 0), 1), (cell("model", 2), 3), (cell("model tree 16", 2), 16)]
)
def test_arithmetic_bounds_a_forward_of_many_nodes(chosen, nodes):
    """100 operations a node of the target, 10 of the draft, 10 a second."""
    slow = [{"read": 1e9, "flops": 10.0}]
    levels = chosen.num_draft_tokens
    found = limit_of(record(drafted=[4] * levels, rates=slow), {"work": WORK}, chosen)
    assert found == pytest.approx(3 / (10.0 * nodes + levels))


def test_integers_are_read_as_they_lie_and_multiplied_as_floats():
    work = {name: {**each, "quantization": "int4"} for name, each in WORK.items()}
    work["target"]["weight_bytes"] = 30
    chosen, taken = cell("model", 2), record(drafted=[4, 4])
    assert limit_of(taken, {"work": work}, chosen) == pytest.approx(3 / 0.5)
    work["draft"]["quantization"] = None
    assert limit_of(taken, {"work": work}, chosen) == pytest.approx(3 / 0.5)


@pytest.mark.parametrize(
    ("taken", "conditions"),
    [
        (record(), {}),
        (record(rates=[]), {"work": WORK}),
        (record(rates=[{}]), {"work": WORK}),
        (record(steps=0), {"work": WORK}),
        (record(decoded=()), {"work": WORK}),
    ],
)
def test_without_its_measures_there_is_no_limit(taken, conditions):
    assert limit_of(taken, conditions, cell("plain", 0)) is None


def test_rates_are_measured():
    rates = rates_beside(tiny.native(tiny.llama()).float())
    assert rates["read"] > 1e6 and rates["flops"] > 1e8
