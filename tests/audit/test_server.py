"""An audit of a server passes honest ones, by whatever they tell, and names what is wrong with others."""

import pytest
import torch

from paceline.api import load
from paceline.audit.client import Server
from paceline.audit.reported import Telling
from paceline.audit.server import audit_server
from tests.audit.spoken import BEGINNINGS, folder
from tests.audit.stub import Stub, altered, serving


@pytest.fixture(scope="module")
def target():
    return load(folder(), dtype="float32", device="cpu", enforce_eager=True)


def run(target, stub, **changes):
    given = dict(
        model="the-model", num_tokens=150, text_length=16, batch_size=16, seed=5, near_tie=0.01, tell=lambda *_: None
    )
    with serving(stub) as url:
        return audit_server(target, Server(url=url), BEGINNINGS, **{**given, **changes})


def cooler(logits):
    return 1.3 * logits


def swapped(logits):
    """Greedy texts of the second likeliest token now and then, sampled ones of another law."""
    top = logits.topk(2).indices
    near = logits.gather(-1, top)
    other = logits.scatter(-1, top, near.flip(-1))
    return torch.where(logits.sum(-1, keepdim=True).sin() > 0.9, other, logits)


def moved(bias):
    """Laws moved by ``bias`` in total variation toward the uniform law."""

    def change(logits):
        law = logits.double().softmax(-1)
        flat = torch.full_like(law, 1 / law.shape[-1])
        far = (law - flat).abs().sum(-1, keepdim=True) / 2
        return (law + (flat - law) * (bias / far.clamp(min=bias))).log().to(logits.dtype)

    return change


@pytest.mark.parametrize(("tells", "telling"), [("ids", Telling.NUMBERS), ("strings", Telling.SPELLINGS)])
def test_an_honest_server_passes(target, tells, telling):
    stub = Stub(target=target, tells=tells)
    found = run(target, stub, num_tokens=900)
    assert found.failures == [] and found.notes == []
    assert found.law.num_tokens >= 900 and found.sampled.telling == telling.value
    assert (found.greedy.num_texts, found.greedy.partings, found.misread) == (8, (), ())
    assert (found.repeats.num_texts, found.repeats.num_equal) == (8, 8)
    assert found.logprobs.count > 800 and found.logprobs.mean < 1e-4
    seeds = [(body["prompt"], body["seed"]) for body in stub.asked if body["temperature"] == 1.0]
    assert len(set(seeds)) == len(seeds) - 8  # the first texts are asked for twice


def test_an_honest_server_that_names_no_tokens_passes_beside_texts_of_the_reference(target):
    found = run(target, Stub(target=target, tells="nothing", known=frozenset()), num_tokens=600)
    assert found.failures == [] and found.asked == {}
    assert found.sampled.telling == Telling.TEXT.value and found.logprobs is None
    assert len(found.notes) == 1 and "names no tokens" in found.notes[0]


@pytest.mark.parametrize("tells", ["ids", "nothing"])
def test_another_temperature_is_named(target, tells):
    found = run(target, Stub(target=altered(target, cooler), tells=tells), num_tokens=1500)
    assert "sampled tokens do not have the reference's law" in found.failures
    assert found.greedy.partings == ()
    assert ("the server's log-probabilities differ from the reference's by more than 0.1" in found.failures) is (
        tells == "ids"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "failures"), [(0.02, 1), (0.0, 0)])
def test_two_percent_are_found_in_20000_tokens_and_nothing_where_nothing_is(target, bias, failures):
    changed = altered(target, moved(bias)) if bias else target
    found = run(target, Stub(target=changed, tells="ids", shift=0.0), num_tokens=20_000, text_length=64)
    assert found.law.num_tokens < 23_000
    assert found.failures == ["sampled tokens do not have the reference's law"][:failures]


def test_greedy_texts_that_part_are_placed_and_near_ties_are_told_from_errors(target):
    stub = Stub(target=altered(target, swapped))
    found = run(target, stub).greedy
    assert found.partings and found.errors
    for one in found.partings:
        assert 0 <= one.position < 16 and one.margin > 0
    largest = max(one.margin for one in found.partings)
    excused = run(target, Stub(target=altered(target, swapped)), near_tie=largest)
    assert excused.greedy.partings == found.partings and excused.greedy.errors == ()
    assert not any("greedy" in failure for failure in excused.failures)


def test_a_server_that_drafts_by_a_lossy_rule_is_found_out(target):
    stub = Stub(target=target, drafting=dict(drafter=target, verifier="lossy_typical:epsilon=1e-9"))
    assert run(target, stub).failures == ["sampled tokens do not have the reference's law"]


def test_a_server_that_ignores_seeds_is_said_to(target):
    found = run(target, Stub(target=target, seeds=False))
    assert found.failures == [] and found.repeats.num_equal < 8
    assert "do not come again with the same seed: the server ignores seeds" in found.notes[0]


def test_another_reading_of_the_prompts_is_named(target):
    found = run(target, Stub(target=target, bos=True))
    assert found.misread == tuple(range(8))
    assert found.failures[0].startswith("8 of 8 prompts are read as another number of tokens")
    assert run(target, Stub(target=target, usage=False)).misread is None


def test_ends_of_texts_are_judged_as_tokens(target):
    """A server that never ends a text is far from a model that does."""
    ending = altered(target, lambda logits: logits + 4 * (torch.arange(logits.shape[-1]) == 0))
    for tells in ("ids", "strings"):
        found = run(ending, Stub(target=ending, tells=tells, finish="eos"))
        assert found.failures == [] and found.law.num_tokens / found.sampled.num_texts < 12
    endless = altered(ending, lambda logits: logits.masked_fill(torch.arange(logits.shape[-1]) == 0, -100.0))
    assert "sampled tokens do not have the reference's law" in run(ending, Stub(target=endless)).failures


def test_log_probabilities_of_another_law_are_named(target):
    found = run(target, Stub(target=target, shift=0.2))
    assert found.failures == ["the server's log-probabilities differ from the reference's by more than 0.1"]
    assert found.logprobs.mean == pytest.approx(0.2, abs=1e-3)


def test_texts_that_tell_nothing_are_not_judged(target):
    stub = Stub(target=target, tells="nothing")
    stub._answer = lambda result, body: {"choices": [{"text": "\ufffd", "finish_reason": "length"}]}
    with pytest.raises(ValueError, match=r"only 0 of 40 sampled texts tell their tokens: let the server give logprobs"):
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
def test_counts_are_checked_before_anything_is_asked(target, changes, message):
    stub = Stub(target=target)
    with pytest.raises(ValueError, match=message):
        run(target, stub, **changes)
    assert stub.asked == []
