import pytest
import torch

from paceline.bench.runner import Configuration, Sample, compare, join

SAMPLE = Sample(tokens=((1, 2, 3), (4,)), summary=None)


class Bench:
    """Configurations that take a scripted time on a scripted clock."""

    def __init__(self):
        self.now = 0.0
        self.order = []

    def configuration(self, name, seconds, sample=SAMPLE, effect=lambda: None):
        times = iter(seconds)

        def run():
            self.order.append(name)
            self.now += next(times)
            effect()
            return sample

        return Configuration(name=name, parts=[run])

    def compare(self, *configurations, **options):
        return compare(configurations, baseline="a", clock=lambda: self.now, **options)


def test_speedups_are_paired_repeat_by_repeat_and_warm_up_is_not_counted():
    bench = Bench()
    slow, fast = bench.configuration("a", [99, 4, 8, 16]), bench.configuration("b", [99, 2, 2, 2])
    comparison = bench.compare(slow, fast, repeats=3)
    assert comparison["b"].speedup.values == (2, 4, 8)
    assert comparison["b"].speedup.summary == (4, 2, 8)
    assert comparison["a"].speedup.values == (1, 1, 1)
    assert comparison["a"].tokens_per_second.values == (1, 0.5, 0.25)
    assert comparison["b"].seconds.values == (2, 2, 2)
    assert comparison.num_threads == torch.get_num_threads()


def test_order_turns_round_from_repeat_to_repeat():
    bench = Bench()
    bench.compare(*(bench.configuration(name, [1] * 4) for name in "abc"), repeats=3)
    assert "".join(bench.order) == "cba" + "abc" + "cba" + "abc"


def test_parts_are_timed_in_turn_and_joined():
    bench, order = Bench(), []

    def part(name, at, seconds):
        def run():
            order.append(f"{name}{at}")
            bench.now += seconds
            return Sample(tokens=((at,),), summary=None)

        return run

    def configuration(name, seconds):
        return Configuration(name=name, parts=[part(name, at, seconds) for at in range(3)])

    comparison = bench.compare(configuration("a", 2), configuration("b", 1), repeats=1, warm_up=0)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert comparison["a"].seconds.values == (6,) and comparison["b"].speedup.values == (2,)
    assert comparison["b"].sample.tokens == ((0,), (1,), (2,))


def test_other_numbers_of_parts_are_timed_whole():
    bench = Bench()
    first, second = bench.configuration("a", [2] * 2), bench.configuration("b", [1] * 4)
    halves = Configuration(name="b", parts=[*second.parts, *second.parts])
    twice = Configuration(name="a", parts=[lambda: join([first.run()] * 2)])
    comparison = bench.compare(twice, halves, repeats=1)
    assert "".join(bench.order) == "bba" + "abb"
    assert comparison["b"].seconds.values == (2,)


def test_results_keep_the_order_given():
    bench = Bench()
    comparison = bench.compare(*(bench.configuration(name, [1] * 3) for name in "cab"), repeats=2)
    assert [measured.name for measured in comparison.measured] == ["c", "a", "b"]


def test_different_tokens_are_reported():
    bench = Bench()
    other = Sample(tokens=((1, 2, 9), (4,)), summary=None)
    comparison = bench.compare(bench.configuration("a", [1] * 3), bench.configuration("b", [1] * 3, other), repeats=2)
    assert comparison["a"].identical and not comparison["b"].identical


def test_unequal_token_counts_are_refused():
    bench = Bench()
    short = Sample(tokens=((1, 2),), summary=None)
    with pytest.raises(ValueError, match=r"token counts differ.*a 4, b 2; decode to a fixed length"):
        bench.compare(bench.configuration("a", [1] * 2), bench.configuration("b", [1] * 2, short), repeats=1)


def test_changing_the_threads_is_refused():
    bench, threads = Bench(), torch.get_num_threads()
    greedy = bench.configuration("b", [1] * 2, effect=lambda: torch.set_num_threads(threads + 1))
    try:
        with pytest.raises(ValueError, match=f"b changed the threads from {threads}"):
            bench.compare(bench.configuration("a", [1] * 2), greedy)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("names", ["bc", "aab"])
def test_baseline_must_be_one_of_different_names(names):
    bench = Bench()
    with pytest.raises(ValueError, match="baseline 'a' must be one of different names"):
        bench.compare(*(bench.configuration(name, [1] * 9) for name in names))


def test_no_repeats_are_refused():
    bench = Bench()
    with pytest.raises(ValueError, match="repeats=0: give at least 1"):
        bench.compare(bench.configuration("a", []), repeats=0)


def test_looping_texts_are_counted():
    bench = Bench()
    texts = Sample(tokens=(tuple(range(60)), (1, 2, 3) * 20, (7,) * 60), summary=None)
    comparison = bench.compare(bench.configuration("a", [1] * 2, texts), repeats=1)
    assert comparison["a"].num_looping == 2
