"""Some hundred made-up batches of requests, the same in every run; `make fuzz` has thousands that are new."""

from hypothesis import HealthCheck, given, settings

from tests.fuzz.cases import cases
from tests.fuzz.serve import Tally, everything_is_shared_and_measured_often, serve
from tests.fuzz.target import designs, heads

OTHERS = sorted({drafter for drafter, *_ in designs()}.difference(heads()))
MANY, FEW = 7, 3  # examples of each drafter that is no head, and of each head


def serve_made_up(among, number, tally):
    """Serve ``number`` cases of the drafters ``among``."""

    @settings(
        max_examples=number, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=cases(among))
    def check(case):
        serve(case, tally)

    check()


def test_every_token_is_one_that_its_request_allows():
    tally = Tally()
    with everything_is_shared_and_measured_often():
        for name in OTHERS:  # apart: which examples Hypothesis makes up depends on the modules that are loaded
            serve_made_up([name], MANY, tally)
        for head in heads():
            serve_made_up([head], FEW, tally)
    assert not tally.broken
    for kind in ("stop", "length", "drafted", "corrected", "bonus", "plain"):
        assert tally.seen[kind] > 20, f"examples that do not show what they are for: {kind}"
    for name in {*OTHERS, *heads()} - {"none"}:
        assert tally.kept[name]["drafted"] > 4, f"examples that do not show what they are for: {name}"
