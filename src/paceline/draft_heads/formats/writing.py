"""Writes draft heads as other projects read them."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import Exported, Format, FormatError
from paceline.draft_heads.formats.head_files import CONFIG
from paceline.models.directory import new_directory
from paceline.models.draft_vocab import write_draft_vocab
from paceline.models.native.decoder import DecoderLM

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ADDED = "draft_layers.safetensors"  # beside the shards of a target
METADATA = {"format": "pt"}


def convert(head: DraftHead, format: Format, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
    """``head`` in ``format``, in memory. Raises FormatError for a kind of head, or options, that it cannot hold."""
    if head.kind not in format.kinds:
        known = ", ".join(sorted(format.kinds)) or "none"
        raise FormatError(
            f"format {format.name!r} cannot hold a {head.kind} head; heads that it can: {known}; or give another format"
        )
    found = format.write(head, target=target, target_name=target_name, num_draft_tokens=num_draft_tokens)
    return replace(found, draft_ids=head.read_ids)


def check_new(path: Path) -> None:
    """Raise FormatError unless ``path`` is nothing yet, or an empty directory."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FormatError(f"{path} exists already; give another name, or remove it")


def write_files(exported: Exported, path: Path, *, target_path: Path | None = None) -> None:
    """Write the files into the directory ``path``, which is made; with ``into_target`` a copy of ``target_path`` too.

    The directory appears when it is whole. Raises FormatError for one that is there already, unless it is empty, and
    for a target whose directory is needed and not known.
    """
    check_new(path)
    with new_directory(path) as aside:
        if exported.into_target:
            _write_into_target(exported, aside, target_path)
        else:
            _write_tensors(exported.tensors, aside / exported.weights)
            _write_json(exported.config, aside / CONFIG)
        for name, text in exported.others.items():
            (aside / name).write_text(text, encoding="utf-8")
        if exported.draft_ids is not None:
            write_draft_vocab(aside, exported.draft_ids)


def _write_into_target(exported: Exported, path: Path, target_path: Path | None) -> None:
    """A copy of the target's directory with the tensors as one more shard, and the fields in its config."""
    if target_path is None or not (target_path / CONFIG).is_file():
        raise FormatError("this format adds layers to the target's own directory: give the target as a directory")
    shutil.copytree(target_path, path, dirs_exist_ok=True, ignore=_only_files)
    config = cast("dict[str, object]", json.loads((path / CONFIG).read_text(encoding="utf-8")))
    _write_json({**config, **exported.config}, path / CONFIG)
    if (path / INDEX).is_file():
        index, added = json.loads((path / INDEX).read_text(encoding="utf-8")), ADDED
        own = cast("dict[str, str]", index["weight_map"])
    else:
        with safe_open(path / SINGLE, framework="pt") as opened:
            own = dict.fromkeys(opened.keys(), FIRST)
        (path / SINGLE).rename(path / FIRST)
        index, added = {}, SECOND
    twice = sorted(own.keys() & exported.tensors.keys())
    if twice:
        raise FormatError(f"{target_path} has draft layers already ({twice[0]}); give a target without them")
    _write_tensors(exported.tensors, path / added)
    shards = {**own, **dict.fromkeys(exported.tensors, added)}
    size = sum((path / shard).stat().st_size for shard in set(shards.values()))
    _write_json({**index, "metadata": {"total_size": size}, "weight_map": dict(sorted(shards.items()))}, path / INDEX)


def _only_files(folder: str, names: list[str]) -> list[str]:
    """What is not copied: folders, in which other heads may lie."""
    return [name for name in names if (Path(folder) / name).is_dir()]


def _write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    state = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    save_file(state, file, metadata=METADATA)
    file.chmod(0o644)  # safetensors makes files private; a published head is readable by everyone


def _write_json(found: Mapping[str, object], file: Path) -> None:
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
