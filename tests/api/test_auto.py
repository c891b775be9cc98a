"""``num_draft_tokens="auto"``: the same tokens, whatever the controller chooses, and what results say of it."""

from pathlib import Path

import pytest

import paceline_demo
from paceline.api import Engine, SamplingParams, generate
from paceline.core.plan import Fixed
from paceline.drafters import DRAFTERS
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.engine.candidates import CandidatePlan
from paceline.engine.controller import Controller
from paceline.engine.copy_plans import CopyPlan
from paceline.engine.knowledge import MAX_DRAFT_TOKENS
from paceline.engine.mixed_plan import MixedPlan
from paceline.engine.readers import AsyncReader, SyncReader
from tests import tiny
from tests.api.engines import LONG, bare, engine, naive, read_by
from tests.drafters.test_candidates import InTurn
from tests.harness import guessable_target, pairs, tiny_drafter

pytestmark = pytest.mark.one_in(14)

PROMPTS = [LONG, [5, 9, 2], [8, 8, 8, 8], [3, 1, 4, 1, 5, 9], [60, 0]]
PARAMS = [
    SamplingParams(max_tokens=40, temperature=temperature, seed=7 + index, ignore_eos=True)
    for index, temperature in enumerate((0.0, 1.0, 0.7, 1.3, 1.0))
]


def tokens_of(drafter, verifier="coupled", *, rows=3, target=None, length="auto"):
    made = engine(drafter, verifier, target=target, num_draft_tokens=length, batch_size=rows)
    return [result.token_ids for result in made.generate(PROMPTS, PARAMS)], made


@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
@pytest.mark.parametrize("drafter", DRAFTERS.builtin)
def test_tokens_are_those_of_plain_decoding(drafter, reader, monkeypatch):
    read_by(monkeypatch, reader)
    model, lm = guessable_target(drafter)
    found, _ = tokens_of(drafter, target=bare(lm))
    wanted = [naive(prompt, params, params.seed, model) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    assert [list(tokens) for tokens in found] == wanted


@pytest.mark.parametrize(
    ("drafter", "verifier"), [pair for pair in pairs() if pair[0] in ("model", "ngram") and pair[1] != "coupled"]
)
def test_the_same_seed_gives_the_same_tokens_under_every_verifier(drafter, verifier):
    """Whatever else runs, and however long steps take."""
    whole, _ = tokens_of(drafter, verifier)
    alone, _ = tokens_of(drafter, verifier, rows=1)
    assert whole == alone == tokens_of(drafter, verifier)[0]


def test_a_drafter_that_fails_is_what_later_steps_name():
    drafter = NgramDrafter()
    made = Engine(bare(), drafter=drafter, num_draft_tokens=Controller(rows=1), batch_size=1, max_length=120)

    def fail(batch, plan):
        raise RuntimeError("out of luck")

    drafter.propose = fail
    (result,) = made.generate([[8, 8, 8, 8]], SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True))
    assert result.stats.no_draft["the drafter failed"] > 30 and len(result.token_ids) == 60


def test_a_drafter_that_does_not_pay_is_not_called_and_results_say_so():
    drafter = NgramDrafter()
    called, propose = [], drafter.propose
    drafter.propose = lambda batch, plan: called.append(plan) or propose(batch, plan)
    made = Engine(bare(), drafter=drafter, batch_size=1, max_length=128)
    made.generate([[5, 9, 2]], SamplingParams(max_tokens=120, temperature=1.0, seed=1, ignore_eos=True))
    called.clear()
    (result,) = made.generate([[7, 7, 1]], SamplingParams(max_tokens=120, temperature=1.0, seed=2, ignore_eos=True))
    lengths = result.stats.draft_lengths
    assert sum(lengths.steps.values()) == result.stats.steps
    assert len(called) == sum(count for depth, count in lengths.steps.items() if depth) <= 40
    assert lengths.steps[0] == result.stats.no_draft["drafting would be slower"] + result.stats.no_draft.get(
        "plain step taken to measure", 0
    )
    assert result.stats.costs[0].depth == 0 and result.stats.costs[0].times_measured > 0


def test_auto_is_the_default_and_plain_decoding_has_no_controller():
    drafted, plain = Engine(bare(), drafter="ngram", max_length=90), Engine(bare(), max_length=90)
    assert isinstance(drafted.decoder.plan, Controller)
    assert drafted.decoder.plan.max_draft_tokens == drafted.decoder.batch.max_depth == MAX_DRAFT_TOKENS
    assert isinstance(plain.decoder.plan, Fixed) and plain.decoder.batch.max_depth == 0


