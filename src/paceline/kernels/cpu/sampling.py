"""Logits processors, sampling, filtered scores and log-probabilities by the CPU kernel, each in one call for all nodes.

R rows, N or n nodes, d draft tokens on the path to a node, D depth of the tree, V vocabulary, m most likely tokens.
"""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.columns import Columns
from paceline.core.processing import ProcessingState
from paceline.core.sampling import COLUMNS
from paceline.kernels.cpu.operators import entry, kernel_op, pointers_of, row_major
from paceline.kernels.cpu.structs import LogitsBatch, LogitsProcessors, LogprobQuery, Paths, SamplingOptions

DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_ANY_POSITION = torch.zeros(1, 1, dtype=torch.int64)  # for calls that use no noise


class ProcessorTensors(NamedTuple):
    """The rows' sequences and logits processors (core/processing); None where no row uses one."""

    tokens: Tensor
    length: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    bias: Tensor | None
    counts: Tensor | None
    in_prompt: Tensor | None
    before: Tensor | None
    last: Tensor | None
    value: Tensor | None
    late: Tensor | None
    allowed_from: Tensor | None
    ngram: Tensor | None

    @staticmethod
    def of(state: ProcessingState, tokens: Tensor, length: Tensor) -> "ProcessorTensors":
        """Of ``state``, for sequences ``tokens`` [R, T] of ``length`` [R]."""
        sequences, late, counts = state.any_sequences, state.any_late, state.any_counts
        return ProcessorTensors(
            tokens=tokens,
            length=length,
            repetition=state.repetition,
            frequency=state.frequency,
            presence=state.presence,
            bias=state.bias if state.any_bias else None,
            counts=state.counts if counts else None,
            in_prompt=state.in_prompt if counts else None,
            before=state.before if sequences else None,
            last=state.last if sequences else None,
            value=state.value if sequences else None,
            late=state.late if late else None,
            allowed_from=state.allowed_from if late else None,
            ngram=state.ngram if state.max_ngram_size > 0 else None,
        )

    def struct(self, vocab: int) -> LogitsProcessors:
        """Pointers to the tensors, for logits of ``vocab`` tokens."""
        pointers = {name: None if tensor is None else tensor.data_ptr() for name, tensor in self._asdict().items()}
        return LogitsProcessors(
            vocab=vocab,
            width=self.tokens.stride(0),
            num_sequences=0 if self.last is None else self.last.shape[1],
            num_before=0 if self.before is None else self.before.shape[2],
            num_late=0 if self.late is None else self.late.shape[1],
            **pointers,
        )


def sampling_options(*columns: Tensor) -> SamplingOptions:
    """Pointers to the rows' sampling options (core/sampling); later changes of their values are seen."""
    return SamplingOptions(**{name: column.data_ptr() for name, column in zip(COLUMNS, columns, strict=True)})


def _tokens_of(logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape[:2], dtype=torch.int64)


def _scores_of(logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape, dtype=torch.promote_types(logits.dtype, torch.float32))


@kernel_op(lambda isa, sampling, logits, position, offset, wanted: _tokens_of(logits), columns={"sampling": COLUMNS})
def sample(
    isa: str, sampling: Columns, logits: Tensor, position: Tensor, offset: Tensor | None, wanted: Tensor | None
) -> Tensor:
    """The tokens [R, n] of Batch.pick for ``logits`` [R, n, V] at ``position`` [R, n] or [R, 1], plus ``offset`` [R].

    Tokens that are not ``wanted`` [R, n] (None: all are) are 0.
    """
    out = torch.empty(logits.shape[:2], dtype=torch.int64)
    _run(isa, "sample", pointers_of(sampling, sampling_options), logits, position, out, offset, wanted)
    return out


@kernel_op(lambda isa, logits: _tokens_of(logits))
def argmax(isa: str, logits: Tensor) -> Tensor:
    """The argmax tokens [R, n] of ``logits`` [R, n, V]."""
    out = torch.empty(logits.shape[:2], dtype=torch.int64)
    _run(isa, "argmax", None, logits, _ANY_POSITION, out)
    return out


@kernel_op(lambda isa, sampling, logits: _scores_of(logits), columns={"sampling": COLUMNS})
def warp(isa: str, sampling: Columns, logits: Tensor) -> Tensor:
    """The scores [R, n, V] of Batch.warp."""
    out = torch.empty(logits.shape, dtype=torch.promote_types(logits.dtype, torch.float32))
    _run(isa, "warp", pointers_of(sampling, sampling_options), logits, _ANY_POSITION, out)
    return out


def _run(
    isa: str,
    name: str,
    options: SamplingOptions | None,
    logits: Tensor,
    position: Tensor,
    out: Tensor,
    offset: Tensor | None = None,
    wanted: Tensor | None = None,
) -> None:
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    rows, nodes, size = logits.shape
    positions = position if position.shape == (rows, nodes) else position.expand(rows, nodes)
    batch = LogitsBatch(
        rows,
        nodes,
        size,
        torch.get_num_threads(),
        logits.data_ptr(),
        *logits.stride()[:2],
        positions.data_ptr(),
        *positions.stride(),
        None if offset is None else offset.data_ptr(),
        out.data_ptr(),
    )
    if wanted is not None:
        batch.wanted, batch.wanted_row_step, batch.wanted_step = wanted.data_ptr(), *wanted.stride()
    structs = (batch,) if options is None else (options, batch)
    entry(isa, name, logits.dtype)(*map(ctypes.byref, structs))


