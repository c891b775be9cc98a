"""Reads what transformers' ``generate`` prepares for a ``custom_generate`` function back into a call's arguments.

It repeats the prompts for every returned sequence, completes the configuration, and turns its fields into logits
processors and stopping criteria beside those of the caller. N rows, T tokens.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as known

from paceline.api.generation_fields import Values
from paceline.models.from_transformers import TransformersModel

MARK = "_pad_token_tensor"  # of a configuration that ``generate`` has prepared
OF_FORWARD = ("logits_to_keep", "use_cache", "cache_position")  # what it adds for a model's forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The arguments that a direct call would have."""

    values: Values  # of the complete configuration
    attention_mask: Tensor  # [N, T]
    processors: list[object]  # the caller's
    allowed: Callable[..., Any] | None  # prefix_allowed_tokens_fn
    negative_ids: Tensor | None
    negative_mask: Tensor | None
    options: dict[str, object]  # the rest


def is_prepared(config: object) -> TypeGuard[GenerationConfig]:
    """Whether ``config`` comes from transformers' ``generate``, which calls a ``custom_generate`` function."""
    return isinstance(config, GenerationConfig) and MARK in vars(config)


def read_prepared(
    model: TransformersModel,
    input_ids: Tensor,
    mask: object,
    config: GenerationConfig,
    processors: Iterable[object] | None,
    options: Mapping[str, object],
) -> Prepared:
    """What ``generate`` was called with, from what it hands over; ``mask`` is its attention mask, None for ones."""
    rest = {name: value for name, value in options.items() if name not in OF_FORWARD}
    own = _own_processors(model, input_ids, config, mask)
    ones = torch.ones_like(input_ids) if not isinstance(mask, Tensor) else mask
    if _follow(rest.get("position_ids"), ones):
        del rest["position_ids"]
    if _is_new(rest.get("past_key_values")):
        del rest["past_key_values"]
    allowed = negative = None
    left: list[object] = []
    for processor in processors or ():
        if type(processor) is known.PrefixConstrainedLogitsProcessor and processor._num_beams == 1 and allowed is None:
            allowed = processor._prefix_allowed_tokens_fn
        elif type(processor) is known.UnbatchedClassifierFreeGuidanceLogitsProcessor and (
            processor.guidance_scale == config.guidance_scale
        ):
            negative = processor.unconditional_context
        elif not any(_is_same(processor, one) for one in own):
            left.append(processor)
    fields = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    return Prepared(
        # The rows are repeated already. Without top_k transformers keeps every token, while in a direct call its
        # default is filled in.
        values={**fields, "num_return_sequences": 1, "top_k": fields["top_k"] or 0},
        attention_mask=ones,
        processors=left,
        allowed=allowed,
        negative_ids=None if negative is None else negative["input_ids"],
        negative_mask=None if negative is None else negative["attention_mask"],
        options=rest,
    )


def _own_processors(model: Any, input_ids: Tensor, config: GenerationConfig, mask: object) -> LogitsProcessorList:
    """The processors that ``generate`` makes of the configuration alone: fields that the engine reads itself."""
    return model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=input_ids.shape[1],
        encoder_input_ids=input_ids,
        logits_processor=LogitsProcessorList(),
        device=str(input_ids.device),
        model_kwargs={"attention_mask": mask},
    )


def _follow(position_ids: object, mask: Tensor) -> bool:
    """Whether tokens are numbered from 0, padding [N, T] left out."""
    if not isinstance(position_ids, Tensor):
        return False
    wanted = mask.long().cumsum(-1) - 1
    return position_ids.shape[-1] == mask.shape[-1] and bool(((position_ids == wanted) | (mask == 0)).all())


def _is_new(cache: Any) -> bool:
    """Whether ``cache`` is an empty one that ``generate`` has made."""
    return cache is not None and not vars(cache).get("_is_user_defined") and cache.get_seq_length() == 0


def _is_same(one: object, other: object) -> bool:
    """Whether both processors do the same."""
    if type(one) is not type(other):
        return False
    mine, its = vars(one), vars(other)
    return mine.keys() == its.keys() and all(_is_equal(mine[name], its[name]) for name in mine)


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and bool(one == other)
