"""Another project's head is accepted wherever a drafter is, inspected with all that was assumed, and converted."""

import json
import re
import shutil

import pytest
import torch

import paceline
from paceline.api.build import build_drafter
from paceline.api.export import export_head, read_head
from paceline.api.loading import load
from paceline.cli import run
from paceline.draft_heads.files import is_head, read_head_config, save_head
from paceline.draft_heads.formats.base import FormatError
from paceline.draft_heads.formats.head_files import HeadFiles
from paceline.drafters.linear_prophet import LinearProphetDrafter
from paceline.models import hub
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import pair
from tests.draft_heads.formats.tiny_format import StitchedFormat, TinyFormat, registered
from tests.draft_heads.test_prophet import make

PROMPT = [7, 3, 5, 7, 3, 5, 7]
PARAMS = paceline.SamplingParams(max_tokens=12, temperature=0.8, seed=3)


@pytest.fixture(autouse=True)
def formats():
    with registered(TinyFormat, StitchedFormat):
        yield


def load_target(**options):
    return load(pair().target, device="cpu", **options)


@pytest.fixture
def heads(tmp_path):
    """The directories of one head, in our format and in the tiny one."""
    target = load_target(enforce_eager=True)
    torch.manual_seed(5)
    head = make("linear_prophet", target.lm, depth=3)
    for part in head.own_state().values():
        part.data = torch.randn_like(part) * 0.2
    save_head(head, tmp_path / "own", target_name=str(pair().target), fingerprint=fingerprint(target.lm))
    export_head(tmp_path / "own", tmp_path / "tiny", target=target, format="tiny")
    return tmp_path


def drafts(drafter):
    target = load_target()
    [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=drafter, num_draft_tokens=3)
    return result


def test_head_drafts_as_the_one_that_it_was_written_from(heads):
    plain, own = drafts(None), drafts(heads / "own")
    for given in (heads / "tiny", str(heads / "tiny"), {"model": str(heads / "tiny"), "num_speculative_tokens": 3}):
        target = load_target()
        assert type(build_drafter(given, target=target)) is LinearProphetDrafter
        options = {} if isinstance(given, dict) else {"num_draft_tokens": 3}
        [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=given, **options)
        assert result.token_ids == plain.token_ids == own.token_ids
        assert result.stats.accepted == own.stats.accepted and sum(result.stats.drafted) > 0


def test_head_of_the_hub_is_fetched_and_drafts(heads, monkeypatch):
    asked = []

    def fetch(repository, revision, *, code=False, pickles=False):
        asked.append((repository, revision, pickles))
        return heads / "tiny"

    monkeypatch.setattr(hub, "fetch", fetch)
    target = load_target()
    assert type(build_drafter("organisation/head", target=target)) is LinearProphetDrafter
    config = {"model": "organisation/head", "revision": "v2"}
    assert type(build_drafter(config, target=target)) is LinearProphetDrafter
    read_head("organisation/head", target=target, pickles=True, revision="v3")
    assert asked == [
        ("organisation/head", None, False),
        ("organisation/head", "v2", False),
        ("organisation/head", "v3", True),
    ]


