"""ctypes mirrors of the C++ structs of the kernel library, field by field (src/step/program.h and others).

Those of a step's begin and end are in step_structs.py.
"""

import ctypes
from ctypes import Structure, c_double, c_int64, c_void_p
from enum import IntEnum

# Without a __dict__ (empty __slots__) a misspelt field raises instead of being ignored.


class Kind(IntEnum):
    """Kinds of operations."""

    NORM = 0
    LINEAR = 1
    LINEAR_ADD = 2
    GATE = 3
    ACTIVATE = 4
    ADD = 5
    ROTATE = 6
    ATTEND = 7
    ATTEND_SOURCE = 8


class NormVariant(IntEnum):
    """Variants of NORM; the eager classes are in models/native/layers."""

    RMS = 0
    RMS_LATE = 1
    RMS_OFFSET = 2
    LAYER = 3
    COPY = 4  # no norm


class WeightFormat(IntEnum):
    """Weight formats of LINEAR: the model's precision, int8 or int4 (models/native/quantization), row-major or packed
    in panels (models/cpu/packed_weights).
    """

    FLOATS = 0
    INT8 = 1
    INT4 = 2
    PACKED = 3
    PACKED_INT8 = 4
    PACKED_INT4 = 5


class Activation(IntEnum):
    """Activation functions of GATE and ACTIVATE."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU = 3


class Buffer(IntEnum):
    """Activation buffers, one row per node; STREAM is the residual stream."""

    STREAM = 0
    NORMED = 1
    HEADS = 2
    ATTENDED = 3
    INNER = 4
    GATED = 5
    ATTENTION_OUT = 6
    PAIR = 7  # an embedding beside a feature


class Operation(Structure):
    """One operation on every row of a buffer."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "kind variant source target inner outer count offset".split()),
        *((name, c_double) for name in ("eps", "factor")),
        *((name, c_void_p) for name in ("weight", "bias", "scales")),
    ]


class Model(Structure):
    """A decoder: its sizes, the offsets of heads in a row, and the operations of its layers."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "hidden vocab tokens num_heads num_kv_heads head_dim max_positions".split()),
        *(
            (name, c_int64)
            for name in "query query_step key key_step value value_step float32_rotary panel_rows input".split()
        ),
        ("width", c_int64 * len(Buffer)),
        *((name, c_double) for name in "scale embedding_factor divisor".split()),
        *((name, c_void_p) for name in "embedding position relative buckets".split()),
        ("num_distances", c_int64),
        ("operations", ctypes.POINTER(Operation)),
        ("layers", ctypes.POINTER(c_int64)),
        ("norm", Operation),
        ("head", Operation),
    ]


class PairInput(Structure):
    """How a head over pairs joins a token's embedding and a feature, and where the next feature is."""

    __slots__ = ()

    _fields_ = [
        ("operations", ctypes.POINTER(Operation)),
        *(
            (name, c_int64)
            for name in "num_operations embedding feature feature_size zero_first output output_size".split()
        ),
    ]


class DepthModel(Structure):
    """One depth of a draft by a head without layers that has weights of its own for each."""

    __slots__ = ()

    _fields_ = [("model", Model), ("pair", PairInput)]


