"""The structures that the kernel reads, field by field as kernel/program.h has them. Knows nothing of modules."""

import ctypes
from ctypes import Structure, c_double, c_int64, c_void_p
from enum import IntEnum


class Kind(IntEnum):
    """What an operation does to every row of a buffer."""

    NORM = 0
    LINEAR = 1
    LINEAR_ADD = 2
    GATE = 3
    ACTIVATE = 4
    ADD = 5
    TURN = 6
    ATTEND = 7


class NormVariant(IntEnum):
    """Which norm a NORM is; the eager classes are in models/layers."""

    RMS = 0
    RMS_LATE = 1
    RMS_OFFSET = 2
    LAYER = 3


class Weights(IntEnum):
    """What the matrix of a LINEAR is made of: numbers of the model's precision or integers (models/quantised), row by
    row or in panels (panels.py).
    """

    FLOATS = 0
    INT8 = 1
    INT4 = 2
    PANELS = 3
    PANELS_INT8 = 4
    PANELS_INT4 = 5


class Activation(IntEnum):
    """Which function a GATE or an ACTIVATE applies."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU = 3


class Buffer(IntEnum):
    """Rows of numbers, one per node; STREAM is the residual stream."""

    STREAM = 0
    NORMED = 1
    HEADS = 2
    ATTENDED = 3
    INNER = 4
    GATED = 5
    ASIDE = 6


class Operation(Structure):
    """One operation on every row of a buffer."""

    _fields_ = [
        *((name, c_int64) for name in "kind variant source target inner outer count offset".split()),
        *((name, c_double) for name in ("eps", "factor")),
        *((name, c_void_p) for name in ("weight", "bias", "scales")),
    ]


class Model(Structure):
    """A decoder: its sizes, where heads lie in a row, and the operations of its layers."""

    _fields_ = [
        *((name, c_int64) for name in "hidden vocab num_heads num_kv_heads head_dim max_positions".split()),
        *((name, c_int64) for name in "query query_step key key_step value value_step wide_table panel_rows".split()),
        ("width", c_int64 * len(Buffer)),
        *((name, c_double) for name in "scale embedding_factor divisor".split()),
        *((name, c_void_p) for name in "embedding position".split()),
        ("operations", ctypes.POINTER(Operation)),
        ("layers", ctypes.POINTER(c_int64)),
        ("norm", Operation),
        ("head", Operation),
    ]


class Call(Structure):
    """One forward: the tree, the cache, and where results go. Steps are strides in numbers, not bytes."""

    _fields_ = [
        *((name, c_int64) for name in "rows nodes start chain threads head".split()),
        *((name, c_void_p) for name in "tokens depth valid ancestors".split()),
        *((name, c_int64) for name in "tokens_step depth_step valid_step ancestors_row_step ancestors_step".split()),
        *((name, c_void_p) for name in "length row_index keys values".split()),
        *((name, c_int64) for name in "layer_step row_step slot_step capacity".split()),
        *((name, c_void_p) for name in "cos sin".split()),
        *((name, c_int64) for name in "table turned".split()),
        ("layers", ctypes.POINTER(c_int64)),
        ("num_layers", c_int64),
        ("taps", ctypes.POINTER(c_int64)),
        ("hidden", ctypes.POINTER(c_void_p)),
        ("num_taps", c_int64),
        *((name, c_void_p) for name in ("logits", "ready")),
        ("ready_step", c_int64),
        ("resumed", c_void_p),
        *((name, c_int64) for name in "resumed_row_step resumed_step resumed_layer".split()),
    ]


class Chain(Structure):
    """Several tokens that a model picks by itself, each read before the next, by a stem first if there is one."""

    _fields_ = [
        *((name, c_int64) for name in "depth vocab greedy most".split()),
        *((name, c_void_p) for name in ("count", "text")),
        ("text_step", c_int64),
        ("states", c_void_p),
        *((name, c_int64) for name in ("states_row_step", "states_step")),
        ("enter", ctypes.POINTER(Operation)),
        *((name, c_void_p) for name in "length valid tokens".split()),
        ("stem", ctypes.POINTER(Model)),
        ("stem_call", ctypes.POINTER(Call)),
        *((name, c_void_p) for name in ("hidden", "added")),
        *((name, c_int64) for name in ("added_row_step", "added_step")),
    ]


class Rows(Structure):
    """Values of every row of texts, the rows ``step`` apart."""

    _fields_ = [("data", c_void_p), ("step", c_int64)]


class Texts(Structure):
    """The texts in progress (core/batch); ``counts`` of their tokens may be null."""

    _fields_ = [
        *((name, c_int64) for name in "rows width stops max_depth head vocab".split()),
        *((name, c_void_p) for name in "tokens length limit steps num_draft stop finish report active counts".split()),
    ]


class Decision(Structure):
    """What was drafted and what was decided of it (core/tree)."""

    _fields_ = [
        *((name, c_int64) for name in "nodes depth blame".split()),
        *((name, Rows) for name in "tokens parents levels valid origin path".split()),
        *((name, c_void_p) for name in "committed next num".split()),
    ]


class Counters(Structure):
    """What is counted (core/stats)."""

    _fields_ = [
        *((name, c_int64) for name in "rows max_depth".split()),
        *((name, c_void_p) for name in "steps emitted drafted accepted".split()),
    ]


class Options(Structure):
    """How each row samples (core/sampling)."""

    _fields_ = [
        *((name, c_void_p) for name in "temperature top_p min_p typical_p epsilon eta top_k order seed".split()),
    ]


class Choices(Structure):
    """Logits of some nodes per row, and where what comes of them goes. Steps are strides in numbers, not bytes."""

    _fields_ = [
        *((name, c_int64) for name in "rows nodes size threads".split()),
        ("logits", c_void_p),
        *((name, c_int64) for name in "row_step step".split()),
        ("position", c_void_p),
        *((name, c_int64) for name in "position_row_step position_step".split()),
        ("out", c_void_p),
    ]


class Processors(Structure):
    """What is done to the logits of each row (core/processing); what no row asks for is null."""

    _fields_ = [
        *((name, c_int64) for name in "vocab width".split()),
        *((name, c_void_p) for name in "tokens length bias counts in_prompt repetition frequency presence".split()),
        *((name, c_int64) for name in "num_sequences num_before".split()),
        *((name, c_void_p) for name in "before last value".split()),
        ("num_late", c_int64),
        *((name, c_void_p) for name in "late allowed_from ngram".split()),
    ]


class Lookups(Structure):
    """Where tokens that were decided stand, and where their log-probabilities go."""

    _fields_ = [
        *((name, c_int64) for name in "depth top width".split()),
        *((name, c_void_p) for name in "asked num length tokens path".split()),
        ("path_step", c_int64),
        *((name, c_void_p) for name in "own best best_tokens".split()),
    ]


class Paths(Structure):
    """The tokens between each row's text and the next token. Steps are strides in numbers, not bytes."""

    _fields_ = [
        *((name, c_int64) for name in "depth grows".split()),
        ("tokens", c_void_p),
        *((name, c_int64) for name in "row_step step".split()),
        *((name, c_void_p) for name in "levels ancestors".split()),
        *((name, c_int64) for name in "levels_step ancestors_row_step ancestors_step".split()),
    ]
