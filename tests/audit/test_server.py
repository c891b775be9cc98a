"""An audit passes a server of the reference model whatever it reports, and names what differs on others."""

import pytest
import torch

from paceline.api import load
from paceline.audit.client import CompletionClient
from paceline.audit.server import audit_server
from paceline.audit.token_recovery import TokenSource
from tests.audit.character_model import PROMPTS, folder
from tests.audit.stub import Stub, altered, serving

WRONG_DISTRIBUTION = "sampled tokens do not follow the reference's distribution"
WRONG_LOGPROBS = "the server's logprobs differ from the reference's by more than 0.1"


@pytest.fixture(scope="module")
def target():
    return load(folder(), dtype="float32", device="cpu", enforce_eager=True)


def run(target, stub, **changes):
    given = dict(model="the-model", num_tokens=150, text_length=16, batch_size=16, seed=5, near_tie=0.01)
    given |= dict(on_progress=lambda *_: None, **changes)
    with serving(stub) as url:
        return audit_server(target, CompletionClient(url=url), PROMPTS, **given)


def sharper(logits):
    return 1.3 * logits


def swapped(logits):
    """The two most probable tokens exchanged at some positions."""
    top = logits.topk(2).indices
    other = logits.scatter(-1, top, logits.gather(-1, top).flip(-1))
    return torch.where(logits.sum(-1, keepdim=True).sin() > 0.9, other, logits)


def flatter(bias):
    """Distributions moved by ``bias`` in total variation toward the uniform one."""

    def change(logits):
        probs = logits.double().softmax(-1)
        uniform = torch.full_like(probs, 1 / probs.shape[-1])
        distance = (probs - uniform).abs().sum(-1, keepdim=True) / 2
        return (probs + (uniform - probs) * (bias / distance.clamp(min=bias))).log().to(logits.dtype)

    return change


@pytest.mark.parametrize(("reports", "source"), [("ids", "token ids"), ("strings", "token strings")])
def test_correct_server_passes(target, reports, source):
    stub = Stub(target=target, reports=reports)
    found = run(target, stub, num_tokens=900)
    assert found.failures == [] and found.notes == []
    assert found.goodness_of_fit.num_tokens >= 900 and found.recovery.source == source
    greedy, repeats = found.greedy, found.seed_repeats
    assert (greedy.num_sequences, greedy.divergence_points, found.miscounted_prompts) == (8, (), ())
    assert (repeats.num_sequences, repeats.num_equal) == (8, 8)
    assert found.logprobs.count > 800 and found.logprobs.mean < 1e-4
    seeds = [(body["prompt"], body["seed"]) for body in stub.requests if body["temperature"] == 1.0]
    assert len(set(seeds)) == len(seeds) - 8  # the first completions are requested twice


@pytest.mark.slow
def test_correct_server_without_token_ids_passes_against_reencoded_text(target):
    found = run(target, Stub(target=target, reports="nothing", known=frozenset()), num_tokens=600)
    assert found.failures == [] and found.extra_fields == {}
    assert found.recovery.source == TokenSource.TEXT.value and found.logprobs is None
    assert len(found.notes) == 1 and "reports no token ids" in found.notes[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reports", ["ids", "nothing"])
def test_another_temperature_is_named(target, reports):
    found = run(target, Stub(target=altered(target, sharper), reports=reports), num_tokens=1500)
    assert WRONG_DISTRIBUTION in found.failures
    assert found.greedy.divergence_points == ()
    assert (WRONG_LOGPROBS in found.failures) is (reports == "ids")


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "failures"), [(0.02, 1), (0.0, 0)])
def test_bias_of_two_percent_is_rejected_in_20000_tokens(target, bias, failures):
    served = altered(target, flatter(bias)) if bias else target
    found = run(target, Stub(target=served, reports="ids"), num_tokens=20_000, text_length=64)
    assert found.goodness_of_fit.num_tokens < 23_000
    assert found.failures == [WRONG_DISTRIBUTION][:failures]


def test_divergence_points_above_the_near_tie_margin_are_errors(target):
    found = run(target, Stub(target=altered(target, swapped))).greedy
    assert found.divergence_points and found.errors
    assert all(0 <= point.position < 16 and point.margin > 0 for point in found.divergence_points)
    largest = max(point.margin for point in found.divergence_points)
    tolerant = run(target, Stub(target=altered(target, swapped)), near_tie=largest)
    assert tolerant.greedy.divergence_points == found.divergence_points and tolerant.greedy.errors == ()
    assert not any("greedy" in failure for failure in tolerant.failures)


def test_lossy_verifier_is_named(target):
    stub = Stub(target=target, drafting=dict(drafter=target, verifier="lossy_typical:epsilon=1e-9"))
    assert run(target, stub).failures == [WRONG_DISTRIBUTION]


def test_ignored_seeds_are_noted(target):
    found = run(target, Stub(target=target, seeds=False))
    assert found.failures == [] and found.seed_repeats.num_equal < 8
    assert "differ when requested again with the same seed: the server ignores seeds" in found.notes[0]


@pytest.mark.slow
def test_other_prompt_lengths_are_named(target):
    found = run(target, Stub(target=target, bos=True))
    assert found.miscounted_prompts == tuple(range(8))
    assert found.failures[0].startswith("8 of 8 prompts have another number of tokens on the server")
    assert run(target, Stub(target=target, usage=False)).miscounted_prompts is None


def test_end_of_text_is_tested_as_a_token(target):
    ending = altered(target, lambda logits: logits + 4 * (torch.arange(logits.shape[-1]) == 0))
    for reports in ("ids", "strings"):
        found = run(ending, Stub(target=ending, reports=reports, finish="eos"))
        assert found.failures == [] and found.goodness_of_fit.num_tokens / found.recovery.num_sequences < 12
    endless = altered(ending, lambda logits: logits.masked_fill(torch.arange(logits.shape[-1]) == 0, -100.0))
    assert WRONG_DISTRIBUTION in run(ending, Stub(target=endless)).failures


def test_wrong_logprobs_are_named(target):
    found = run(target, Stub(target=target, shift=0.2))
    assert found.failures == [WRONG_LOGPROBS]
    assert found.logprobs.mean == pytest.approx(0.2, abs=1e-3)


@pytest.mark.slow
def test_completions_without_recoverable_tokens_are_refused(target):
    stub = Stub(target=target, reports="nothing")
    stub._response = lambda result, body: {"choices": [{"text": "\ufffd", "finish_reason": "length"}]}
    with pytest.raises(ValueError, match="of only 0 of 40 sampled completions can be recovered: let the"):
        run(target, stub)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_tokens=0), "0 tokens in texts of 16: give at least 1"),
        (dict(text_length=1), "150 tokens in texts of 1: give at least 1 token and texts of at least 2"),
        (dict(batch_size=0), "--batch-size 0: give at least 1"),
        (dict(near_tie=-1.0), "--near-tie -1: give a number of nats from 0"),
        (dict(near_tie=float("nan")), "--near-tie nan: give"),
    ],
)
def test_counts_are_checked_before_any_request(target, changes, message):
    stub = Stub(target=target)
    with pytest.raises(ValueError, match=message):
        run(target, stub, **changes)
    assert stub.requests == []