def test_what_one_call_learns_the_next_one_knows():
    target, drafter = bare(), tiny_drafter("model", tiny.target()[1])
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    known = []
    for _ in range(2):
        made = Engine(target, drafter=drafter, batch_size=1, max_length=90)
        known.append((made.decoder.plan.knowledge, made.decoder.plan.knowledge.costs.num_observed))
        made.generate([LONG], params)
    assert known[0][0] is known[1][0] and known[1][1] > 0


def test_a_request_that_allows_fewer_tokens_has_no_more():
    (result,) = generate(
        bare(), [[8, 8, 8, 8]], SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True), drafter="ngram"
    )
    assert max(result.stats.draft_lengths.steps) <= MAX_DRAFT_TOKENS
    with pytest.raises(ValueError, match="num_draft_tokens='automatic': give a number"):
        Engine(bare(), drafter="ngram", num_draft_tokens="automatic", max_length=90)


@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
def test_tokens_of_several_drafters_are_those_of_plain_decoding(reader, monkeypatch):
    read_by(monkeypatch, reader)
    model, lm = tiny.target()
    drafters = [tiny_drafter("model", lm), "ngram", tiny_drafter("early_exit", lm)]
    found, made = tokens_of(drafters, target=bare(lm))
    wanted = [naive(prompt, params, params.seed, model) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    assert [list(tokens) for tokens in found] == wanted
    plan = made.decoder.plan
    assert isinstance(plan, CandidatePlan) and sum(map(bool, plan.steps_by_drafter)) >= 2


def test_tokens_say_which_of_several_drafters_proposed_them():
    lm = tiny.target()[1]
    drafters = [NgramDrafter(), ModelDrafter(lm=lm)]
    made = Engine(bare(lm), drafter=drafters, num_draft_tokens=InTurn((0, 1)), batch_size=1, max_length=128)
    (result,) = made.generate([[8, 8, 8, 8]], SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True))
    assert {"model", None} <= set(result.origin) <= {"model", "ngram", None}


def test_several_drafters_that_cannot_be_chosen_from_are_refused():
    drafters = ["ngram", "ngram:max_ngram=5"]
    with pytest.raises(ValueError, match='num_draft_tokens=3 with 2 drafters: give "auto"'):
        Engine(bare(), drafter=drafters, num_draft_tokens=3, max_length=90)
    with pytest.raises(ValueError, match='the drafter "none" is one of several'):
        Engine(bare(), drafter=["ngram", "none"], max_length=90)
    with pytest.raises(ValueError, match="num_speculative_tokens=4 of one of 2 drafters"):
        Engine(bare(), drafter=["ngram", {"method": "ngram", "num_speculative_tokens": 4}], max_length=90)
    assert isinstance(Engine(bare(), drafter=["ngram"], max_length=90).decoder.drafter, NgramDrafter)


COPYING = {
    "copies": ["copy", "suffix"],
    "auto": ["auto"],
    "copies and a model": ["auto", "model"],
    "copies, prompt lookup and a model": ["ngram", "suffix", "model"],
}


@pytest.mark.parametrize("drafters", COPYING)
@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
def test_tokens_with_copies_are_those_of_plain_decoding(drafters, reader, monkeypatch):
    read_by(monkeypatch, reader)
    model, lm = tiny.target()
    given = COPYING[drafters]
    if isinstance(given, list):
        given = [tiny_drafter("model", lm) if one == "model" else one for one in given]
    found, made = tokens_of(given, target=bare(lm))
    wanted = [naive(prompt, params, params.seed, model) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    assert [list(tokens) for tokens in found] == wanted
    assert made.runner.drafter_error is None
    assert isinstance(made.decoder.plan, MixedPlan if "model" in drafters else CopyPlan)


def test_copies_are_accepted_and_say_who_made_them():
    model, lm = tiny.looping_target()
    made = Engine(bare(lm), drafter=["copy", "suffix", ModelDrafter(lm=tiny.draft())], batch_size=1, max_length=120)
    first, second = made.generate([[2], [2]], SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))
    reference = naive([2], SamplingParams(max_tokens=100, temperature=0.0), 0, model)
    assert list(first.token_ids) == list(second.token_ids) == reference
    assert "suffix" in first.origin and second.stats.mean_acceptance_length > 3


def test_auto_takes_the_heads_in_the_targets_directory(tmp_path):
    target = Path(paceline_demo.__file__).parent / "target"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(target / name)
    (tmp_path / "head").symlink_to(target.parent / "prophet")
    made = Engine(str(tmp_path), drafter="auto", batch_size=1, max_length=64)
    assert made.decoder.drafter.origins[:2] == ("copy", "suffix") and "prophet" in made.decoder.drafter.origins
