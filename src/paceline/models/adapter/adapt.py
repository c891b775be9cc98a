"""``adapt``: which adapter runs a loaded transformers model, measured and probed once."""

from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from paceline.models.adapter.encoder_decoder import (
    SourceInfo,
    TransformersEncoderDecoderLM,
    measure_encoder_decoder,
)
from paceline.models.adapter.lm import TransformersLM
from paceline.models.adapter.probe import probe
from paceline.models.adapter.support import ModelInfo, check_model, measure, placement

Measured: TypeAlias = tuple[ModelInfo, SourceInfo | None]

# An adapter references its model, so this cache must not reference the adapter.
_PROBED: WeakKeyDictionary[PreTrainedModel, tuple[object, Measured]] = WeakKeyDictionary()


def adapt(model: PreTrainedModel) -> TransformersLM:
    """An ``LM`` over ``model``, which is neither copied nor changed.

    Raises ModelError, with the reason and the way out, for a model of a kind that cannot be run so (recurrent, hybrid,
    multimodal, no LM head), one in training mode or on several devices, and one whose logits on trees
    are not those of its plain forward. A model is probed once for its precision, device and attention.
    """
    check_model(model)
    place = placement(model)
    state = (*place, model.config._attn_implementation)
    known = _PROBED.get(model)
    if known is not None and known[0] == state:
        return _wrap(model, known[1], place)
    found = measure_encoder_decoder(model) if model.config.is_encoder_decoder else (measure(model), None)
    adapted = _wrap(model, found, place)
    probe(adapted)
    _PROBED[model] = (state, found)
    return adapted


def _wrap(model: PreTrainedModel, found: Measured, place: tuple[torch.dtype, torch.device]) -> TransformersLM:
    info, source = found
    if source is None:
        return TransformersLM(model, info, place)
    return TransformersEncoderDecoderLM(model, info, source, place)
