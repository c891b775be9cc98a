"""Checkpoint directories that transformers reads, for the adapter. Refuses whatever would unpickle or guess weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from paceline.models import memory
from paceline.models.adapter.support import check_config, first_line
from paceline.models.directory import ModelError, find_weights
from paceline.models.loading import GIB, ONE_CHECKPOINT


def load(
    path: Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu", trust_remote_code: bool = False
) -> PreTrainedModel:
    """The model of a directory by transformers' own code, evaluating; ``dtype`` None keeps the files' precision.

    Only local safetensors are read. Quantized weights are left to transformers and the library that they need. Code in
    the directory runs only with ``trust_remote_code``. Raises ModelError for kinds that the adapter cannot run, weights
    that are pickled, missing, of another shape, or larger than the device's free memory, and whatever transformers
    refuses.
    """
    config = read_model_config(path, trust_remote_code=trust_remote_code)
    check_config(config, str(path))
    _check_memory(find_weights(path), path, dtype, device)
    quantized = config.to_dict().get("quantization_config") is not None
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        loaded: Any = model_class(config).from_pretrained(
            path,
            dtype="auto" if dtype is None else dtype,
            device_map={"": str(device)} if quantized else None,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except Exception as error:  # whatever transformers, a quantization library or the model's own code raises
        reason = "its quantized weights need a library" if quantized else "transformers refuses it"
        remedy = "install what is named, or give unquantized weights" if quantized else "save it anew, or give another"
        raise ModelError(f"{path}: {reason} ({first_line(error)}); {remedy}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    model, info = loaded
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ModelError(
            f"{path}: the weights do not fit config.json: {', '.join(missing[:3])} are missing or of another shape; "
            f"{ONE_CHECKPOINT}"
        )
    return (model if quantized else model.to(device)).requires_grad_(False).eval()


def model_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that makes models with an LM head of ``config``."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def read_model_config(path: Path, *, trust_remote_code: bool) -> PreTrainedConfig:
    """transformers' config of a directory. Raises ModelError for one that it does not know or refuses."""
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(
            f"{path}: unsupported architecture, which neither Paceline nor transformers knows ({first_line(error)}); "
            "if the directory brings its own code and you trust it, give trust_remote_code"
        ) from error


def _check_memory(files: list[Path], path: Path, dtype: torch.dtype | None, device: torch.device | str) -> None:
    needed, free = sum(file.stat().st_size for file in files), memory.free_memory(device)
    if needed > free and (dtype is None or dtype.itemsize > 1):
        sizes = f"{needed / GIB:.3g} GiB exceed the {free / GIB:.3g} GiB free on {device}"
        raise ModelError(f"{path}: weights of {sizes}: give a smaller model or a larger machine")
