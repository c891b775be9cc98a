"""Which profile an engine begins with."""

import gc
import logging
import weakref

import pytest
import torch

from paceline.api import Engine, SamplingParams, build_drafter, generate, load
from paceline.api.profiles import conditions_of
from paceline.engine.controller import Controller
from paceline.engine.knowledge import knowledge_of
from paceline.engine.profile import profile_path, write_profile
from tests.api.checkpoints import pair
from tests.engine.test_profile import learnt


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_PROFILES", str(tmp_path / "profiles"))
    return tmp_path / "profiles"


@pytest.fixture
def target():
    """Loaded anew, so that nothing is known of it."""
    return load(pair().target, device="cpu")


def measured(engine):
    """The seconds of a plain step that the engine's controller knows, in its unit; 0 for none."""
    assert isinstance(engine.decoder.plan, Controller)
    return engine.decoder.plan.knowledge.costs.level


def make(target, drafter="ngram", **options):
    return Engine(target, drafter=drafter, batch_size=1, max_length=64, **options)


def test_an_engine_begins_with_the_profile_in_the_cache(target, folder):
    known = learnt()
    assert measured(make(load(pair().target, device="cpu"))) == 0
    write_profile(profile_path(conditions_of(target, build_drafter("ngram", target=target))), conditions(target), known)
    assert measured(make(target)) == known.costs.level
    assert measured(make(load(pair().target, device="cpu"), "ngram:max_ngram=2")) == 0, "another drafter"
    assert measured(make(load(pair().target, device="cpu"), profile=None)) == 0


def conditions(target, drafter="ngram"):
    return conditions_of(target, build_drafter(drafter, target=target))


def test_a_file_may_be_given(target, tmp_path):
    write_profile(tmp_path / "own.json", conditions(target, pair().draft), learnt())
    assert measured(make(target, pair().draft, profile=tmp_path / "own.json")) > 0
    params = SamplingParams(max_tokens=4, seed=3)
    results = generate(target, "for item", params, drafter=str(pair().draft), profile=tmp_path / "own.json")
    plain = generate(target, "for item", params)
    assert results[0].token_ids == plain[0].token_ids


def test_conditions_tell_models_drafters_precision_and_threads_apart(target):
    own = conditions(target)
    assert conditions(load(pair().target, device="cpu")) == own
    changes = {
        "model": conditions(load(pair().draft, device="cpu")),
        "precision": conditions(load(pair().target, dtype="float32", device="cpu")),
        "drafter": conditions(target, "ngram:max_ngram=2"),
        "implementation": conditions(load(pair().target, device="cpu", enforce_eager=True)),
    }
    for name, other in changes.items():
        assert other[name] != own[name] and other["machine"] == own["machine"], name
    adapted = conditions(load(pair().target, device="cpu", backend="hf"))
    assert adapted["model"] != conditions(load(pair().draft, device="cpu", backend="hf"))["model"]
    torch.set_num_threads(2)
    try:
        assert conditions(target)["number of threads"] == "2"
    finally:
        torch.set_num_threads(1)
    assert conditions(target, pair().draft)["drafter"] != conditions(target, pair().target)["drafter"]


def test_a_profile_of_something_else_is_ignored_with_a_warning(target, tmp_path, caplog):
    path = tmp_path / "own.json"
    write_profile(path, {**conditions(target), "machine": "another", "model": "another"}, learnt())
    with caplog.at_level(logging.WARNING, "paceline"):
        assert measured(make(target, profile=path)) == 0
    (record,) = caplog.records
    said = record.getMessage()
    assert "another machine (there another" in said and "another model" in said and "paceline advise" in said


def test_a_damaged_profile_in_the_cache_is_ignored_with_a_warning(target, caplog):
    path = profile_path(conditions(target))
    path.parent.mkdir()
    path.write_text("{", encoding="utf-8")
    with caplog.at_level(logging.WARNING, "paceline"):
        assert measured(make(target)) == 0
    assert "is damaged" in caplog.text and str(path) in caplog.text


def test_no_profile_is_used_where_tokens_depend_on_the_draft(target, tmp_path):
    path = tmp_path / "own.json"
    write_profile(profile_path(conditions(target)), conditions(target), learnt())
    write_profile(path, conditions(target), learnt())
    assert measured(make(target, verifier="rejection")) == 0
    assert knowledge_of(target.lm, build_drafter("ngram", target=target)).costs.level == 0
    for options in (dict(verifier="rejection"), dict(num_draft_tokens=3), dict(drafter=None)):
        with pytest.raises(ValueError, match=r"own.json: nothing begins from it"):
            make(target, **options, profile=path)


def test_a_file_that_is_missing_is_refused(target):
    with pytest.raises(ValueError, match=r"profile nowhere.json: no such file"):
        make(target, profile="nowhere.json")


def test_what_the_process_has_learnt_comes_first(target, tmp_path):
    knowledge_of(target.lm, build_drafter("ngram", target=target)).costs.level = 7.0
    write_profile(tmp_path / "own.json", conditions(target), learnt())
    assert measured(make(target, profile=tmp_path / "own.json")) == 7.0


def test_what_is_learnt_of_a_draft_model_outlives_it(target):
    def known(path):
        drafter = build_drafter(str(path), target=target)
        return knowledge_of(target.lm, drafter), weakref.ref(drafter.own_model)

    first, model = known(pair().draft)
    gc.collect()
    assert model() is None
    again, _ = known(pair().draft)
    other, _ = known(pair().target)
    assert again is first and other is not first
