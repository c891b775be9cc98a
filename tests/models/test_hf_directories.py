"""Directories that the adapter loads or refuses."""

import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import dynamic_module_utils

from paceline.models import memory
from paceline.models.adapter import files as hf_files
from paceline.models.adapter.adapt import adapt
from paceline.models.directory import ModelError, read_config
from tests.models.adapter_models import MODELS
from tests.models.directories import config, tensors


@pytest.fixture
def folder(tmp_path):
    MODELS["opt"]().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


WEIGHT = "model.decoder.layers.1.fc1.weight"


def as_gguf(folder):
    (folder / "model.safetensors").rename(folder / "model.gguf")


def as_adapter(folder):
    (folder / "adapter_config.json").write_text("{}")
    (folder / "config.json").unlink()


DIRECTORIES = {
    "pickled": (
        pickled,
        r"no safetensors weights, only pickled ones \(pytorch_model.bin\), which could run any code; c",
    ),
    "empty": (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors weights, nothing else either"),
    "missing tensor": (
        tensors(lambda stored: {n: t for n, t in stored.items() if n != WEIGHT}),
        "model.decoder.layers.1.fc1.weight are missing or of another shape; take config.json and all files of weig",
    ),
    "other shape": (
        tensors(lambda stored: stored | {WEIGHT: torch.zeros(7, 32)}),
        "model.decoder.layers.1.fc1.weight|transformers refuses it",
    ),
    "gguf": (as_gguf, "GGUF is converted first, by paceline convert FILE.gguf --output DIR; give that directory"),
    "adapter": (as_adapter, r"holds an adapter \(PEFT\), not a model; merge it with .*merge_and_unload"),
    "unknown": (
        config(model_type="none-such"),
        "unsupported architecture, which neither Paceline nor transformers",
    ),
    "mamba": (config(model_type="mamba"), "unsupported architecture 'mamba' in .*: its recurrent"),
    "whisper": (
        config(model_type="whisper", is_encoder_decoder=True),
        "unsupported architecture 'whisper' in .*encoder-decoder",
    ),
    "quantized": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        "its quantized weights need a library .*; install what is named, or give unquantized weights",
    ),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_that_cannot_be_used_is_refused_with_the_way_out(name, folder, monkeypatch):
    spoil, message = DIRECTORIES[name]
    spoil(folder)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ModelError, match=message):
        read_config(folder)
        adapt(hf_files.load(folder))


def test_files_in_place_of_directories_are_refused(folder):
    gguf = folder / "model-q4.gguf"
    gguf.write_bytes(b"GGUF")
    for file, message in (
        (gguf, r"GGUF is converted first, by paceline convert .*model-q4.gguf"),
        (folder / "model.safetensors", "is a file; give the dir"),
    ):
        with pytest.raises(ModelError, match=message):
            read_config(file)
    read_config(folder)  # beside safetensors it disturbs nobody


def test_weights_larger_than_memory_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    monkeypatch.setattr(hf_files, "AutoModelForCausalLM", None)
    with pytest.raises(
        ModelError, match=r"weights of .* GiB exceed the 9.31e-07 GiB free on cpu: give a smaller model"
    ):
        hf_files.load(folder)


def test_code_of_a_directory_runs_only_where_it_is_trusted(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    trace = tmp_path / "ran"
    (folder / "own_code.py").write_text(
        f"from transformers import OPTConfig, OPTForCausalLM\nopen({str(trace)!r}, 'w').close()\n"
        "class OwnConfig(OPTConfig):\n    model_type = 'own-opt'\n"
        "class OwnModel(OPTForCausalLM):\n    config_class = OwnConfig\n"
    )
    config(
        model_type="own-opt",
        auto_map={"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"},
    )(folder)
    with pytest.raises(
        ModelError, match="if the directory brings its own code and you trust it, give trust_remote_code"
    ):
        hf_files.load(folder)
    assert not trace.exists()
    trusted = True
    assert type(adapt(hf_files.load(folder, trust_remote_code=trusted)).model).__name__ == "OwnModel"
    assert trace.exists()


def test_a_directory_loads_in_its_own_or_a_given_precision(folder):
    shutil.copy(folder / "config.json", folder / "notes.bin")  # other files disturb nobody
    model = hf_files.load(folder)
    assert model.dtype == torch.float64 and not model.training
    assert hf_files.load(folder, dtype=torch.float32).dtype == torch.float32
    assert not any(parameter.requires_grad for parameter in model.parameters())