@kernel_op(lambda isa, processors, logits, drafted: _scores_of(logits))
def process(isa: str, processors: ProcessorTensors, logits: Tensor, drafted: Tensor) -> Tensor:
    """Processed ``logits`` [R, n, V] of nodes with draft tokens ``drafted`` [R, n, d] before them, -1 padded."""
    drafted = row_major(drafted)
    row_step, step, _ = drafted.stride()
    paths = Paths(depth=drafted.shape[-1], tokens=drafted.data_ptr(), row_step=row_step, step=step)
    return _processed(isa, processors, logits, paths)


@kernel_op(lambda isa, processors, logits, tokens, depth, ancestors, max_depth: _scores_of(logits))
def process_tree(
    isa: str,
    processors: ProcessorTensors,
    logits: Tensor,
    tokens: Tensor,
    depth: Tensor | None,
    ancestors: Tensor | None,
    max_depth: int,
) -> Tensor:
    """Processed ``logits`` [R, N, V] of the nodes of a tree, or of a chain without ``depth`` and ``ancestors``."""
    tokens = row_major(tokens)
    paths = Paths(depth=max_depth, row_step=tokens.stride(0))
    if depth is None or ancestors is None:
        paths.grows, paths.tokens = True, tokens[:, 1:].data_ptr() if tokens.shape[1] > 1 else None
        return _processed(isa, processors, logits, paths)
    depth, ancestors = row_major(depth), row_major(ancestors)
    paths.tokens, paths.levels, paths.levels_step = tokens.data_ptr(), depth.data_ptr(), depth.stride(0)
    paths.ancestors = ancestors.data_ptr()
    paths.ancestors_row_step, paths.ancestors_step = ancestors.stride()[:2]
    return _processed(isa, processors, logits, paths)


def _processed(isa: str, processors: ProcessorTensors, logits: Tensor, paths: Paths) -> Tensor:
    logits = row_major(logits)
    out = torch.empty(logits.shape, dtype=torch.promote_types(logits.dtype, torch.float32))
    batch = _logits_batch(logits, out)
    entry(isa, "process", logits.dtype)(*map(ctypes.byref, (processors.struct(logits.shape[-1]), paths, batch)))
    return out


def _empty_logprobs(
    like: Callable[..., Tensor], rows: int, depth: int, top: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        like(rows, depth, dtype=dtype),
        like(rows, depth, top, dtype=torch.int64),
        like(rows, depth, top, dtype=dtype),
    )


@kernel_op(
    lambda isa, sampling, warped, tokens, length, num_top, logits, path, num, top: _empty_logprobs(
        logits.new_empty, len(logits), path.shape[1] + 1, top, torch.promote_types(logits.dtype, torch.float32)
    ),
    columns={"sampling": COLUMNS},
)
def logprobs(
    isa: str,
    sampling: Columns,
    warped: bool,
    tokens: Tensor,
    length: Tensor,
    num_top: Tensor,
    logits: Tensor,
    path: Tensor,
    num: Tensor,
    top: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities [R, D + 1] of the last ``num`` [R] ``tokens``, the most likely tokens [R, D + 1, m] and theirs.

    ``path`` [R, D] names their nodes; rows ask for ``num_top`` [R] of the most likely tokens, -1 for nothing at all,
    and at most for ``top``. ``logits`` [R, N, V] are ``warped`` first, or taken as they are.
    """
    logits = row_major(logits)
    path, num = row_major(path), num.contiguous()
    wide = torch.promote_types(logits.dtype, torch.float32)
    own, best_tokens, best = _empty_logprobs(torch.empty, len(logits), path.shape[1] + 1, top, wide)
    own.fill_(-torch.inf)
    best_tokens.zero_()
    best.fill_(-torch.inf)
    query = LogprobQuery(
        depth=path.shape[1] + 1,
        top=top,
        width=tokens.stride(0),
        num_top=num_top.data_ptr(),
        num=num.data_ptr(),
        length=length.data_ptr(),
        tokens=tokens.data_ptr(),
        path=path.data_ptr(),
        path_step=path.stride(0),
        own=own.data_ptr(),
        best=best.data_ptr(),
        best_tokens=best_tokens.data_ptr(),
    )
    options = ctypes.byref(pointers_of(sampling, sampling_options)) if warped else None
    entry(isa, "logprobs", logits.dtype)(options, ctypes.byref(_logits_batch(logits, None)), ctypes.byref(query))
    return own, best_tokens, best


@kernel_op(lambda isa, logits, path, num, mark, failed: None, mutates=["failed"])
def find_not_finite(isa: str, logits: Tensor, path: Tensor, num: Tensor, mark: int, failed: Tensor) -> None:
    """See Ops.find_not_finite: ``failed`` [R] is ``mark`` where one of ``num`` [R] tokens follows such logits."""
    logits = row_major(logits)
    path, num = row_major(path), num.contiguous()
    query = LogprobQuery(num=num.data_ptr(), path=path.data_ptr(), path_step=path.stride(0))
    arguments = (ctypes.c_int64(mark), ctypes.c_void_p(failed.data_ptr()))
    entry(isa, "find_not_finite", logits.dtype)(
        ctypes.byref(_logits_batch(logits, None)), ctypes.byref(query), *arguments
    )


def _logits_batch(logits: Tensor, out: Tensor | None) -> LogitsBatch:
    rows, nodes, size = logits.shape
    return LogitsBatch(
        rows=rows,
        nodes=nodes,
        size=size,
        threads=torch.get_num_threads(),
        logits=logits.data_ptr(),
        row_step=logits.stride(0),
        step=logits.stride(1),
        out=None if out is None else out.data_ptr(),
    )
