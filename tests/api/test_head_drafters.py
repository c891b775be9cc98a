"""Directories of draft heads are accepted wherever a drafter is."""

import json

import pytest
import torch

import paceline
from paceline.api.build import build_drafter
from paceline.api.loading import load
from paceline.bench.tree_search import advise_tree
from paceline.cli import run
from paceline.draft_heads.files import save_head
from paceline.drafters.block import BlockDrafter
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.hydra import HydraDrafter
from paceline.drafters.linear_prophet import LinearProphetDrafter
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.mlp_speculator import MLPSpeculatorDrafter
from paceline.drafters.mtp import MTPDrafter
from paceline.drafters.prophet import ProphetDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import PackedLinear
from paceline.models.fingerprint import fingerprint
from paceline.models.native.decoder import DecoderLM
from tests.api.checkpoints import pair
from tests.draft_heads.test_prophet import make

KINDS = {
    "early_exit": EarlyExitDrafter,
    "prophet": ProphetDrafter,
    "linear_prophet": LinearProphetDrafter,
    "medusa": MedusaDrafter,
    "hydra": HydraDrafter,
    "mlp_speculator": MLPSpeculatorDrafter,
    "block": BlockDrafter,
    "eagle": EagleDrafter,
    "eagle3": Eagle3Drafter,
    "mtp": MTPDrafter,
}
SIZES = {"early_exit": {"exit_layer": 1}, "block": {"block_size": 4}, "eagle3": {"draft_vocab_size": 40}}
every_kind = pytest.mark.parametrize("kind", KINDS)
PROMPT = [7, 3, 5, 7, 3, 5, 7]
PARAMS = paceline.SamplingParams(max_tokens=16, temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The directory with a draft head of every kind for the tiny checkpoint."""
    root = tmp_path_factory.mktemp("heads")
    target = load(pair().target, device="cpu").lm
    for kind in KINDS:
        head = make(kind, target, **SIZES.get(kind, {}))
        save_head(head, root / kind, target_name=str(pair().target), fingerprint=fingerprint(target))
    return root


@every_kind
def test_draft_head_directory_drafts_and_changes_no_token(kind, folder):
    target = load(pair().target, device="cpu")
    plain = paceline.generate(target, [PROMPT], PARAMS, drafter=None)
    for given in (folder / kind, str(folder / kind)):
        drafter = build_drafter(given, target=target)
        assert type(drafter) is KINDS[kind] and isinstance(drafter.lm, CpuDecoder)
        [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=given, num_draft_tokens=3)
        assert result.token_ids == plain[0].token_ids and sum(result.stats.drafted) > 0


@every_kind
def test_draft_head_of_an_eager_target_is_eager(kind, folder):
    target = load(pair().target, device="cpu", enforce_eager=True)
    assert isinstance(build_drafter(folder / kind, target=target).lm, DecoderLM)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_head_weights_are_packed_and_target_weights_unchanged(dtype, folder):
    target = load(pair().target, device="cpu", dtype=dtype)
    before = {name: tensor.clone() for name, tensor in target.lm.state_dict().items()}
    embed = target.lm.embed
    head = build_drafter(folder / "prophet", target=target).head
    assert head.decoder.embed is embed and target.lm.embed is embed
    laid = isinstance(head.decoder.blocks[0].ffn.down, PackedLinear)
    assert laid == isinstance(target.lm.blocks[0].ffn.down, PackedLinear)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.lm.state_dict().items())


@every_kind
def test_quantized_target_takes_the_same_heads(kind, folder):
    pytest.importorskip("torchao")
    target = load(pair().target, device="cpu", quantization="int8")
    plain, drafted = (
        paceline.generate(target, [PROMPT], PARAMS, drafter=given, num_draft_tokens=5)[0]
        for given in (None, folder / kind)
    )
    assert drafted.token_ids == plain.token_ids and sum(drafted.stats.drafted) > 0


@every_kind
def test_speculative_config_may_name_a_head_and_a_tree(kind, folder):
    target = load(pair().target, device="cpu")
    plain = paceline.generate(target, [PROMPT], PARAMS, drafter=None)[0].token_ids
    tree = "[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"
    for asked in ({"num_speculative_tokens": 3}, {"speculative_token_tree": tree}):
        config = {"model": str(folder / kind), "draft_sample_method": "greedy", **asked}
        drafter = build_drafter(config, target=target)
        assert type(drafter) is KINDS[kind] and drafter.branches == ("speculative_token_tree" in asked)
        [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=config)
        assert result.token_ids == plain and sum(result.stats.drafted) > 0


@pytest.mark.one_in(3)
@every_kind
def test_tree_search_runs_for_every_head(kind, folder):
    target = load(pair().target, device="cpu")
    params = paceline.SamplingParams(max_tokens=24)
    found = advise_tree(target, folder / kind, [PROMPT], params, num_drafted=5, depth=3, width=2)
    assert found.tree.topology.num_drafted <= 5 and len(found.rates) == 2
    assert found.tree.measured >= 1 and found.chain.topology == Topology.chain(3)


def test_head_for_a_transformers_target_is_refused(folder):
    target = load(pair().target, device="cpu", backend="hf")
    with pytest.raises(ValueError, match=r"is a head, .* is run by transformers: load it with backend='native'"):
        build_drafter(folder / "prophet", target=target)


def test_head_of_another_target_is_refused_with_both_names(folder):
    target = load(pair().draft, device="cpu")
    with pytest.raises(ValueError, match=rf"is a head of {pair().target} .* and not of {pair().draft} "):
        build_drafter(folder / "prophet", target=target)


@pytest.mark.parametrize("name", [*KINDS, "prophet:width=4"])
def test_head_name_without_directory_is_refused(name):
    target = load(pair().target, device="cpu")
    with pytest.raises(ValueError, match=r"drafter '\w+' needs a head .*: give the head's directory instead of"):
        build_drafter(name, target=target)


@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}, {"dtype": "bfloat16"}], ids=str)
def test_early_exit_without_weights_needs_no_directory(options):
    target = load(pair().target, device="cpu", **options)
    plain = paceline.generate(target, [PROMPT], PARAMS, drafter=None)
    [result] = paceline.generate(target, [PROMPT], PARAMS, drafter="early_exit:exit_layer=2", num_draft_tokens=3)
    assert result.token_ids == plain[0].token_ids and sum(result.stats.drafted) > 0
    drafter = build_drafter("early_exit:exit_layer=2", target=target)
    assert type(drafter) is EarlyExitDrafter and not drafter.head.own_state()
    assert drafter.head.decoder.norm is target.lm.norm and drafter.head.decoder.embed is target.lm.embed


def test_invalid_exit_layer_is_reported_in_one_line(capsys):
    layers = load(pair().target, device="cpu").lm.num_layers
    command = ["generate", "--model", str(pair().target), "--max-tokens", "4", "for item", "--drafter"]
    for given, said in (
        (f"early_exit:exit_layer={layers}", f"exit_layer={layers}: the target has {layers} layers, so give at most"),
        ("early_exit:exit_layer=0", "exit_layer=0: give at least 1"),
        ("early_exit:layer=1", "drafter 'early_exit' has no option 'layer'; known: exit_layer"),
        ("early_exit", "or early_exit:exit_layer=LAYER for a target that was trained for it"),
    ):
        assert run([*command, given]) == 2
        assert said in capsys.readouterr().err
    assert run([*command, "early_exit:exit_layer=1"]) == 0
    target = load(pair().target, device="cpu", backend="hf")
    with pytest.raises(ValueError, match=r"'early_exit:exit_layer=1' drafts from hidden states of native models"):
        build_drafter("early_exit:exit_layer=1", target=target)


@pytest.mark.one_in(4)
@every_kind
@pytest.mark.parametrize("option", ["--draft", "--drafter"])
def test_commands_take_a_head_directory(option, kind, folder, capsys):
    command = ["generate", "--model", str(pair().target), "--max-tokens", "12", "--json", "for item"]
    said = []
    for more in ([], [option, str(folder / kind), "--num-draft-tokens", "2"]):
        assert run([*command[:-1], *more, command[-1]]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["text"] == said[1]["text"]
    assert len(said[1]["stats"]["drafted"]) == 2 and said[1]["stats"]["drafted"][1] > 0


def test_commands_refuse_options_that_heads_lack(folder, capsys):
    head = str(folder / "prophet")
    command = ["generate", "--model", str(pair().target)]
    assert run([*command, "--draft", head, "--draft-quantization", "int8", "for item"]) == 2
    assert "a draft head, which takes the target's" in capsys.readouterr().err
    assert run([*command, "--drafter", "prophet", "for item"]) == 2
    assert "give the head's directory" in capsys.readouterr().err
    assert run(["inspect", str(pair().target), "--draft", head]) == 2
    assert "a draft head drafts for one model alone: paceline inspect" in capsys.readouterr().err


def test_inspect_describes_a_head_and_its_target(folder, capsys):
    assert run(["inspect", str(folder / "prophet"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["head"]
    assert (said["kind"], said["of"], said["num_states"]) == ("prophet", str(pair().target), 2)
    assert said["precision"] == ["float64"] and said["parameters"] > 1000
    assert run(["inspect", str(folder / "prophet")]) == 0
    assert "key-value heads" in capsys.readouterr().out
