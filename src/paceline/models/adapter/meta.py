"""A transformers model on the meta device, from a config alone: for sizes without weights."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from paceline.models.adapter.encoder_decoder import TransformersEncoderDecoderLM, measure_encoder_decoder
from paceline.models.adapter.files import model_class, read_model_config
from paceline.models.adapter.lm import TransformersLM
from paceline.models.adapter.support import check_config, check_model, first_line, measure
from paceline.models.directory import ModelError

META = torch.device("meta")


def build_on_meta(path: Path, *, dtype: torch.dtype, trust_remote_code: bool = False) -> TransformersLM:
    """An adapter over a model of ``path``'s config on the meta device, for its sizes only.

    What is refused by its kind is refused here too, with ModelError; the probe needs weights and is not run.
    """
    config = read_model_config(path, trust_remote_code=trust_remote_code)
    check_config(config, str(path))
    try:
        with META:
            # Of the ways to compute attention and experts those whose shapes depend on no content.
            model: PreTrainedModel = model_class(config).from_config(
                config, dtype=dtype, attn_implementation="eager", trust_remote_code=trust_remote_code
            )
        model.set_experts_implementation("batched_mm")
    except Exception as error:  # whatever transformers or the model's own code raises
        raise ModelError(f"{path}: transformers makes no model of its config.json ({first_line(error)})") from error
    check_model(model.eval())
    with _Zero():
        if config.is_encoder_decoder:
            return TransformersEncoderDecoderLM(model, *measure_encoder_decoder(model), (dtype, META))
        return TransformersLM(model, measure(model), (dtype, META))


class _Zero(TorchDispatchMode):
    """``item()`` of a meta tensor gives zero, as for rotary embeddings that depend on the length."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return torch.zeros((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))
