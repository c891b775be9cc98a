"""Layers of multi-token prediction in a target's own directory draft for it, by their name or vLLM's method."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline
from paceline.api.build import build_drafter, build_drafting
from paceline.api.export import export_head, read_head
from paceline.api.loading import load
from paceline.api.speculative_config import read_speculative_config
from paceline.api.speculative_fields import MTP_ALIASES
from paceline.cli import run
from paceline.draft_heads.files import save_head
from paceline.drafters.mtp import MTPDrafter
from paceline.models.directory import ModelError
from paceline.models.draft_layers import announces_draft_layers, holds_draft_layers, is_draft_tensor
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import pair
from tests.draft_heads.test_prophet import make

PROMPT = [7, 3, 5, 7, 3, 5, 7]
PARAMS = paceline.SamplingParams(max_tokens=16, temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A head's directory, and that of the tiny checkpoint with the head as a layer."""
    root = tmp_path_factory.mktemp("mtp")
    target = load(pair().target, device="cpu", enforce_eager=True)
    head = make("mtp", target.lm)
    save_head(head, root / "head", target_name=target.name, fingerprint=fingerprint(target.lm))
    export_head(root / "head", root / "both", target=target, format="mtp_mimo")
    return SimpleNamespace(head=root / "head", both=root / "both")


def decoded(target, drafter):
    [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=drafter, num_draft_tokens=3)
    return result.token_ids, result.stats.drafted, result.stats.accepted


@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}, {"dtype": "float32"}], ids=str)
def test_layers_draft_as_the_head_that_they_were_written_from(options, folders):
    target = load(pair().target, device="cpu", **options)
    head = decoded(target, folders.head)
    both = load(folders.both, device="cpu", **options)
    plain = paceline.generate(both, [PROMPT], PARAMS, drafter=None)[0].token_ids
    assert head[0] == plain and sum(head[1]) > 0
    config = {"method": "mtp", "num_speculative_tokens": 3}
    for drafter in ("mtp", f"mtp:{folders.both}", config, {**config, "model": str(folders.both)}):
        assert decoded(both, drafter) == head, drafter
    assert decoded(target, {**config, "model": str(folders.head)}) == head
    assert isinstance(build_drafter("mtp", target=both), MTPDrafter)


def test_length_is_what_heads_are_trained_for_where_none_is_given(folders):
    both = load(folders.both, device="cpu")
    drafting = build_drafting({"method": "mtp"}, target=both)
    assert drafting.num_draft_tokens is None and drafting.drafter.max_nodes(8) - 1 == 3


@pytest.mark.parametrize("alias", MTP_ALIASES)
def test_older_names_of_the_method_mean_the_same(alias):
    asked = {"num_speculative_tokens": 2}
    assert read_speculative_config({"method": alias, **asked}) == read_speculative_config({"method": "mtp", **asked})


def test_a_target_without_layers_is_refused_by_name(folders):
    target = load(pair().target, device="cpu")
    for drafter in ("mtp", {"method": "mtp"}, f"mtp:{pair().draft}"):
        with pytest.raises(ValueError, match=r"drafter 'mtp' needs a head .* has no layers of multi-token prediction"):
            build_drafter(drafter, target=target)
    prophet = make("prophet", target.lm)
    save_head(prophet, folders.head.parent / "other", target_name=target.name, fingerprint=fingerprint(target.lm))
    with pytest.raises(ValueError, match="is a prophet head, and the method asks for mtp: give another method"):
        build_drafter(f"mtp:{folders.head.parent / 'other'}", target=target)
    with pytest.raises(ValueError, match="is run by transformers: load it with backend='native'"):
        build_drafter("mtp", target=load(folders.both, device="cpu", backend="hf"))


def test_layers_that_no_config_announces_do_not_belong_to_a_model(folders, tmp_path):
    config = json.loads((folders.both / "config.json").read_text())
    assert announces_draft_layers(config) and holds_draft_layers(folders.both)
    assert is_draft_tensor("model.layers.3.enorm.weight", config) and is_draft_tensor("mtp.fc.weight", config)
    assert not is_draft_tensor("model.layers.2.mlp.up_proj.weight", config)
    quiet = {**config, "num_nextn_predict_layers": 0}
    assert not is_draft_tensor("mtp.fc.weight", quiet)
    shards = [load_file(file) for file in sorted(folders.both.glob("*.safetensors"))]
    save_file(shards[0] | shards[1], tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(load(tmp_path, device="cpu").lm.norm.weight, load(pair().target, device="cpu").lm.norm.weight)
    (tmp_path / "config.json").write_text(json.dumps(quiet))
    with pytest.raises(ModelError, match=r"they hold also .*mtp_layers"):
        load(tmp_path, device="cpu")
    assert not holds_draft_layers(tmp_path) and not holds_draft_layers(tmp_path / "missing")


def test_commands_take_layers_as_a_head(folders, capsys, tmp_path):
    both = str(folders.both)
    said = []
    for more in ([], ["--drafter", "mtp", "--num-draft-tokens", "2"]):
        assert run(["generate", "--model", both, "--max-tokens", "12", "--json", *more, "for item"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["text"] == said[1]["text"] and said[1]["stats"]["drafted"][1] > 0
    assert run(["inspect", both, "--target", both, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    head = read_head(both, target=load(both, device="cpu")).head
    assert found["head"]["kind"] == "mtp" and found["head"]["format"] == "MTP inside its target (MiMo)"
    assert found["head"]["parameters"] == sum(tensor.numel() for tensor in head.own_state().values())
    assert found["tensors"] == {"read": 16, "ignored": [], "tied": []}
    assert found["assumptions"]["zero_first"] == {"value": True, "from": "the format"}
    assert run(["inspect", both, "--json"]) == 0
    assert "head" not in json.loads(capsys.readouterr().out)
    out = str(tmp_path / "apart")
    assert run(["export", both, "--target", str(pair().target), "--output", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["from"] == "mtp_mimo"
