"""Checks by config and one short forward whether the adapter can run a transformers model.

B rows, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from paceline.models.adapter.cache import CacheShape, LayerShape
from paceline.models.directory import ModelError

CONTEXT_FIELDS = (
    "max_position_embeddings",
    "max_decoder_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
WINDOW_FIELDS = ("window_size", "keep_window_size", "attention_window", "attention_window_size")
UNTYPED_FIELDS = ("sliding_window", "attention_chunk_size")  # layer_types say whether these matter, where there are any
SPARSE_FIELDS = ("index_topk", "index_topk_blocks")
CAUSAL = "give a decoder-only model with ordinary key/value caches"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """Sequences up to ``length`` tokens are attended in full; ``reason`` says what changes beyond."""

    length: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Properties of a model found by one short forward."""

    shape: CacheShape
    vocab_size: int
    plain_head: bool  # logits are bitwise the output embedding of the base model's hidden states
    limit: ContextLimit | None


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Raise ModelError for models that the adapter cannot run by their kind, with the reason and the way out."""
    kind = f"unsupported architecture {config.model_type!r} in {name}"
    if config.is_encoder_decoder:
        if type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
            raise ModelError(f"{kind}: an encoder-decoder that reads no text; give one that writes text from text")
        if config.to_dict().get("relative_attention_num_buckets"):
            raise ModelError(
                f"{kind}: it adds a bias by the distance of cache slots, which is not that of tree nodes; give a T5 or "
                "mT5, which run natively, or a model with positions of another kind"
            )
    elif config.get_text_config(decoder=True) is not config:
        raise ModelError(
            f"{kind}: it takes more than text; give its language model alone, saved with the config's text_config"
        )
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        if found._is_stateful:
            raise ModelError(_recurrent(kind))
    for layer, cached in enumerate(_layers(decoder_config(config), kind)):
        if isinstance(cached, DynamicLayer) and type(cached) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ModelError(f"{kind}: layer {layer} keeps more than keys and values ({cached!r}); {CAUSAL}")
        if not isinstance(cached, DynamicLayer) and not _is_dummy(cached):
            raise ModelError(_recurrent(kind))
    for field in SPARSE_FIELDS:
        if config.to_dict().get(field):
            raise ModelError(
                f"{kind}: its attention chooses which tokens to read ({field}), scratch included; {CAUSAL}"
            )
    read_context(decoder_config(config), name)


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of what writes the output: of an encoder-decoder, its decoder's."""
    return config.get_text_config(decoder=True) if config.is_encoder_decoder else config


def config_of_decoder(model: PreTrainedModel) -> PreTrainedConfig:
    """The config of what writes the output in ``model``."""
    # That of T5's decoder counts the decoder's layers, that of the whole the encoder's.
    decoder = model.get_decoder() if model.config.is_encoder_decoder else model
    return decoder_config(getattr(decoder, "config", model.config))


def check_model(model: PreTrainedModel) -> None:
    """Raise ModelError for what the loaded ``model`` is or lacks; its config is checked too."""
    name = type(model).__name__
    if model._is_stateful:
        raise ModelError(_recurrent(f"unsupported architecture {model.config.model_type!r} in {name}"))
    check_config(model.config, name)
    if model.get_output_embeddings() is None:
        auto = "AutoModelForSeq2SeqLM" if model.config.is_encoder_decoder else "AutoModelForCausalLM"
        raise ModelError(f"{name} has no language-model head; load it with {auto}")
    if model.config.is_encoder_decoder and model.main_input_name != "input_ids":
        raise ModelError(f"{name}: its encoder reads {model.main_input_name}; give a model that reads text")
    if model.training:
        raise ModelError(f"{name} is in training mode, where it draws random dropout: call model.eval()")


def placement(model: PreTrainedModel) -> tuple[torch.dtype, torch.device]:
    """Precision and the one device of ``model``. Raises ModelError for several devices and weights without storage."""
    name = type(model).__name__
    first, found = next(model.named_parameters())
    for own, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ModelError(f"{name}: {own} has no storage (meta); load the model without offloading")
        if parameter.device != found.device:
            raise ModelError(
                f"{name}: {first} is on {found.device}, {own} on {parameter.device}; "
                "put the whole model on one device with model.to(...)"
            )
    return model.dtype, found.device


def read_context(config: PreTrainedConfig, name: str, *, fields: Sequence[str] = CONTEXT_FIELDS) -> int:
    """Positions that the model knows, by the first of ``fields``. Raises ModelError if its config names none."""
    raw = config.to_dict()
    for field in fields:
        value = raw.get(config.attribute_map.get(field, field))
        if isinstance(value, int) and value > 0:
            return value
    raise ModelError(f"{name}: its config names no context length; add max_position_embeddings to its config.json")


