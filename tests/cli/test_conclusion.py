"""The conclusion of the demo: what it says of which times, and where the table marks a number."""

import pytest
from rich.console import Console

from paceline.bench.runner import Configuration, Sample, compare
from paceline.cli.conclusion import best_of, conclusion, speedup_table, speedups
from paceline.core.stats import Summary
from paceline.engine.costs import DepthCost

TOKENS = 40
FAST, SLOW, UNSURE = [5.0, 5.1, 4.9, 5.0], [20.0, 21.0, 19.0, 20.0], [7.0, 14.0, 9.0, 11.0]


def measure(steps=10, **seconds):
    """Speed-ups where plain decoding takes 10 s for 40 steps and others what is given, for ``steps`` of two tokens."""
    now = [0.0]

    def configuration(name, times, steps, drafted):
        times = iter([99.0, *times])

        def run():
            now[0] += next(times)
            counts = dict(drafted=[drafted, drafted], accepted=[drafted, 0])
            return Sample(tokens=(tuple(range(TOKENS)),), summary=Summary(steps=steps, emitted=TOKENS, **counts))

        return Configuration(name=name, parts=[run])

    sides = [configuration("plain", [10.0] * 4, TOKENS, 0)]
    sides += [configuration(name, times, steps, steps) for name, times in seconds.items()]
    return speedups(compare(sides, baseline="plain", repeats=4, clock=lambda: now[0]))


def cost(depth, break_even, expected):
    return DepthCost(depth=depth, seconds=1.0, break_even=break_even, expected=expected, times_measured=5)


def test_fastest_for_sure_is_the_best():
    found = measure(slow=SLOW, fast=FAST, unsure=[2.0, 30.0, 2.0, 2.0])
    assert found[3].ratio.low < 1 < found[2].ratio.value
    assert best_of(found).name == "fast"
    said = conclusion(found, "--draft DIR", ())
    assert said.startswith("drafting pays here: 2.00x with fast (--draft DIR), at least 1.9")
    assert said.endswith("4.00 tokens per step instead of 1")


CURVE = (cost(0, 1.0, 1.0), cost(1, 1.5, 1.2), cost(2, 2.5, 1.3))
REASONS = {
    "by its costs": (
        (CURVE, SLOW, 10),
        "drafting does not pay here: the best gives 0.50x, with own (--draft D). A step with 1 draft token takes 1.50 "
        "times as long as one without, so it pays from 1.50 tokens, and gives 1.20. A drafter whose tokens are "
        "accepted more often would pay, or a larger target for this one",
    ),
    "by its times": (
        ((), SLOW, 20),
        "0.50x, with own (--draft D). A step with a draft takes 4.00 times as long as one without, so it pays from "
        "4.00 tokens, and gives 2.00 of at most 3. A cheaper drafter would pay, or a larger target for this one",
    ),
    "in the long run": (
        ((cost(0, 1.0, 1.0), cost(1, 1.5, 1.6)), SLOW, 20),
        "so it pays from 1.50 tokens, and gives 1.60: it may pay over longer outputs than these, which "
        "`paceline advise` estimates",
    ),
    "nothing measurable": (
        ((cost(0, 1.0, 1.0), cost(1, 1.5, 1.6)), UNSURE, 20),
        "no drafter is measurably faster here: 0.98x (0.78 to 1.25) with own (--draft D). A step with 1 draft token "
        "takes 1.50 times as long as one without, so it pays from 1.50 tokens, and gives 1.60: too near to tell. "
        "`paceline advise` measures for longer, and a larger target gains more",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_it_says_why_drafting_does_not_pay_and_what_would(case):
    (costs, seconds, steps), said = REASONS[case]
    assert conclusion(measure(steps, own=seconds), "--draft D", costs).endswith(said)


def test_ratios_below_one_are_marked_and_every_line_has_a_bar():
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(speedup_table(measure(slow=SLOW, fast=FAST)))
    _, plain, slow, fast = capture.get().splitlines()
    assert [line.count("<1") for line in (plain, slow, fast)] == [0, 1, 0] and "0.50x <1" in slow
    assert [line.count("━") for line in (plain, slow, fast)] == [5, 2, 10]
