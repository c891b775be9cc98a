"""An encoder-decoder as an LM: requests give the encoder's input as context, which is read once, at admission.

The encoder's states become keys and values of every layer's cross-attention, kept beside the cache and shared by all
nodes. B inputs, R rows, L layers, X states, H hidden size of the encoder, K key-value heads, E head size.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from paceline.core.admission import Admission
from paceline.core.cache import SlotCache, View, Zeros
from paceline.core.context import Context, ContextInput
from paceline.hardware.processor import has_matrix_tiles
from paceline.models.native.attention import SOURCE_KEYS, SOURCE_LENGTH, SOURCE_VALUES, Source, add_sources
from paceline.models.native.blocks import Block
from paceline.models.native.config import DecoderConfig
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.encoder import Encoder
from paceline.models.stopwatch import Stopwatch

TOKENS, FRAMES, STATES = "input_ids", "input_features", "encoder_outputs"  # names of inputs
ENCODED_AT_ONCE = 256 << 20  # bytes of activations of the inputs that are encoded together


@final
class EncoderDecoderLM(DecoderLM):
    """A decoder with cross-attention, and the encoder whose states it attends to.

    A request gives ``input_ids`` or ``input_features``, by the encoder's kind, or ``encoder_outputs`` in their place.
    Without an encoder of its own it reads the states of another one (``share_encoder``).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        assert config.cross is not None
        self.encoder = None if config.encoder is None else Encoder(config.encoder)
        self._shared: tuple[EncoderDecoderLM, ...] = ()  # in a tuple: no part of it
        self._states: WeakKeyDictionary[Context, Tensor] = WeakKeyDictionary()  # of requests that somebody holds
        self._times: WeakKeyDictionary[Context, tuple[Stopwatch, int]] = WeakKeyDictionary()  # and of how many

    def share_encoder(self, other: "EncoderDecoderLM") -> None:
        """Read what the encoder of ``other`` gives, once for both. Raises ValueError for states of another size."""
        assert self.config.cross is not None and other.config.cross is not None
        own, given = self.config.cross.source_size, other.config.cross.source_size
        if own != given:
            raise ValueError(
                f"this decoder reads encoder states of size {own}, and those of the target have {given}: give one that "
                "was made for this target"
            )
        self._shared = (other,)

    @property
    def reads_from(self) -> "EncoderDecoderLM":
        """Whose encoder it reads."""
        return self._shared[0].reads_from if self._shared else self

    @property
    def encoder_size(self) -> int:
        """Numbers of a state that it reads."""
        assert self.config.cross is not None
        return self.config.cross.source_size

    @property
    def num_null(self) -> int:
        """How many keys a source begins with that are of none of its states."""
        assert self.config.cross is not None
        return int(self.config.cross.null)

    @property
    def encodes_by_torch(self) -> bool:
        """Whether torch is faster than our kernels at the matrices of the encoder, which reads many frames at once."""
        config = self.config.encoder
        frames = config is not None and config.num_features is not None
        return frames and self.device.type == "cpu" and self.dtype is torch.bfloat16 and has_matrix_tiles()

    @property
    def encodes_tokens(self) -> bool:
        """Whether the encoder reads tokens by the decoder's embedding."""
        encoder = self.reads_from.config.encoder
        return encoder is not None and encoder.num_features is None and encoder.vocab_size is None

    @property
    def context_inputs(self) -> Mapping[str, ContextInput]:
        config = self.reads_from.config
        assert config.cross is not None
        most, size = config.cross.max_source, config.cross.source_size
        least = 1 - self.num_null
        states = ContextInput(min_shape=(least, size), max_shape=(most, size), is_source=True)
        if config.encoder is None:
            return {STATES: states}
        instead, features = (STATES, states), config.encoder.num_features
        if features is not None:
            frames = (features, 2 * most)
            return {FRAMES: ContextInput(min_shape=frames, max_shape=frames, is_source=True, instead=instead)}
        own = config.encoder.vocab_size
        tokens = ContextInput(
            min_shape=(least,),
            max_shape=(most,),
            vocab_size=self.reads_from.embed.num_embeddings if own is None else own,
            is_source=True,
            other_vocab=own is not None,
            instead=instead,
        )
        return {TOKENS: tokens}

    @property
    def context_bytes(self) -> int:
        """Keys and values of the longest source of one row, in bytes."""
        assert self.config.cross is not None
        sizes = 2 * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim
        return self.config.cross.max_slots * sizes * self.dtype.itemsize

    def new_cache(self, rows: int, capacity: int, *, zeros: Zeros | None = None) -> SlotCache:
        """As a decoder's, with room for the sources of all rows, which on the CPU takes memory when it is written."""
        config, cache = self.config, super().new_cache(rows, capacity, zeros=zeros)
        assert config.cross is not None
        add_sources(
            cache, (rows, config.num_layers, config.cross.max_slots, config.num_kv_heads, config.head_dim), self.dtype
        )
        return cache

    def admit(self, cache: View, admission: Admission) -> View:
        """Copy prefixes with their sources, and read the sources of the other rows: equal ones once."""
        view = super().admit(cache, admission)
        rows = admission.rows_of_contexts
        state = cache.storage.row_state
        for context, states in zip(rows, self.encode(list(rows)), strict=True):
            size = len(states) + self.num_null
            for layer, (keys, values) in enumerate(self.source_keys_values(states)):
                for row in rows[context]:
                    state[SOURCE_KEYS][row, layer, :size], state[SOURCE_VALUES][row, layer, :size] = keys, values
            for row in rows[context]:
                state[SOURCE_LENGTH][row] = size
        return view

    def encode(self, contexts: Sequence[Context]) -> list[Tensor]:
        """The encoder's states [X, H] of each context; those that some request still holds are not made again."""
        if self._shared:
            return [states.to(self.dtype) for states in self.reads_from.encode(contexts)]
        new = [context for context in dict.fromkeys(contexts) if context not in self._states]
        for part in self._parts(new):
            watch = Stopwatch(self.device)
            for context, states in zip(part, self._encode(part), strict=True):
                self._states[context], self._times[context] = states, (watch, len(part))
            watch.stop()
        return [self._states[context] for context in contexts]

    def encoding_seconds(self, context: Context) -> float:
        """Seconds in which ``context`` was encoded, an equal share of those encoded with it; 0 if it was not."""
        watch, count = self._times.get(context, (None, 1))
        return 0.0 if watch is None else watch.seconds / count

    def encode_inputs(self, inputs: Tensor, length: Tensor) -> Tensor:
        """States [B, X, H] of ``inputs``, token ids [B, T] or frames [B, W, T], of which rows have ``length`` [B]."""
        assert self.encoder is not None and self.config.encoder is not None
        if not inputs.shape[-1]:
            return torch.zeros(len(inputs), 0, self.encoder_size, dtype=self.dtype, device=self.device)
        if self.config.encoder.num_features is not None:
            return self.encoder(inputs.to(self.dtype), length)
        if self.encoder.embed is not None:
            return self.encoder(self.encoder.embed(inputs), length)
        embedded = self.embed(inputs.flatten()) * self.embedding_factor
        return self.encoder(embedded.view(*inputs.shape, -1), length)

    def source_keys_values(self, states: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values [..., X, K, E] of every layer, of an encoder's ``states`` [..., X, H], nulls before them."""
        heads = (self.config.num_kv_heads, self.config.head_dim)
        for block in self.blocks:
            assert isinstance(block, Block) and block.cross is not None
            keys, values = block.cross.keys_values(states)
            yield keys.unflatten(-1, heads), values.unflatten(-1, heads)

    def source_of(self, states: Tensor, length: Tensor) -> Source:
        """What ``causal`` reads of an encoder's ``states`` [B, X, H], ``length`` [B] of them; differentiable."""
        return Source(list(self.source_keys_values(states)).__getitem__, length + self.num_null)

    def _parts(self, contexts: Sequence[Context]) -> Iterator[list[Context]]:
        """``contexts`` in parts that are encoded together: of similar length, within a bound on the memory.

        By torch each alone: in their last bits its states would depend on what is beside them.
        """
        given = [context for context in contexts if STATES in context.inputs]
        for context in given:
            yield [context]
        rest = sorted((context for context in contexts if STATES not in context.inputs), key=self._size)
        part: list[Context] = []
        for context in rest:
            together = (len(part) + 1) * self._size(context) * self._position_bytes
            if part and (together > ENCODED_AT_ONCE or self.encodes_by_torch):
                yield part
                part = []
            part.append(context)
        if part:
            yield part

    def _size(self, context: Context) -> int:
        assert self.encoder is not None
        return self.encoder.num_states(next(iter(context.inputs.values())))

    @property
    def _position_bytes(self) -> int:
        """Of the widest activations of a position."""
        assert self.config.encoder is not None
        blocks = self.config.encoder.blocks
        return 4 * self.dtype.itemsize * (blocks.hidden_size + 2 * blocks.ffn_size)

    def _encode(self, contexts: Sequence[Context]) -> list[Tensor]:
        """The states of some contexts, in one forward."""
        inputs = [next(iter(context.inputs.values())).to(self.device) for context in contexts]
        if STATES in contexts[0].inputs:
            return [states.to(self.dtype) for states in inputs]
        sizes = [self._size(context) for context in contexts]
        if inputs[0].dim() == 1:
            batch = nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        else:
            batch = torch.stack(inputs)
        states = self.encode_inputs(batch, torch.tensor(sizes, device=self.device))
        return [one[:size].clone() for one, size in zip(states, sizes, strict=True)]
