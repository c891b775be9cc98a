"""A hundred made-up batches of requests, the same in every run; `make fuzz` has thousands that are new."""

from hypothesis import HealthCheck, given, settings

from tests.fuzz.cases import cases
from tests.fuzz.serve import Tally, everything_is_shared_and_measured_often, serve


def test_every_token_is_one_that_its_request_allows():
    tally = Tally()

    @settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=cases())
    def law(case):
        serve(case, tally)

    with everything_is_shared_and_measured_often():
        law()
    assert not tally.broken
    for kind in ("stop", "length", "drafted", "corrected", "bonus", "plain"):
        assert tally.seen[kind] > 20, f"examples that do not show what they are for: {kind}"
