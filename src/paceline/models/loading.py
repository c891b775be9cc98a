"""Checkpoint directories of the Hugging Face kind to native decoders and back. Never looks at weight values.

Reads config.json and safetensors (single or sharded); refuses anything else by name.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.models.decoder import DecoderConfig, DecoderLM
from paceline.models.families import FAMILIES, Family
from paceline.models.packing import pack, unpack


class ModelError(ValueError):
    """A checkpoint that cannot be used, with the reason and the way out."""


def read_config(path: Path) -> dict[str, object]:
    """The parsed config.json of a checkpoint directory. Raises ModelError if there is none."""
    if not path.exists():
        raise ModelError(f"no such model directory: {path}; give a directory that holds config.json")
    if not (path / "config.json").is_file():
        raise ModelError(f"not a model: {path} has no config.json; give a directory saved with save_pretrained")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:  # broken JSON, or bytes that are no text
        raise ModelError(f"not a model: {path / 'config.json'} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"not a model: {path / 'config.json'} holds no JSON object")
    return config


def find_family(config: dict[str, object], path: Path) -> Family:
    """The native family of a config. Raises ModelError naming those that are known."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(f"unsupported architecture {kind!r} in {path}; supported: {known}")
    return FAMILIES[str(kind)]


def load(path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> DecoderLM:
    """Load a checkpoint directory. ``dtype`` None keeps the precision of the files.

    Raises ModelError for a missing or unreadable directory, an unsupported architecture or option, and tensors that
    are missing, superfluous or of another shape than the config says.
    """
    path = Path(path)
    raw = read_config(path)
    family = find_family(raw, path)
    try:
        config = family.configure(raw)
    except (KeyError, ValueError) as error:
        reason = f"config.json lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: {reason}") from error
    state: dict[str, Tensor] = {}
    for name, tensor in _tensors(path):
        for own, value in family.read(name, tensor):
            state[own] = value.to(dtype=dtype or value.dtype)
    return build(config, state, path=path, device=device)


def build(
    config: DecoderConfig, state: dict[str, Tensor], *, path: Path | str = "model", device: torch.device | str = "cpu"
) -> DecoderLM:
    """A decoder in evaluation mode from a config and its parts (models/packing); ``path`` only names it in errors."""
    with torch.device("meta"):
        model = DecoderLM(config)
    if config.tied_head:
        state = {name: tensor for name, tensor in state.items() if name != "head.weight"}
    wanted = {name: tuple(tensor.shape) for name, tensor in unpack(config, model.state_dict()).items()}
    missing, extra = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or extra:
        raise ModelError(f"{path}: tensors do not fit its config.json: missing {missing[:3]}, unexpected {extra[:3]}")
    for name, shape in wanted.items():
        if tuple(state[name].shape) != shape:
            raise ModelError(f"{path}: {name} has shape {tuple(state[name].shape)}, config.json asks for {shape}")
    model.load_state_dict(pack(state), assign=True)
    return model.to(device).requires_grad_(False).eval()


def save(model: DecoderLM, raw: dict[str, object], path: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``model`` as a Hugging Face directory with ``raw`` as its config.json."""
    family = find_family(raw, path)
    path.mkdir(parents=True, exist_ok=True)
    parts = unpack(model.config, model.state_dict())
    state = {own: tensor.detach().to("cpu", dtype).contiguous() for own, tensor in parts.items()}
    weights = path / "model.safetensors"
    save_file(family.write(state), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # the library keeps its files to their owner; a published model is for everybody
    (path / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    index = path / "model.safetensors.index.json"
    single = path / "model.safetensors"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is no index of shards; save the model again with save_pretrained") from error
        files = [path / Path(name).name for name in names]
    elif single.is_file():
        files = [single]
    else:
        raise ModelError(
            f"{path} holds no safetensors weights; convert pickled ones with "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    for file in files:
        if not file.is_file():
            raise ModelError(f"{path}: shard {file.name} is named in {index.name} but missing")
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():
                    yield name, opened.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{file} is not a safetensors file ({error})") from error
