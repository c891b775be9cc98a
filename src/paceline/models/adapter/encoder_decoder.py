"""Encoder-decoders of transformers that read text as an ``LM``, run by their own code.

A request's source is read at admission, and its keys and values for the cross-attention are kept beside the cache.
B rows, n nodes, R rows of a cache, L layers, X states, K key-value heads, E head size, H hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from paceline.core.admission import Admission
from paceline.core.cache import SlotCache, View
from paceline.core.context import Context, ContextInput
from paceline.models.adapter.cache import CacheShape, LayerShape, TreeCache
from paceline.models.adapter.lm import TransformersLM, takes
from paceline.models.adapter.position_table import PositionTable, find_position_layer
from paceline.models.adapter.support import (
    CONTEXT_FIELDS,
    ModelInfo,
    config_of_decoder,
    find_limit,
    first_line,
    has_plain_head,
    layer_shape,
    read_context,
)
from paceline.models.directory import ModelError
from paceline.models.native.attention import SOURCE_KEYS, SOURCE_LENGTH, SOURCE_VALUES, TreeAttention, add_sources
from paceline.models.native.encoder_decoder import STATES, TOKENS

SOURCE_FIELDS = ("max_encoder_position_embeddings", *CONTEXT_FIELDS)
START = 1  # a token for forwards whose logits nobody reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """Properties of an encoder, and of the cross-attention to it, found by one short forward."""

    width: int  # numbers of a state
    layers: tuple[LayerShape, ...]
    most: int  # tokens
    vocab_size: int
    other_vocab: bool

    @property
    def size(self) -> tuple[int, int]:
        """Heads and head size of the largest layer."""
        return max(one.num_heads for one in self.layers), max(max(one.key_dim, one.value_dim) for one in self.layers)


@dataclass
class Encoded(BaseModelOutput):
    """An encoder's states [B, X, H] for a model; those with experts look for routing beside them."""

    router_logits: Any = None
    router_probs: Any = None


class SourceLayer(CacheLayerMixin):
    """The keys and values [B, K, X, E] of a layer's cross-attention, made before."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """They exist already."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("a layer reads its source a second time, which it did not when the model was probed")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[-2]

    def get_max_length(self) -> int:
        return self.get_seq_length()


@final
class TransformersEncoderDecoderLM(TransformersLM):
    """An encoder-decoder as an ``LM`` (models/base); made by ``adapt``. The model is not copied or changed."""

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        source: SourceInfo,
        place: tuple[torch.dtype, torch.device],
    ) -> None:
        super().__init__(model, info, place)
        self.source = source
        decoder, pad = model.get_decoder(), model.config.pad_token_id
        layer = find_position_layer(decoder)
        token = START if pad != START else START + 1  # some layers number no padding
        self._positions = (
            None if layer is None else PositionTable(decoder, layer, self.max_positions, token, source.width)
        )
        self._sources: WeakKeyDictionary[Context, Tensor] = WeakKeyDictionary()  # of requests that somebody holds

    @property
    def context_inputs(self) -> Mapping[str, ContextInput]:
        source = self.source
        states = ContextInput(min_shape=(1, source.width), max_shape=(source.most, source.width), is_source=True)
        tokens = ContextInput(
            min_shape=(1,),
            max_shape=(source.most,),
            vocab_size=source.vocab_size,
            is_source=True,
            other_vocab=source.other_vocab,
            instead=(STATES, states),
        )
        return {TOKENS: tokens}

    @property
    def context_bytes(self) -> int:
        heads, size = self.source.size
        return 2 * len(self.source.layers) * self.source.most * heads * size * self.dtype.itemsize

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """As a decoder's, with room for the sources of all rows."""
        cache = super().new_cache(rows, capacity)
        add_sources(cache, (rows, len(self.source.layers), self.source.most, *self.source.size), self.dtype)
        return cache

    def admit(self, cache: View, admission: Admission) -> View:
        """Copy prefixes with their sources, and read the sources of the other rows: equal ones once."""
        view = super().admit(cache, admission)
        rows = admission.rows_of_contexts
        for context, own in rows.items():
            self._store(cache.storage, own, self.encode(context))
        return view

    @torch.no_grad()
    def encode(self, context: Context) -> Tensor:
        """The encoder's states [X, H] of a source; those that some request still holds are not made again."""
        if context not in self._sources:
            given = next(iter(context.inputs.values())).to(self.device)
            self._sources[context] = given.to(self.dtype) if STATES in context.inputs else _encode(self.model, given)
        return self._sources[context]

    @torch.no_grad()
    def _store(self, storage: SlotCache, rows: Sequence[int], states: Tensor) -> None:
        state, size = storage.row_state, len(states)
        for layer, (keys, values) in enumerate(_cross(self.model, states)):
            for name, part in ((SOURCE_KEYS, keys), (SOURCE_VALUES, values)):
                heads, _, width = part.shape
                for row in rows:
                    state[name][row, layer, :size, :heads, :width] = part.transpose(0, 1)
        for row in rows:
            state[SOURCE_LENGTH][row] = size

    def _forward(self, module: PreTrainedModel, tokens: Tensor, attend: TreeAttention) -> Any:
        view = attend.cache
        length = view.row_state(SOURCE_LENGTH)
        # On the CPU asking for the longest source waits for nothing, and spares the slots after it.
        longest = max(1, int(length.max())) if self.device.type == "cpu" else self.source.most
        keys, values = (view.row_state(name)[:, :, :longest] for name in (SOURCE_KEYS, SOURCE_VALUES))
        layers = [
            SourceLayer(
                keys[:, layer, :, : shape.num_heads, : shape.key_dim].transpose(1, 2),
                values[:, layer, :, : shape.num_heads, : shape.value_dim].transpose(1, 2),
            )
            for layer, shape in enumerate(self.source.layers)
        ]
        mask = torch.arange(longest, device=self.device) < length[:, None]
        arguments: dict[str, Any] = dict(
            encoder_outputs=Encoded(
                last_hidden_state=cast(Any, torch.zeros((), dtype=self.dtype, device=self.device)).expand(
                    len(tokens), longest, self.source.width
                )
            ),
            attention_mask=mask.long(),
            decoder_input_ids=tokens,
            decoder_attention_mask=attend.mask,
            past_key_values=EncoderDecoderCache(TreeCache(self.info.shape, attend), Cache(layers=cast(Any, layers))),
            use_cache=True,
            return_dict=True,
        )
        if takes(module, "decoder_position_ids"):
            arguments["decoder_position_ids"] = attend.positions
        if self._positions is None:
            return module(**arguments)
        with self._positions.read(attend.positions):
            return module(**arguments)

    def probe_view(self, rows: int, capacity: int, draw: Any) -> View:
        """Rows with sources of different lengths, which ``plain`` reads too."""
        sizes = [min(self.source.most, 3 + 4 * row) for row in range(rows)]
        self._probed = [draw(size).to(self.device) % self.source.vocab_size for size in sizes]
        cache = self.new_cache(rows, capacity)
        for row, ids in enumerate(self._probed):
            self._store(cache, [row], _encode(self.model, ids))
        return cache.view()

    def plain(self, tokens: list[int], row: int) -> Tensor:
        """Logits [T, V] of one sequence over the source of a probed row, without a cache."""
        ids = self._probed[row][None]
        return self.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            decoder_input_ids=torch.tensor([tokens], device=self.device),
            use_cache=False,
            return_dict=True,
        ).logits[0]