def test_auto_finds_a_head_in_the_targets_directory(heads, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(pair().target, folder)
    shutil.copytree(heads / "tiny", folder / "head")
    result = paceline.generate(load(folder, device="cpu"), [PROMPT], PARAMS, drafter="auto")[0]
    assert result.token_ids == drafts(None).token_ids


def test_commands_take_the_head_and_refuse_it_as_a_model(heads, capsys):
    command = ["generate", "--model", str(pair().target), "--max-tokens", "6", "for item", "--num-draft-tokens", "2"]
    for option in ("--draft", "--drafter"):
        assert run([*command, option, str(heads / "tiny"), "--json"]) == 0
        assert sum(json.loads(capsys.readouterr().out.splitlines()[-1])["stats"]["drafted"]) > 0
    assert run(["generate", "--model", str(heads / "tiny"), "for item"]) == 2
    assert "is a draft head, not a model" in " ".join(capsys.readouterr().err.split())
    assert run([*command, "--draft", str(heads / "tiny"), "--draft-quantization", "int8"]) == 2
    assert "is a draft head, which takes the target's precision" in " ".join(capsys.readouterr().err.split())


# Inspection


def inspect(capsys, *words):
    assert run(["inspect", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_inspect_shows_every_field_and_where_it_comes_from(heads, capsys):
    found = inspect(capsys, heads / "tiny", "--target", pair().target)
    assert found["assumptions"] == {
        "depth": {"value": 3, "from": "config.json: num_steps"},
        "norm": {"value": "w * x", "from": "the format"},
        "anchors": {"value": None, "from": "default"},
        "draft_vocab_size": {"value": None, "from": "no draft_vocab.json: all tokens"},
    }
    assert found["tensors"] == {"read": 3, "ignored": [], "tied": ["lm_head.weight"]}
    head = found["head"]
    assert (head["kind"], head["format"], head["of"]) == ("linear_prophet", "Tiny (tests)", str(pair().target))
    assert head["hidden_states"] == [3] and head["advised_tokens"] == 3 and head["parameters"] == 3 * 32 * 32
    assert found["conclusion"]["next"].startswith("paceline generate --model")
    assert run(["inspect", str(heads / "tiny"), "--target", str(pair().target)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "depth 3 (config.json: num_steps)" in said and "anchors none (default)" in said


def test_inspect_without_a_target_says_what_the_files_tell(heads, capsys):
    found = inspect(capsys, heads / "tiny")
    assert found.keys() == {"conclusion", "head"} and "kind" not in found["head"]
    assert found["conclusion"]["next"] == f"paceline inspect {heads / 'tiny'} --target {pair().target}"


def test_inspect_of_our_head_with_its_target_checks_that_it_is_its_own(heads, capsys):
    found = inspect(capsys, heads / "own", "--target", pair().target)
    assert found["head"]["kind"] == "linear_prophet" and found["head"]["of"] == str(pair().target)
    assert run(["inspect", str(heads / "own"), "--target", str(pair().draft)]) == 2
    assert "and not of" in capsys.readouterr().err


def test_inspect_refuses_options_of_heads_for_a_model_and_of_models_for_a_head(heads, capsys):
    for words, message in (
        ([pair().target, "--target", pair().target], "--target: .* is no draft head"),
        ([pair().target, "--pickles"], "--pickles: .* is no draft head"),
        ([heads / "tiny", "--draft", pair().draft], "is a draft head, which nothing drafts for"),
    ):
        assert run(["inspect", *map(str, words)]) == 2
        assert re.search(message, " ".join(capsys.readouterr().err.split()))


# Conversion


def test_export_and_back_is_bitwise(heads, capsys):
    back = ["export", str(heads / "tiny"), "--target", str(pair().target), "--output", str(heads / "back")]
    assert run(back) == 0
    assert "a linear_prophet head, read as tiny and written as paceline" in capsys.readouterr().out
    own, again = (HeadFiles(heads / name) for name in ("own", "back"))
    assert all(torch.equal(again.tensor(name), own.tensor(name)) for name in own.headers)
    assert read_head_config(heads / "back").config == read_head_config(heads / "own").config
    assert run(["inspect", str(heads / "back"), "--target", str(pair().target)]) == 0
    assert run(back) == 2
    assert "exists already" in capsys.readouterr().err


def test_export_writes_what_is_asked_for(heads, capsys):
    command = ["export", str(heads / "own"), "--target", str(pair().target), "--format"]
    out = heads / "medusa-out"
    assert run([*command, "tiny", "--output", str(out), "--num-draft-tokens", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "kind": "linear_prophet",
        "from": "paceline",
        "format": "tiny",
        "output": str(out),
        "routing_word": "medusa",
    }
    assert HeadFiles(out).value("advised", int) == 2
    assert run([*command, "stitched", "--output", str(heads / "stitched")]) == 0
    assert not is_head(heads / "stitched") and (heads / "stitched" / "tokenizer.json").is_file()
    assert drafts(None).token_ids == drafts(heads / "own").token_ids


def test_pickled_head_is_converted_once(heads, capsys):
    files = HeadFiles(heads / "tiny")
    torch.save({name: files.tensor(name) for name in files.headers}, heads / "tiny" / "medusa_lm_head.pt")
    (heads / "tiny" / "model.safetensors").unlink()
    command = ["export", str(heads / "tiny"), "--target", str(pair().target), "--output", str(heads / "own2")]
    assert run(command) == 2
    assert "pickles are read only when asked for" in " ".join(capsys.readouterr().err.split())
    assert run([*command, "--pickles"]) == 0 and drafts(heads / "own2").token_ids == drafts(None).token_ids
    capsys.readouterr()
    assert inspect(capsys, heads / "tiny", "--pickles", "--target", pair().target)["head"]["parameters"] == 3 * 32 * 32


def test_export_refuses_before_anything_is_loaded(heads, capsys, monkeypatch):
    monkeypatch.setattr("paceline.api.load", lambda *_, **__: pytest.fail("a model was loaded"))
    command = ["export", str(heads / "own"), "--target", str(pair().target), "--output"]
    for words, message in (
        ([str(heads / "new"), "--format", "nothing"], "unknown format 'nothing'; known: paceline, "),
        ([str(heads / "tiny"), "--format", "tiny"], "exists already"),
        ([str(heads / "new"), "--num-draft-tokens", "3"], "files of the format paceline advise none"),
    ):
        assert run([*command, *words]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_what_is_no_head_and_a_target_of_transformers_are_refused(heads):
    with pytest.raises(FormatError, match="is no draft head"):
        read_head(pair().draft, target=load_target())
    with pytest.raises(ValueError, match="is run by transformers, and a head needs a native target"):
        read_head(heads / "tiny", target=load_target(backend="hf"))
