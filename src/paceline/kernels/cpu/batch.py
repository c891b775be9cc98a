"""The begin and end of a step by the CPU kernel: a chain's begin, prompt lookup, what matches, the extension, the
counters, and the states that a draft head is to read.

R rows, N nodes, D depth of the tree.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.columns import Columns
from paceline.core.step import HEADER
from paceline.kernels.cpu.operators import entry, kernel_op, pointers_of, row_major
from paceline.kernels.cpu.step_structs import Counters, Decision, LastStates, Matched, RowView, Sequences, StateQueue

BATCH = (
    "tokens",
    "length",
    "limit",
    "steps",
    "num_draft",
    "planned",
    "notes",
    "stop",
    "finish",
    "report",
    "active",
)  # core/batch_state
STATS = ("steps", "emitted", "drafted", "accepted")  # core/stats


def _sequences(*columns: Tensor) -> Sequences:
    tensors = dict(zip(BATCH, columns, strict=True))
    rows, width = tensors["tokens"].shape
    return Sequences(
        rows=rows,
        width=width,
        stops=tensors["stop"].shape[1],
        max_depth=(tensors["report"].shape[1] - HEADER) // 2 - 1,
        head=HEADER,
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
    )


def _counters(*columns: Tensor) -> Counters:
    rows, max_depth = columns[-1].shape
    pointers = {name: tensor.data_ptr() for name, tensor in zip(STATS, columns, strict=True)}
    return Counters(rows=rows, max_depth=max_depth, **pointers)


@kernel_op(
    lambda isa, batch, depth, longest: (
        batch.tensors[0].new_empty(len(batch.tensors[0]), 1 + depth),
        batch.tensors[0].new_empty(len(batch.tensors[0]), 1 + depth, dtype=torch.bool),
    ),
    columns={"batch": BATCH},
)
def begin_chain(isa: str, batch: Columns, depth: int, longest: int) -> tuple[Tensor, Tensor]:
    """See Batch.begin_chain."""
    sequences = pointers_of(batch, _sequences)
    tokens = torch.empty(sequences.rows, 1 + depth, dtype=torch.int64)
    valid = torch.empty(sequences.rows, 1 + depth, dtype=torch.bool)
    pointers = (ctypes.c_void_p(tokens.data_ptr()), ctypes.c_void_p(valid.data_ptr()))
    entry(isa, "begin_chain")(ctypes.byref(sequences), ctypes.c_int64(depth), ctypes.c_int64(longest), *pointers)
    return tokens, valid


@kernel_op(
    lambda isa, batch, depth, max_ngram, min_ngram, first, wrap, crop: (
        batch.tensors[0].new_empty(len(batch.tensors[0]), 1 + depth),
        batch.tensors[0].new_empty(len(batch.tensors[0]), 1 + depth, dtype=torch.bool),
    ),
    columns={"batch": BATCH},
)
def ngram_chain(
    isa: str, batch: Columns, depth: int, max_ngram: int, min_ngram: int, first: bool, wrap: bool, crop: bool
) -> tuple[Tensor, Tensor]:
    """See Batch.ngram_chain."""
    sequences = pointers_of(batch, _sequences)
    tokens = torch.empty(sequences.rows, 1 + depth, dtype=torch.int64)
    valid = torch.empty(sequences.rows, 1 + depth, dtype=torch.bool)
    numbers = (depth, max_ngram, min_ngram, first, wrap, crop)  # 32 bits each, as ctypes passes what is bare
    pointers = (ctypes.c_void_p(tokens.data_ptr()), ctypes.c_void_p(valid.data_ptr()))
    entry(isa, "ngram_chain")(ctypes.byref(sequences), *numbers, *pointers)
    return tokens, valid


@kernel_op(
    lambda isa, tokens, parents, depth, valid, picks, max_depth: (
        tokens.new_empty(len(tokens), max_depth),
        tokens.new_empty(len(tokens)),
        tokens.new_empty(len(tokens)),
    )
)
def match(
    isa: str, tokens: Tensor, parents: Tensor, depth: Tensor, valid: Tensor, picks: Tensor, max_depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The path [R, D], the number of committed tokens [R] and the next one [R] of Batch.match."""
    rows, nodes = tokens.shape
    path = torch.empty(rows, max_depth, dtype=torch.int64)
    committed, following = (torch.empty(rows, dtype=torch.int64) for _ in range(2))
    held = [row_major(field) for field in (tokens, parents, depth, valid, picks)]
    views = (RowView(field.data_ptr(), field.stride(0)) for field in held)
    outputs = (path.data_ptr(), committed.data_ptr(), following.data_ptr())
    entry(isa, "match")(ctypes.byref(Matched(rows, nodes, max_depth, *views, *outputs)))
    return path, committed, following


