"""The lenient test: another distribution within its bound, rejection at lenience 1, and that it says so."""

import pytest
import torch

from paceline.api import SamplingParams
from paceline.verifiers import VERIFIERS
from paceline.verifiers.lossy_lenient import LossyLenient
from paceline.verifiers.rejection import Rejection
from tests.api.engines import engine
from tests.verifiers.enumerated import BEFORE, ROOT, SHAPES, chain, distance, enumerate_step, tables


@pytest.mark.parametrize("shape", ["chain of 1", "chain of 3", "chain of fixed choices", "chain of both"])
def test_lenience_one_is_rejection(shape):
    ours, theirs = (
        enumerate_step(verifier, SHAPES[shape], tables(1)) for verifier in (LossyLenient(lenience=1), Rejection())
    )
    assert torch.equal(ours.joint(), theirs.joint()) and ours.accepted == theirs.accepted


@pytest.mark.parametrize("lenience", [0.5, 0.8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_keeps_more_and_no_token_comes_too_often(lenience, seed):
    found = enumerate_step(LossyLenient(lenience=lenience), chain(1), tables(seed))
    p = tables(seed).target.softmax(-1)[BEFORE, ROOT]
    first = found.joint().view(3, 3).sum(1)
    q = tables(seed).drafts[0].softmax(-1)[BEFORE, ROOT]
    kept, rest = torch.minimum(q, p / lenience), (p - q).clamp(min=0)
    torch.testing.assert_close(first, kept + (1 - kept.sum()) * rest / rest.sum())
    assert bool((first <= p / lenience + 1e-12).all())
    assert distance(found) > 1e-3
    assert found.accepted > enumerate_step(Rejection(), chain(1), tables(seed)).accepted


@pytest.mark.parametrize("lenience", [0, -1, 1.1])
def test_lenience_out_of_range_is_refused(lenience):
    with pytest.raises(ValueError, match=f"lenience={lenience}: give a number above 0"):
        LossyLenient(lenience=lenience)


def test_lossy_verifiers_have_lossy_names_and_results_say_so():
    for name in VERIFIERS.builtin:
        verifier = VERIFIERS.find(name)
        assert verifier.lossless is not name.startswith("lossy_")
        assert verifier.lossless or not verifier.same_tokens
    for name in ("lossy_typical", "lossy_lenient", "block"):
        [result] = engine("model", name).generate([[5]], SamplingParams(max_tokens=3))
        assert result.stats.lossless is (name == "block")
