"""The drafter layer_skip by name: where its set comes from, and what is refused."""

import json
import shutil
from dataclasses import replace

import pytest

import paceline
from paceline.api.build import build_drafter
from paceline.api.drafter_like import check_drafter
from paceline.api.loading import load
from paceline.api.profiles import conditions_of
from paceline.api.skip_sets import FILE_NAME, SkipSet, read_set, set_path, write_set
from paceline.cli import run
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.drafters.sublayer_search import OnTheFly
from paceline.models.sublayers import SkippedSublayers
from tests.api.checkpoints import pair

PROMPT = [7, 3, 5, 7, 3, 5, 7]
SOME = SkippedSublayers(attention=frozenset({1}), mlp=frozenset({2}))
FOUND = SkipSet(sublayers=SOME, num_draft_tokens=4, measured={"speedup": 1.5})


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


@pytest.fixture
def own(tmp_path):
    """A target with a directory of its own."""
    shutil.copytree(pair().target, tmp_path / "target")
    return load(tmp_path / "target", device="cpu")


@pytest.mark.parametrize(
    ("text", "attention", "mlp"),
    [
        ("layer_skip:attention=1,mlp=2", {1}, {2}),
        ("layer_skip:attention=0-1;2", {0, 1, 2}, set()),
        ("layer_skip:mlp=0;2", set(), {0, 2}),
    ],
)
def test_layers_as_options(target, text, attention, mlp):
    drafter = build_drafter(text, target=target)
    assert isinstance(drafter, LayerSkipDrafter)
    assert (drafter.sublayers.attention, drafter.sublayers.mlp) == (attention, mlp)


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
@pytest.mark.parametrize("count", [3, "auto"])
@pytest.mark.parametrize("eager", [False, True])
def test_it_drafts_and_changes_no_token(target, verifier, count, eager):
    params = paceline.SamplingParams(max_tokens=24, temperature=0)
    given = load(pair().target, device="cpu", enforce_eager=eager)
    [plain] = paceline.generate(given, [PROMPT], params)
    [result] = paceline.generate(
        given, [PROMPT], params, drafter="layer_skip:attention=1", verifier=verifier, num_draft_tokens=count
    )
    assert result.token_ids == plain.token_ids
    assert sum(result.stats.drafted) > 0


def test_quantised_target_drafts_for_itself():
    params = paceline.SamplingParams(max_tokens=24, temperature=1.0, seed=3)
    given = load(pair().target, device="cpu", dtype="bfloat16", quantization="int8")
    [plain] = paceline.generate(given, [PROMPT], params)
    [result] = paceline.generate(given, [PROMPT], params, drafter="layer_skip:mlp=1", num_draft_tokens=3)
    assert result.token_ids == plain.token_ids and sum(result.stats.accepted) > 0


def test_the_set_beside_the_model_is_found(own):
    path = set_path(own)
    write_set(path, FOUND, own)
    assert read_set(path, own) == FOUND
    for text in ("layer_skip", f"layer_skip:{path}", f"layer_skip:skip={path}", f"layer_skip:{path.parent}"):
        assert check_drafter(text)
        assert build_drafter(text, target=own).sublayers == SOME


def test_a_model_that_is_no_directory_has_its_set_in_the_cache(own, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    named = replace(own, name="owner/name")
    path = set_path(named)
    assert path.parent == tmp_path / "cache" / "layer_skip"
    write_set(path, FOUND, named)
    assert build_drafter("layer_skip", target=named).sublayers == SOME


def test_a_target_without_a_set_says_how_to_get_one(own):
    with pytest.raises(ValueError, match=r"none was searched for .*: run `paceline skip-search .*target`, or give"):
        build_drafter("layer_skip", target=own)


def test_the_set_of_another_model_is_refused(own, tmp_path):
    other = load(pair().draft, device="cpu")
    write_set(tmp_path / "other.json", FOUND, other)
    with pytest.raises(ValueError, match=r"was found for another model .*; search again"):
        build_drafter(f"layer_skip:{tmp_path / 'other.json'}", target=own)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is no set of sub-layers"),
        ("[]", "it has no kind"),
        ('{"kind": "paceline_layer_skip"}', "has version None of the format"),
        ('{"kind": "paceline_layer_skip", "version": 1}', "is no set of sub-layers: KeyError"),
    ],
)
def test_a_broken_file_is_refused(target, tmp_path, text, message):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ValueError, match=message):
        build_drafter(f"layer_skip:{tmp_path}", target=target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("attention=x", r"attention=x: layers 'x': write numbers and ranges"),
        ("attention=1,skip=a.json", r"attention=1 beside skip=a.json: give one of the two"),
        ("skip=no/where", r"no/where: no such file"),
        ("no/where", r"no/where: no such file"),
        ("ratio=0.3", r"ratio=0.3 is of on_the_fly=true"),
        ("on_the_fly=true,ratio=1.5", r"ratio=1.5: give a share between 0 and 1"),
        ("layers=3", r"has no option 'layers'; known: attention=None"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(options, message, capsys):
    with pytest.raises(ValueError, match=message):
        check_drafter(f"layer_skip:{options}")
    assert run(["generate", "--model", "owner/name", "--drafter", f"layer_skip:{options}", "x"]) == 2
    assert "owner/name" not in capsys.readouterr().err


def test_a_layer_that_the_target_lacks_is_refused(target):
    with pytest.raises(ValueError, match="mlp=7: the model has no layer 7"):
        build_drafter("layer_skip:mlp=7", target=target)


def test_a_target_that_transformers_runs_is_refused():
    given = load(pair().target, device="cpu", backend="hf")
    with pytest.raises(ValueError, match="run by transformers: load it with backend='native'"):
        build_drafter("layer_skip:mlp=1", target=given)


def test_on_the_fly_begins_with_the_given_set(target):
    drafter = build_drafter("layer_skip:on_the_fly=true,ratio=0.3,seed=4,mlp=1", target=target)
    assert drafter.on_the_fly == OnTheFly(ratio=0.3, seed=4)
    assert drafter.sublayers == SkippedSublayers(mlp=frozenset({1}))


def test_on_the_fly_changes_no_token(target):
    params = [paceline.SamplingParams(max_tokens=80, temperature=t, seed=2, ignore_eos=True) for t in (0.0, 1.0)]
    plain = paceline.generate(target, [PROMPT] * 2, params)
    drafter = build_drafter("layer_skip:on_the_fly=true", target=target)
    found = paceline.generate(target, [PROMPT] * 2, params, drafter=drafter, num_draft_tokens=3)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    assert drafter.search.num_tried > 0


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_on_the_fly_under_a_verifier_that_follows_the_draft_is_refused_before_loading(verifier, capsys):
    words = ["--drafter", "layer_skip:on_the_fly=true", "--verifier", verifier, "x"]
    assert run(["generate", "--model", "no/where", *words]) == 2
    assert f"{verifier}'s tokens depend on the draft" in capsys.readouterr().err


def test_two_drafters_of_one_target_may_stand_beside_each_other(target):
    params = paceline.SamplingParams(max_tokens=24, temperature=0)
    [plain] = paceline.generate(target, [PROMPT], params)
    [result] = paceline.generate(target, [PROMPT], params, drafter=["ngram", "layer_skip:mlp=1"])
    assert result.token_ids == plain.token_ids


def test_profiles_tell_sets_apart(target):
    texts = ("layer_skip:mlp=1", "layer_skip:mlp=0-1", "layer_skip:on_the_fly=true", "layer_skip:attention=1")
    names = {json.dumps(dict(conditions_of(target, build_drafter(text, target=target)))) for text in texts}
    assert len(names) == len(texts)
