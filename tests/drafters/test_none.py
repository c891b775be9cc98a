"""No draft at all."""

from paceline.drafters.none import NoDrafter
from tests.harness import request, run


def tiny(target):
    return NoDrafter()


def test_every_step_emits_exactly_one_token():
    result = run(NoDrafter(), "coupled", [request([3, 1, 4], max_tokens=7), request([1], max_tokens=5)], k=4)
    assert result.steps == 7
    assert result.summary.mean_acceptance_length == 1.0
    assert sum(result.summary.drafted) == 0
