"""Logits processors by the CPU kernel, in one call for all rows and nodes; bitwise equal to the torch operations.

R rows, n or N nodes, d draft tokens on the path to a node, V vocabulary.
"""

import ctypes
from typing import final

import torch
from torch import Tensor

from paceline.core.processing import ProcessingState
from paceline.core.tree import Tree
from paceline.kernels.cpu.sampling import NAMES, load_functions
from paceline.kernels.cpu.structs import LogitsBatch, LogitsProcessors, Paths


def logits_processors_of(state: ProcessingState, tokens: Tensor, length: Tensor) -> LogitsProcessors:
    """Pointers to the tensors of ``state``, for sequences ``tokens`` [R, T] of ``length`` [R]."""
    sequences, late = state.any_sequences, state.any_late
    return LogitsProcessors(
        vocab=state.vocab_size,
        width=tokens.stride(0),
        tokens=tokens.data_ptr(),
        length=length.data_ptr(),
        bias=_pointer(state.bias, state.any_bias),
        counts=_pointer(state.counts, state.any_counts),
        in_prompt=_pointer(state.in_prompt, state.any_counts),
        repetition=state.repetition.data_ptr(),
        frequency=state.frequency.data_ptr(),
        presence=state.presence.data_ptr(),
        num_sequences=state.last.shape[1] if sequences else 0,
        num_before=state.before.shape[2],
        before=_pointer(state.before, sequences),
        last=_pointer(state.last, sequences),
        value=_pointer(state.value, sequences),
        num_late=state.late.shape[1] if late else 0,
        late=_pointer(state.late, late),
        allowed_from=_pointer(state.allowed_from, late),
        ngram=_pointer(state.ngram, state.max_ngram_size > 0),
    )


def _pointer(tensor: Tensor | None, used: bool) -> int | None:
    return tensor.data_ptr() if used and tensor is not None else None


@final
class Processor:
    """The logits processors of ``state`` over sequences in fixed tensors.

    Raises KernelError if the kernel cannot be built.
    """

    def __init__(self, *, state: ProcessingState, tokens: Tensor, length: Tensor) -> None:
        self._run = load_functions("process")
        self._state, self._tokens, self._length = state, tokens, length

    def fits(self, logits: Tensor) -> bool:
        """Whether the kernel can process ``logits``; other logits are left to the torch operations."""
        return logits.dtype in NAMES and logits.shape[-1] == self._state.vocab_size

    def process(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """Processed ``logits`` [R, n, V] of nodes with draft tokens ``drafted`` [R, n, d] before them, -1 padded."""
        drafted = _row_major(drafted)
        row_step, step, _ = drafted.stride()
        paths = Paths(depth=drafted.shape[-1], tokens=drafted.data_ptr(), row_step=row_step, step=step)
        return self._processed(logits, paths)

    def process_tree(self, logits: Tensor, tree: Tree) -> Tensor:
        """Processed ``logits`` [R, N, V] of the nodes of ``tree``."""
        tokens = _row_major(tree.tokens)
        paths = Paths(depth=tree.max_depth, row_step=tokens.stride(0))
        if tree.chain:
            paths.grows, paths.tokens = True, tokens[:, 1:].data_ptr() if tree.num_nodes > 1 else None
            return self._processed(logits, paths)
        levels, ancestors = _row_major(tree.depth), _row_major(tree.ancestors)
        paths.tokens, paths.levels, paths.levels_step = tokens.data_ptr(), levels.data_ptr(), levels.stride(0)
        paths.ancestors = ancestors.data_ptr()
        paths.ancestors_row_step, paths.ancestors_step = ancestors.stride()[:2]
        return self._processed(logits, paths)

    def _processed(self, logits: Tensor, paths: Paths) -> Tensor:
        logits = _row_major(logits)
        rows, nodes, size = logits.shape
        out = torch.empty(rows, nodes, size, dtype=torch.promote_types(logits.dtype, torch.float32))
        batch = LogitsBatch(
            rows=rows,
            nodes=nodes,
            size=size,
            threads=torch.get_num_threads(),
            logits=logits.data_ptr(),
            row_step=logits.stride(0),
            step=logits.stride(1),
            out=out.data_ptr(),
        )
        processors = logits_processors_of(self._state, self._tokens, self._length)
        self._run[logits.dtype](*map(ctypes.byref, (processors, paths, batch)))
        return out


def _row_major(tensor: Tensor) -> Tensor:
    """``tensor`` with a last axis of stride 1."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()