class BlockInput(Structure):
    """How a head drafts blocks; what is null is not there."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "slots first_slot".split()),
        *((name, Operation) for name in "product norm keys_values".split()),
        ("key_norms", ctypes.POINTER(Operation)),
        *((name, c_void_p) for name in "mask before".split()),
        *((name, Operation) for name in "after confidence".split()),
    ]


class Call(Structure):
    """The arguments of one forward: the tree, the cache and the outputs. Steps are strides in elements, not bytes."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows nodes start chain threads logits_for".split()),
        *((name, c_void_p) for name in "tokens depth valid ancestors".split()),
        *((name, c_int64) for name in "tokens_step depth_step valid_step ancestors_row_step ancestors_step".split()),
        *((name, c_void_p) for name in "length row_index keys values".split()),
        *((name, c_int64) for name in "layer_step row_step slot_step capacity".split()),
        *((name, c_void_p) for name in ("source_keys", "source_values")),
        *((name, c_int64) for name in "source_layer_step source_row_step source_slot_step".split()),
        ("source_length", c_void_p),
        *((name, c_void_p) for name in "cos sin".split()),
        *((name, c_int64) for name in "table rotary_dim".split()),
        ("layers", ctypes.POINTER(c_int64)),
        ("num_layers", c_int64),
        ("taps", ctypes.POINTER(c_int64)),
        ("hidden", ctypes.POINTER(c_void_p)),
        ("num_taps", c_int64),
        *((name, c_void_p) for name in ("logits", "ready")),
        ("ready_step", c_int64),
        ("resumed", c_void_p),
        *((name, c_int64) for name in "resumed_row_step resumed_step resumed_layer".split()),
        ("pair", ctypes.POINTER(PairInput)),
        *((name, c_void_p) for name in ("outputs", "wanted")),
        *((name, c_int64) for name in ("wanted_step", "last_states")),
    ]


class FusedDraft(Structure):
    """The arguments of fused drafting: a chain per row, with shared layers or an input projection if there are any."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "depth vocab greedy max_count".split()),
        *((name, c_void_p) for name in ("count", "sequence")),
        ("sequence_step", c_int64),
        ("states", c_void_p),
        *((name, c_int64) for name in ("states_row_step", "states_step")),
        ("input_projection", ctypes.POINTER(Operation)),
        *((name, c_void_p) for name in "length valid tokens".split()),
        ("shared_layers", ctypes.POINTER(Model)),
        ("shared_layers_call", ctypes.POINTER(Call)),
        *((name, c_void_p) for name in ("hidden", "added")),
        *((name, c_int64) for name in ("added_row_step", "added_step")),
        *((name, c_void_p) for name in "least acceptance notes target_ids".split()),
        ("depth_models", ctypes.POINTER(DepthModel)),
        ("block", ctypes.POINTER(BlockInput)),
    ]


class SamplingOptions(Structure):
    """The rows' sampling options (core/sampling)."""

    __slots__ = ()

    _fields_ = [
        *(
            (name, c_void_p)
            for name in "temperature top_p min_p typical_p epsilon_cutoff eta_cutoff top_k order seed".split()
        ),
    ]


class LogitsBatch(Structure):
    """Logits of some nodes per row, and the output. Steps are strides in elements, not bytes."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows nodes size threads".split()),
        ("logits", c_void_p),
        *((name, c_int64) for name in "row_step step".split()),
        ("position", c_void_p),
        *((name, c_int64) for name in "position_row_step position_step".split()),
        *((name, c_void_p) for name in ("offset", "out", "wanted")),
        *((name, c_int64) for name in ("wanted_row_step", "wanted_step")),
    ]


class LogitsProcessors(Structure):
    """The rows' logits processors (core/processing); null where no row uses one."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "vocab width".split()),
        *((name, c_void_p) for name in "tokens length bias counts in_prompt repetition frequency presence".split()),
        *((name, c_int64) for name in "num_sequences num_before".split()),
        *((name, c_void_p) for name in "before last value".split()),
        ("num_late", c_int64),
        *((name, c_void_p) for name in "late allowed_from ngram".split()),
    ]


class LogprobQuery(Structure):
    """The decided tokens and the outputs for their log-probabilities."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "depth top width".split()),
        *((name, c_void_p) for name in "num_top num length tokens path".split()),
        ("path_step", c_int64),
        *((name, c_void_p) for name in "own best best_tokens".split()),
    ]


class Paths(Structure):
    """The draft tokens between each row's sequence and the next token. Steps are strides in elements, not bytes."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "depth grows".split()),
        ("tokens", c_void_p),
        *((name, c_int64) for name in "row_step step".split()),
        *((name, c_void_p) for name in "levels ancestors".split()),
        *((name, c_int64) for name in "levels_step ancestors_row_step ancestors_step".split()),
    ]