@torch.no_grad()
def measure(model: PreTrainedModel) -> ModelInfo:
    """Run ``model`` on three tokens with a cache of transformers. Raises ModelError if it fills none as others do."""
    name = type(model).__name__
    tokens = torch.tensor([[1, 2, 0]], device=model.device)
    try:
        cache = DynamicCache(config=model.config)
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
    except Exception as error:  # whatever the model's own code raises
        raise ModelError(f"{name}: its forward with a key/value cache fails ({first_line(error)}); {CAUSAL}") from error
    layers = tuple(layer_shape(layer, tokens.shape[1], name) for layer in cache.layers)
    dtypes = {layer.keys.dtype for layer in cache.layers if isinstance(layer, DynamicLayer) and layer.keys is not None}
    if len(dtypes) != 1:
        raise ModelError(f"{name} keeps no keys and values in the cache that it is given; {CAUSAL}")
    return ModelInfo(
        shape=CacheShape(layers=layers, dtype=dtypes.pop()),
        vocab_size=logits.shape[-1],
        plain_head=has_plain_head(model, {"input_ids": tokens}),
        limit=find_limit(model.config, cache, read_context(model.config, name)),
    )


def base_model_of(model: PreTrainedModel) -> PreTrainedModel | None:
    """The model without its head; None where transformers gives no such part."""
    base = model.base_model
    return base if isinstance(base, PreTrainedModel) and base is not model else None


def has_plain_head(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether the logits of ``inputs`` are bitwise the output embedding of the base model's hidden states."""
    base, head = base_model_of(model), model.get_output_embeddings()
    if base is None or not isinstance(head, torch.nn.Module) or model.device.type == "meta":
        return False
    hidden = base(**inputs, use_cache=False, return_dict=True)[0]
    logits = model(**inputs, use_cache=False, return_dict=True).logits
    if not isinstance(hidden, torch.Tensor) or hidden.shape[:2] != logits.shape[:2]:
        return False
    try:
        found = head(hidden)
    except RuntimeError:  # there is another projection before it
        return False
    return found.dtype == logits.dtype and torch.equal(found, logits)


def _layers(config: PreTrainedConfig, kind: str) -> list[object]:
    try:
        return list(DynamicCache(config=config).layers)
    except Exception as error:
        raise ModelError(f"{kind}: transformers makes no key/value cache for it ({first_line(error)})") from error


def _is_dummy(layer: object) -> bool:
    return type(layer).__name__ == "DummyLayer"


def _recurrent(kind: str) -> str:
    return (
        f"{kind}: its recurrent or convolutional state cannot go back when a draft is refused, as keys and values can; "
        f"{CAUSAL}"
    )


def layer_shape(layer: object, length: int, name: str) -> LayerShape | None:
    """The shape of a layer's keys and values for ``length`` tokens; None where it has none. Raises ModelError."""
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        return None
    keys, values = layer.keys, layer.values
    if keys.dim() != 4 or keys.shape[2] != length or keys.shape[:3] != values.shape[:3]:
        raise ModelError(
            f"{name}: keys {tuple(keys.shape)} and values {tuple(values.shape)} of a layer are not ordinary; {CAUSAL}"
        )
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3])


def find_limit(config: PreTrainedConfig, cache: Cache, context: int) -> ContextLimit | None:
    """What keeps sequences below ``context`` tokens; None where nothing does."""
    found = [*_windows(config, cache), *_scalings(config)]
    return min((limit for limit in found if limit.length < context), key=lambda limit: limit.length, default=None)


def _windows(config: PreTrainedConfig, cache: Cache) -> Iterator[ContextLimit]:
    for layer in cache.layers:
        if isinstance(layer, DynamicSlidingWindowLayer):
            yield ContextLimit(length=layer.sliding_window, reason="its layers attend to a window of that many tokens")
    fields = config.to_dict()
    untyped = fields.get("layer_types") is None and fields.get("use_sliding_window", True)
    for field in (*WINDOW_FIELDS, *UNTYPED_FIELDS) if untyped else WINDOW_FIELDS:
        if isinstance(fields.get(field), int) and fields[field] > 0:
            yield ContextLimit(length=fields[field], reason=f"its {field} says that layers attend to that many tokens")


def _scalings(config: PreTrainedConfig) -> Iterator[ContextLimit]:
    rope = config.to_dict().get("rope_parameters")
    kinds = [rope, *rope.values()] if isinstance(rope, Mapping) else []
    for kind in kinds:
        if isinstance(kind, Mapping) and kind.get("rope_type") == "longrope":
            original = kind.get("original_max_position_embeddings")
            if isinstance(original, int):
                yield ContextLimit(
                    length=original, reason="its rotary embedding (longrope) changes for longer sequences"
                )


def first_line(error: Exception) -> str:
    """An error of another library in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
