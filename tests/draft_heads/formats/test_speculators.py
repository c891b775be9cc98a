"""The envelope of speculators heads is that which the package itself writes, and what vLLM reads of it is there."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.speculators import LayerFields, read_envelope, speculators_config
from tests.draft_heads.formats.speculators_package import load_module

LAYERS = LayerFields(
    model_type="qwen3",
    hidden_size=64,
    intermediate_size=96,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=256,
    max_positions=512,
    norm_eps=1e-6,
    rope_theta=10000.0,
)
FIELDS = {
    "draft_vocab_size": 128,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "target_hidden_size": None,
}
LEFT_OUT = ("auto_map", "transformers_version")  # of the package's files: a Python file's name, and who wrote them


def config(layers=LAYERS, target_name="organisation/target", num_draft_tokens=3):
    return speculators_config(
        "eagle3",
        "Eagle3DraftModel",
        layers=layers,
        fields=FIELDS,
        target_name=target_name,
        num_draft_tokens=num_draft_tokens,
        dtype="float32",
    )


def test_what_vllm_reads_is_there(tmp_path):
    found = config()
    assert found["speculators_model_type"] == "eagle3" and isinstance(found["transformer_layer_config"], dict)
    assert found["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert found["speculators_config"]["verifier"]["name_or_path"] == "organisation/target"
    (tmp_path / "config.json").write_text(json.dumps(found))
    save_file({"fc.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert read_envelope(HeadFiles(tmp_path)) == ("organisation/target", 3)
    (tmp_path / "config.json").write_text("{}")
    assert read_envelope(HeadFiles(tmp_path)) == (None, None)


def test_architectures_of_the_target_are_those_in_its_directory(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert config(target_name=str(tmp_path))["speculators_config"]["verifier"]["architectures"] == ["Qwen3ForCausalLM"]


def test_length_that_the_format_cannot_hold_is_refused():
    with pytest.raises(FormatError, match="num_draft_tokens=0: the format holds a number of at least 1"):
        config(num_draft_tokens=0)


def test_eagles_config_spells_positions_in_both_ways():
    found = replace(LAYERS, rope_scaling={"rope_type": "llama3", "factor": 8.0}).with_both_ropes()
    assert found["rope_theta"] == 10000.0 and found["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert found["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0}


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_envelope_is_what_the_package_writes(model_type, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        package = load_module("eagle3")
        own = config(replace(LAYERS, model_type=model_type))
        (tmp_path / "config.json").write_text(json.dumps(own))
        read = package.Eagle3SpeculatorConfig.from_pretrained(tmp_path)
        package.Eagle3DraftModel(read).save_pretrained(tmp_path / "again")
    theirs = json.loads((tmp_path / "again" / "config.json").read_text())
    for one in (theirs, theirs["transformer_layer_config"]):
        for key in LEFT_OUT:
            one.pop(key, None)
    assert own == theirs
