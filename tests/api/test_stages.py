"""Drafters made of drafters, as text and JSON: how they are read, refused, built and counted."""

import json

import pytest

import paceline
from paceline.api.build import build_drafter, build_drafting
from paceline.api.drafter_like import check_one
from paceline.api.loading import load
from paceline.api.stages import Cascade, Leaf, Stages, is_made_of_drafters, read_drafter_parts
from paceline.cli.record import result_object
from paceline.cli.stats import Totals, describe_stage
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.staged import StagedDrafter
from tests.api.checkpoints import pair


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


def one():
    return str(pair().draft)


def other():
    return str(pair().target)


def test_text_and_json_say_the_same():
    draft, big, ngram = (
        Leaf(text=one(), is_model=True),
        Leaf(text=other(), is_model=True),
        Leaf(text="ngram:max_ngram=4", is_model=False),
    )
    staged = Stages(draft=big, inner=Stages(draft=draft, inner=ngram))
    for given in (
        f"model:{other()} < model:{one()} < ngram:max_ngram=4",
        f"{other()}  <  {one()} < ngram:max_ngram=4",
        {"method": "staged", "drafters": [other(), one(), "ngram:max_ngram=4"]},
        json.dumps({"method": "staged", "drafters": [other(), f"{one()} < ngram:max_ngram=4"]}),
    ):
        assert is_made_of_drafters(given) and read_drafter_parts(given).whole == staged
    cascade = Cascade(
        first=Stages(draft=big, inner=ngram), rest=Cascade(first=draft, rest=ngram, num_first=3), num_first=2
    )
    for given in (
        f"model:{other()} < ngram:max_ngram=4 x2 + {one()} x3 + ngram:max_ngram=4",
        {
            "method": "cascade",
            "drafters": [{"method": "staged", "drafters": [other(), "ngram:max_ngram=4"]}, one(), "ngram:max_ngram=4"],
            "counts": [2, 3],
        },
    ):
        assert is_made_of_drafters(given) and read_drafter_parts(given).whole == cascade
    assert read_drafter_parts(f"model:{one()}").whole == draft
    for given in ("ngram", "model", one(), {"method": "ngram"}, "mine.py:Repeat", None):
        assert not is_made_of_drafters(given)


REFUSED = {
    "itself": (lambda: f"{one()} < model:{one()}", "would draft for itself: each stage needs a smaller model"),
    "itself further on": (lambda: f"{one()} < {other()} < {one()}", "would draft for itself"),
    "itself in a cascade": (
        lambda: {
            "method": "staged",
            "drafters": [one(), {"method": "cascade", "drafters": [one(), "ngram"], "counts": [1]}],
        },
        "would draft for itself",
    ),
    "no model above": (lambda: "ngram < ngram", "'ngram' cannot be drafted for: only a draft model can"),
    "unknown part": (
        lambda: f"{one()} < nothing",
        "'nothing' cannot be a part of a drafter: give 'model:DIR' or 'ngram'",
    ),
    "a head": (lambda: f"{one()} < early_exit:exit_layer=1", "'early_exit:exit_layer=1' cannot draft for others"),
    "nothing": (lambda: f"{one()} < none", "'none' cannot draft for others"),
    "no directory": (lambda: "model:nowhere < ngram", "there is no directory 'nowhere'"),
    "a missing path": (lambda: "./nowhere < ngram", "nowhere"),
    "no count": (lambda: f"{one()} + ngram", "how many tokens does"),
    "count of zero": (lambda: f"{one()} x0 + ngram", "0 tokens: give a count of at least 1"),
    "option of a part": (lambda: f"{one()} < ngram:size=3", "has no option 'size'"),
    "unknown key": (lambda: {"method": "staged", "drafters": [one(), "ngram"], "depth": 3}, "unknown 'depth'"),
    "one drafter": (lambda: {"method": "staged", "drafters": [one()]}, "give a list of at least 2"),
    "counts": (
        lambda: {"method": "cascade", "drafters": [one(), "ngram"]},
        "give the tokens of each drafter but the last",
    ),
    "staged alone": (lambda: "staged", "drafter 'staged' is made of drafters: write 'model:DIR < ngram'"),
    "cascade alone": (lambda: "cascade:num_first=3", "is made of drafters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_refused_before_loading(case):
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        check_one(given())


def test_drafters_are_built_part_by_part(target):
    staged = build_drafter(f"model:{one()} < ngram:max_ngram=4", target=target)
    assert isinstance(staged, StagedDrafter)
    assert isinstance(staged.draft, ModelDrafter) and isinstance(staged.inner, NgramDrafter)
    assert staged.inner.max_ngram == 4
    cascade = build_drafting(
        {"method": "cascade", "drafters": [one(), "ngram"], "counts": [2], "num_speculative_tokens": 5}, target=target
    )
    assert cascade.num_draft_tokens == 5 and isinstance(cascade.drafter, CascadeDrafter)
    assert (cascade.drafter.num_first, type(cascade.drafter.first)) == (2, ModelDrafter)
    limited = build_drafter(
        {"method": "staged", "drafters": [one(), "ngram"], "num_inner_tokens": 2, "max_forwards": 3}, target=target
    )
    assert isinstance(limited, StagedDrafter) and (limited.num_inner_tokens, limited.max_forwards) == (2, 3)
    assert isinstance(build_drafter(f"model:{one()}", target=target), ModelDrafter)


@pytest.mark.parametrize("count", ["auto", 5])
@pytest.mark.parametrize("kind", ["staged", "cascade", "candidates"])
def test_tokens_are_those_of_plain_decoding_and_stages_are_counted(kind, count, target):
    if kind == "candidates" and count == 5:
        pytest.skip("which of several drafts is chosen in every step")
    drafter = {
        "staged": f"model:{one()} < ngram",
        "cascade": f"model:{one()} x1 + ngram",
        "candidates": [f"model:{one()} < ngram", "ngram"],
    }[kind]
    params = paceline.SamplingParams(max_tokens=60, temperature=0.7, seed=5, ignore_eos=True)
    prompts = [[5, 9, 2] * 4, [7, 7, 3], [1] * 9]
    plain = paceline.generate(target, prompts, params)
    drafted = paceline.generate(target, prompts, params, drafter=drafter, num_draft_tokens=count)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    totals = Totals.of(drafted)
    if kind == "candidates":
        return
    names = {"staged": ["ngram"], "cascade": ["model", "ngram"]}[kind]
    assert [stage.name for stage in totals.stages] == names
    shown = [result_object(one)["stats"]["stages"] for one in drafted]
    assert all([stage["name"] for stage in stages] == names for stages in shown)
    if count == 5:
        assert sum(totals.stages[-1].summary.drafted) > 0
        assert "tokens accepted by" in describe_stage(totals.stages[-1])
    if kind == "cascade" and count == 5:
        accepted = [sum(sum(stage["accepted"]) for stage in stages) for stages in shown]
        assert accepted == [sum(one.stats.accepted) for one in drafted]
