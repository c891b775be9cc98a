"""ctypes mirrors of the C++ structs of a step's begin and end, field by field (src/step/batch.h, state_queue.h)."""

from ctypes import Structure, c_int64, c_void_p

# Without a __dict__ (empty __slots__) a misspelt field raises instead of being ignored.


class RowView(Structure):
    """Values per row, the rows ``step`` apart."""

    __slots__ = ()

    _fields_ = [("data", c_void_p), ("step", c_int64)]


class Sequences(Structure):
    """The sequences of a batch (core/batch); ``counts`` of their tokens may be null."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows width stops max_depth head vocab".split()),
        *(
            (name, c_void_p)
            for name in "tokens length limit steps num_draft planned notes stop finish report active counts".split()
        ),
    ]


class Decision(Structure):
    """The draft tree and the verifier's decision (core/tree)."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "nodes depth no_draft_reason".split()),
        *((name, RowView) for name in "tokens parents levels valid origin path".split()),
        *((name, c_void_p) for name in "committed next num".split()),
    ]


class Matched(Structure):
    """A draft tree, the target's picks after its nodes, and the verifier's decision (core/tree)."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows nodes depth".split()),
        *((name, RowView) for name in "tokens parents levels valid picks".split()),
        *((name, c_void_p) for name in "path committed next".split()),
    ]


class Counters(Structure):
    """Per-row counters (core/stats)."""

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows max_depth".split()),
        *((name, c_void_p) for name in "steps emitted drafted accepted".split()),
    ]


class StateQueue(Structure):
    """What is appended to a queue of hidden states (core/ops); ``path`` and ``first`` may be null.

    ``states``: of each tap its address, and the steps of rows and of nodes and the size of a state in bytes. Steps:
    ``path``'s in elements, the queue's in bytes.
    """

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows num_states".split()),
        *((name, c_void_p) for name in ("states", "path")),
        ("path_step", c_int64),
        *((name, c_void_p) for name in "first until queue".split()),
        ("queue_row_step", c_int64),
        ("count", c_void_p),
    ]


class LastStates(Structure):
    """What is appended to the last hidden states of each row (core/ops), with steps and sizes in bytes.

    ``path`` may be null; its step is in elements.
    """

    __slots__ = ()

    _fields_ = [
        *((name, c_int64) for name in "rows count size".split()),
        ("states", c_void_p),
        *((name, c_int64) for name in "row_step step".split()),
        ("path", c_void_p),
        ("path_step", c_int64),
        *((name, c_void_p) for name in "num kept".split()),
        ("kept_row_step", c_int64),
    ]