@kernel_op(
    lambda isa, batch, counts, tokens, parents, depth, valid, origin, path, committed, following, max_depth, reason: (
        torch.empty_like(committed)
    ),
    columns={"batch": BATCH},
    mutates=[
        *(f"batch_{name}" for name in ("tokens", "length", "steps", "notes", "finish", "report", "active")),
        "counts",
    ],
)
def extend(
    isa: str,
    batch: Columns,
    counts: Tensor | None,
    tokens: Tensor,
    parents: Tensor,
    depth: Tensor,
    valid: Tensor,
    origin: Tensor,
    path: Tensor,
    committed: Tensor,
    following: Tensor,
    max_depth: int,
    reason: int,
) -> Tensor:
    """Append what was decided of a tree, see Ops.append; the committed tokens of each row after clipping [R].

    ``counts`` [R, V + 1] are the occurrences of tokens in the new sequences, None where no row needs them.
    """
    num, sequences = torch.empty_like(committed), pointers_of(batch, _sequences)
    sequences.counts = None if counts is None else counts.data_ptr()
    sequences.vocab = 0 if counts is None else counts.shape[1] - 1
    fields = (tokens, parents, depth, valid, origin, path)
    _decide(isa, "extend", sequences, fields, committed, following, num, max_depth, reason)
    return num


@kernel_op(
    lambda isa, counters, tokens, parents, depth, valid, origin, path, committed, following, max_depth: None,
    columns={"counters": STATS},
    mutates=[f"counters_{name}" for name in STATS],
)
def record(
    isa: str,
    counters: Columns,
    tokens: Tensor,
    parents: Tensor,
    depth: Tensor,
    valid: Tensor,
    origin: Tensor,
    path: Tensor,
    committed: Tensor,
    following: Tensor,
    max_depth: int,
) -> None:
    """Count one step of every row, see Stats.record; ``committed`` [R] are the tokens after clipping."""
    fields = (tokens, parents, depth, valid, origin, path)
    _decide(isa, "record", pointers_of(counters, _counters), fields, committed, following, committed, max_depth, 0)


@kernel_op(lambda isa, states, path, first, until, queue, count: None, mutates=["queue", "count"])
def queue_states(
    isa: str,
    states: Sequence[Tensor],
    path: Tensor | None,
    first: Tensor | None,
    until: Tensor,
    queue: Tensor,
    count: Tensor,
) -> None:
    """See Ops.queue_states; ``states`` have the queue's dtype."""
    size, held = queue.element_size(), [row_major(one) for one in states]
    steps = [(one.data_ptr(), *one.stride()[:2], one.shape[2]) for one in held]
    # An array of integers takes a third of the time that one of structs takes.
    views = (ctypes.c_int64 * (4 * len(held)))(
        *(value for data, *elements in steps for value in (data, *(size * count for count in elements)))
    )
    path = None if path is None else row_major(path)
    first, until = None if first is None else first.contiguous(), until.contiguous()
    called = StateQueue(
        queue.shape[0],
        len(held),
        ctypes.addressof(views),
        *((None, 0) if path is None else (path.data_ptr(), path.stride(0))),
        None if first is None else first.data_ptr(),
        until.data_ptr(),
        queue.data_ptr(),
        size * queue.stride(0),
        count.data_ptr(),
    )
    entry(isa, "queue_states")(ctypes.byref(called))


@kernel_op(lambda isa, states, path, num, kept: None, mutates=["kept"])
def keep_last(isa: str, states: Tensor, path: Tensor | None, num: Tensor, kept: Tensor) -> None:
    """See Ops.keep_last; ``states`` have the dtype of ``kept``."""
    size, states, num = kept.element_size(), row_major(states), num.contiguous()
    path = None if path is None else row_major(path)
    called = LastStates(
        *kept.shape[:2],
        size * kept.shape[2],
        states.data_ptr(),
        *(size * step for step in states.stride()[:2]),
        *((None, 0) if path is None else (path.data_ptr(), path.stride(0))),
        num.data_ptr(),
        kept.data_ptr(),
        size * kept.stride(0),
    )
    entry(isa, "keep_last")(ctypes.byref(called))


def _decide(
    isa: str,
    name: str,
    struct: ctypes.Structure,
    fields: tuple[Tensor, ...],
    committed: Tensor,
    following: Tensor,
    num: Tensor,
    max_depth: int,
    reason: int,
) -> None:
    """Call the entry ``name`` with the tree and the decision as the kernel reads them."""
    held = [row_major(field) for field in fields]
    committed, following = committed.contiguous(), following.contiguous()
    decision = Decision(
        fields[0].shape[1],
        max_depth,
        reason,
        *(RowView(field.data_ptr(), field.stride(0)) for field in held),
        committed.data_ptr(),
        following.data_ptr(),
        num.data_ptr(),
    )
    entry(isa, name)(ctypes.byref(struct), ctypes.byref(decision))
