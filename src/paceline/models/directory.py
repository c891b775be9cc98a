"""Checkpoint directories as far as names and config.json tell: finds them, and refuses what is no model.

Imports neither torch nor transformers, so that a mistyped path is refused before either is loaded.
"""

import json
from pathlib import Path

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class ModelError(ValueError):
    """A checkpoint that cannot be used, with the reason and the way out."""


def is_hub_id(model: str | Path) -> bool:
    """Whether ``model`` can only mean an id on the Hub: a string that names nothing here and looks like no path."""
    if not isinstance(model, str) or Path(model).exists():
        return False
    return not (Path(model).is_absolute() or model.startswith((".", "~")) or model.count("/") > 1)


def check_path(model: str | Path) -> None:
    """Raise ModelError for a path that cannot be a model's directory; an id on the Hub is not asked for."""
    if not is_hub_id(model):
        check_format(Path(model))
        read_config(Path(model))


def check_format(path: Path) -> None:
    """Raise ModelError for what is no checkpoint of a whole model in safetensors, naming what it is and the way out.

    A missing path and a missing config.json are left to ``read_config``.
    """
    if path.suffix == ".gguf" or (path.is_dir() and _only(path, "*.gguf")):
        raise ModelError(f"{path}: GGUF is for another runtime; give the directory that it was made from")
    if path.is_file():
        raise ModelError(f"{path} is a file; give the directory that holds config.json and *.safetensors")
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f"{path} holds an adapter (PEFT), not a model; merge it with "
            "AutoPeftModelForCausalLM.from_pretrained(...).merge_and_unload().save_pretrained(...) and give the result"
        )


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


def find_weights(path: Path) -> list[Path]:
    """The files of weights in a directory. Raises ModelError if there are none, naming what is there instead."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        pickled = next((file.name for pattern in PICKLES for file in sorted(path.glob(pattern))), None)
        found = f"only pickled ones ({pickled}), which could run any code" if pickled else "nothing else either"
        raise ModelError(
            f"{path} holds no safetensors weights, {found}; convert them where you trust them with "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    return files


def _only(path: Path, pattern: str) -> bool:
    return any(path.glob(pattern)) and not any(path.glob("*.safetensors"))
