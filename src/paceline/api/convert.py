"""Writes the model of a GGUF file as a Hugging Face directory, which every loader reads."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

from paceline import __version__
from paceline.draft_heads.formats.writing import check_new
from paceline.models.directory import CONFIG, new_directory
from paceline.models.gguf.config import read_config
from paceline.models.gguf.file import GgufError, read_gguf
from paceline.models.gguf.tensors import Conversion, plan
from paceline.models.loading import GIB, dtype_name
from paceline.text.gguf_vocabulary import Vocabulary, build_tokenizer
from paceline.text.tokenizer import load_tokenizer

SHARD = 2 * 10**9  # bytes; one shard is in memory at a time
METADATA = {"format": "pt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What ``convert_gguf`` read and wrote: ``kinds`` are GGUF's kinds of its matrices, the most frequent first."""

    model_type: str
    kinds: tuple[str, ...]
    dtype: torch.dtype
    num_parameters: int
    vocabulary_size: int
    has_chat_template: bool


def convert_gguf(
    path: str | Path,
    output: str | Path,
    *,
    dtype: torch.dtype | None = None,
    tokenizer: str | Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Converted:
    """Write the model of a GGUF file into the new directory ``output``.

    - path: of a split file, any part.
    - dtype: of the weights that are written; None is that of the file, or bfloat16 if it is quantised.
    - tokenizer: a directory whose tokenizer is taken in place of the file's own vocabulary.
    - progress: called with the tensors done and all.

    Tensors are read one by one, and one shard of them is kept. The directory appears when it is whole. Raises
    GgufError, ModelError or TokenizerError for files that are broken or of another kind than those known, before
    anything is written except for numbers that are not finite, and FormatError for a directory that is there already.
    """
    output = Path(output)
    check_new(output)
    file = read_gguf(path)
    config = read_config(file)
    conversions = plan(file, config)
    dtype = file.dtype if dtype is None else dtype
    context = int(file.fields[f"{file.fields['general.architecture']}.context_length"])
    vocabulary = Vocabulary(file.fields, str(file.path))
    if tokenizer is None:
        inner, ends = build_tokenizer(vocabulary, context=context), vocabulary.ends()
    else:
        given = load_tokenizer(tokenizer)
        if given is None:
            raise GgufError(f"{tokenizer} holds no tokenizer; give a directory with tokenizer.json")
        inner, ends = given.inner, [] if config["eos_token_id"] is None else [config["eos_token_id"]]
    if len(inner) > config["vocab_size"]:
        raise GgufError(
            f"{file.path}: {len(inner)} tokens, and embeddings of {config['vocab_size']}; give the directory of the "
            "model's own tokenizer by --tokenizer"
        )
    size = sum(_size(conversion) for conversion in conversions)
    _check_room(output, size * dtype.itemsize)
    with new_directory(output) as folder:
        inner.save_pretrained(folder)
        _write_json({**config, "dtype": dtype_name(dtype), "paceline": __version__}, folder / CONFIG)
        generation = {key: config[key] for key in ("bos_token_id", "pad_token_id") if config[key] is not None}
        _write_json({**generation, **({"eos_token_id": ends} if ends else {})}, folder / "generation_config.json")
        _write_weights(conversions, folder, dtype, progress)
    counts: dict[str, int] = {}
    for conversion in conversions:
        if len(conversion.shape) > 1:
            counts[conversion.source.kind] = counts.get(conversion.source.kind, 0) + _size(conversion)
    return Converted(
        model_type=config["model_type"],
        kinds=tuple(sorted(counts, key=lambda kind: -counts[kind])),
        dtype=dtype,
        num_parameters=size,
        vocabulary_size=len(inner),
        has_chat_template=bool(inner.chat_template),
    )


def _size(conversion: Conversion) -> int:
    return torch.Size(conversion.shape).numel()


def _check_room(output: Path, needed: int) -> None:
    """Raise GgufError unless the disk has room for the weights."""
    there = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise GgufError(
            f"{output}: the weights take {needed / GIB:.3g} GiB, and {free / GIB:.3g} GiB are free; give --dtype "
            "bfloat16, or a directory on another disk"
        )


def _write_weights(
    conversions: list[Conversion], folder: Path, dtype: torch.dtype, progress: Callable[[int, int], None]
) -> None:
    """safetensors files of at most ``SHARD`` bytes where no tensor is larger, with an index if they are several."""
    empty = {conversion.name: torch.empty(conversion.shape, dtype=dtype, device="meta") for conversion in conversions}
    split = split_torch_state_dict_into_shards(empty, max_shard_size=SHARD)
    by_name = {conversion.name: conversion for conversion in conversions}
    done = 0
    for name, tensors in split.filename_to_tensors.items():
        state = {}
        for tensor in tensors:
            state[tensor] = by_name[tensor].values(dtype)
            progress(done := done + 1, len(conversions))
        save_file(state, folder / name, metadata=METADATA)
        (folder / name).chmod(0o644)  # safetensors makes files private; others convert once for everyone
    if split.is_sharded:
        index: dict[str, Any] = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        _write_json(index, folder / "model.safetensors.index.json")


def _write_json(found: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