@torch.no_grad()
def measure_encoder_decoder(model: PreTrainedModel) -> tuple[ModelInfo, SourceInfo]:
    """Run ``model`` on three tokens with caches of transformers. Raises ModelError if it fills none as others do."""
    name, config = type(model).__name__, config_of_decoder(model)
    ids = torch.tensor([[START, 2, 0]], device=model.device)
    caches = DynamicCache(config=config), DynamicCache(config=config)
    try:
        states = _encode(model, ids[0])
        output = model(
            encoder_outputs=Encoded(last_hidden_state=cast(Any, states[None])),
            attention_mask=torch.ones_like(ids[:, : len(states)]),
            decoder_input_ids=ids,
            past_key_values=EncoderDecoderCache(*caches),
            use_cache=True,
            return_dict=True,
        )
        inputs, outputs = (
            cast(nn.Embedding, part.get_input_embeddings()).num_embeddings
            for part in (model.get_encoder(), model.get_decoder())
        )
    except Exception as error:  # whatever the model's own code raises
        raise ModelError(
            f"{name}: its forward with a key/value cache fails ({first_line(error)}); give an encoder-decoder with "
            "ordinary key/value caches"
        ) from error
    own, cross = ([layer_shape(one, ids.shape[1], name) for one in cache.layers] for cache in caches)
    dtypes = {one.keys.dtype for one in caches[0].layers if isinstance(one, DynamicLayer) and one.keys is not None}
    if len(dtypes) != 1 or None in cross or len(cross) != len(own):
        raise ModelError(f"{name} keeps no keys and values of its sources in the cache that it is given")
    info = ModelInfo(
        shape=CacheShape(layers=tuple(own), dtype=dtypes.pop()),
        vocab_size=output.logits.shape[-1],
        plain_head=has_plain_head(model, {"input_ids": ids, "decoder_input_ids": ids}),
        limit=find_limit(config, caches[0], read_context(config, name)),
    )
    shared = getattr(model.config, "share_encoder_decoder_embeddings", True)
    source = SourceInfo(
        width=states.shape[-1],
        layers=tuple(one for one in cross if one is not None),
        most=_longest_source(model.config, name),
        vocab_size=inputs,
        other_vocab=not bool(shared) or inputs != outputs,
    )
    return info, source


def _longest_source(config: PreTrainedConfig, name: str) -> int:
    encoder = getattr(config, "encoder", config)
    return read_context(encoder if isinstance(encoder, PreTrainedConfig) else config, name, fields=SOURCE_FIELDS)


def _encode(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The encoder's states [X, H] of one source of token ids [X]."""
    found = model.get_encoder()(input_ids=ids[None], attention_mask=torch.ones_like(ids[None]), return_dict=True)
    return found.last_hidden_state[0]


def _cross(model: PreTrainedModel, states: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [K, X, E] of every layer's cross-attention to ``states`` [X, H]."""
    config = config_of_decoder(model)
    cross = DynamicCache(config=config)
    model(
        encoder_outputs=Encoded(last_hidden_state=cast(Any, states[None])),
        attention_mask=torch.ones(1, len(states), dtype=torch.int64, device=states.device),
        decoder_input_ids=torch.tensor([[START]], device=states.device),
        past_key_values=EncoderDecoderCache(DynamicCache(config=config), cross),
        use_cache=True,
        return_dict=True,
    )
    return [(layer.keys[0], layer.values[0]) for layer in cast(Sequence[Any], cross.layers)]
