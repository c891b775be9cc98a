"""Checkpoint directories as far as names and config.json tell: finds them, and refuses what is no model.

Imports neither torch nor transformers, so that a mistyped path is refused before either is loaded.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from paceline.models.head_signs import shows_head

CONFIG = "config.json"
HEAD_TYPE = "paceline_head"  # model_type of our draft heads, which are no models
TUNED_FROM = "paceline_tuned_from"  # in config.json: the model from which one that was trained with its heads began
AGAIN = "correct it, or take the model's own config.json again"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class ModelError(ValueError):
    """A checkpoint that cannot be used, with the reason and the way out."""


def is_hub_id(model: str | Path) -> bool:
    """Whether ``model`` can only mean an id on the Hub: a string that names nothing here and looks like no path.

    Raises ModelError for an empty string and for a URL, which are neither.
    """
    if not isinstance(model, str):
        return False
    if not model.strip():
        raise ModelError("a model without a name: give a directory or a Hub id ('organisation/name'), not an empty one")
    if Path(model).exists():
        return False
    scheme, separator, rest = model.partition("://")
    if separator:
        parts = [part for part in rest.split("/") if part]
        parts = parts[1:] if scheme in ("http", "https") else parts  # without the host
        found = "/".join(parts[:2]) if len(parts) >= 2 else "organisation/name"
        raise ModelError(f"no such model: {model}; Hub ids are given without {scheme}://, as {found!r}")
    return not (Path(model).is_absolute() or model.startswith((".", "~")) or model.count("/") > 1)


def check_path(model: str | Path) -> None:
    """Raise ModelError for a path that cannot be a model's directory; an id on the Hub is not asked for."""
    if not is_hub_id(model):
        read_config(Path(model))


def is_head(path: str | Path) -> bool:
    """Whether ``path`` is the directory of a draft head, ours or another project's, valid or not."""
    if str(path) == "" or not Path(path).is_dir():
        return False
    return is_own_head(path) or shows_head(Path(path), _try_parse(Path(path) / CONFIG))


def is_own_head(path: str | Path) -> bool:
    """Whether ``path`` is the directory of a draft head that Paceline saved, valid or not."""
    found = _try_parse(Path(path) / CONFIG)
    return str(path) != "" and found is not None and found.get("model_type") == HEAD_TYPE


def read_config(path: Path) -> dict[str, object]:
    """The parsed config.json of a checkpoint directory.

    Raises ModelError, naming what ``path`` is instead, if it is none of a whole model in safetensors.
    """
    if not path.exists():
        raise ModelError(f"no such model directory: {path}; give a directory that holds {CONFIG}")
    if path.suffix == ".gguf" or (path.is_dir() and _only(path, "*.gguf")):
        raise ModelError(
            f"{path}: GGUF is converted first, by paceline convert {path if path.is_file() else 'FILE.gguf'} "
            "--output DIR; give that directory, or the one from which the file was made"
        )
    if path.is_file():
        raise ModelError(f"not a model: {path} is a file; give the directory that holds {CONFIG} and *.safetensors")
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f"{path} holds an adapter (PEFT), not a model; merge it with "
            "AutoPeftModelForCausalLM.from_pretrained(...).merge_and_unload().save_pretrained(...) and give the result"
        )
    if not is_own_head(path) and is_head(path):
        raise ModelError(
            f"{path} is a draft head, not a model: give it as the draft (--draft, in Python drafter=), and the model "
            "that it was trained for here"
        )
    if not (path / CONFIG).is_file():
        raise ModelError(f"not a model: {path} has no {CONFIG}; give a directory saved with save_pretrained")
    try:
        config = _parse(path / CONFIG)
    except ValueError as error:  # broken JSON, or bytes that are no text
        raise ModelError(f"not a model: {path / CONFIG} is not JSON ({error}); {AGAIN}") from error
    if config is None:
        raise ModelError(f"not a model: {path / CONFIG} holds no JSON object; {AGAIN}")
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise ModelError(f"{path}: {CONFIG} has model_type={kind!r}: model_type is a word; {AGAIN}")
    if kind == HEAD_TYPE:
        target = config.get("target")
        name = cast("dict[str, object]", target).get("name") if isinstance(target, dict) else None
        raise ModelError(
            f"{path} is a draft head, not a model: give it as the draft (--draft, in Python drafter=), and the model "
            f"that it was trained for{f' ({name})' if name else ''} here"
        )
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


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory beside ``path`` to write into, which becomes ``path`` at the end; nothing is left after an error.

    ``path`` must be nothing yet, or an empty directory.
    """
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        if path.exists():
            path.rmdir()
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _parse(path: Path) -> dict[str, object] | None:
    """The JSON object in a file, None for other JSON. Raises ValueError for what is no JSON, OSError for no file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _try_parse(path: Path) -> dict[str, object] | None:
    """As ``_parse``, and None for no JSON and no file too."""
    try:
        return _parse(path)
    except (OSError, ValueError):
        return None


def _only(path: Path, pattern: str) -> bool:
    return any(path.glob(pattern)) and not any(path.glob("*.safetensors"))
