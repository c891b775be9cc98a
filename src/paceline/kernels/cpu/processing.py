"""Logits after every row's processors, as one call of the kernel for all rows and nodes; the same numbers.

R rows, n or N nodes, d drafted tokens on the way to a node, V vocabulary. Knows nothing of how texts grow.
"""

import ctypes
from typing import final

import torch
from torch import Tensor

from paceline.core.processing import ProcessingState
from paceline.core.tree import Tree
from paceline.kernels.cpu.sampling import NAMES, prepared
from paceline.kernels.cpu.structs import Choices, Paths, Processors


def processors_of(state: ProcessingState, tokens: Tensor, length: Tensor) -> Processors:
    """The places of what ``state`` holds now, for the texts ``tokens`` [R, T] of ``length`` [R]."""
    sequences, late = state.any_sequences, state.any_late
    return Processors(
        vocab=state.vocab_size,
        width=tokens.stride(0),
        tokens=tokens.data_ptr(),
        length=length.data_ptr(),
        bias=_place(state.bias, state.any_bias),
        counts=_place(state.counts, state.any_counts),
        in_prompt=_place(state.in_prompt, state.any_counts),
        repetition=state.repetition.data_ptr(),
        frequency=state.frequency.data_ptr(),
        presence=state.presence.data_ptr(),
        num_sequences=state.last.shape[1] if sequences else 0,
        num_before=state.before.shape[2],
        before=_place(state.before, sequences),
        last=_place(state.last, sequences),
        value=_place(state.value, sequences),
        num_late=state.late.shape[1] if late else 0,
        late=_place(state.late, late),
        allowed_from=_place(state.allowed_from, late),
        ngram=_place(state.ngram, state.max_ngram_size > 0),
    )


def _place(tensor: Tensor | None, asked: bool) -> int | None:
    return tensor.data_ptr() if asked and tensor is not None else None


@final
class Processor:
    """The processors of ``state`` over texts whose tensors keep their places. Raises KernelError as the kernel does."""

    def __init__(self, *, state: ProcessingState, tokens: Tensor, length: Tensor) -> None:
        self._run = prepared("process")
        self._state, self._tokens, self._length = state, tokens, length

    def fits(self, logits: Tensor) -> bool:
        """Whether the kernel can process ``logits``; what it cannot, plain operations do or refuse."""
        return logits.dtype in NAMES and logits.shape[-1] == self._state.vocab_size

    def process(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """``logits`` [R, n, V] after nodes with the tokens ``drafted`` [R, n, d] before them, -1 after the last."""
        drafted = _dense(drafted)
        row_step, step, _ = drafted.stride()
        paths = Paths(depth=drafted.shape[-1], tokens=drafted.data_ptr(), row_step=row_step, step=step)
        return self._processed(logits, paths)

    def process_tree(self, logits: Tensor, tree: Tree) -> Tensor:
        """``logits`` [R, N, V] after the nodes of ``tree``."""
        tokens = _dense(tree.tokens)
        paths = Paths(depth=tree.max_depth, row_step=tokens.stride(0))
        if tree.chain:
            paths.grows, paths.tokens = True, tokens[:, 1:].data_ptr() if tree.num_nodes > 1 else None
            return self._processed(logits, paths)
        levels, ancestors = _dense(tree.depth), _dense(tree.ancestors)
        paths.tokens, paths.levels, paths.levels_step = tokens.data_ptr(), levels.data_ptr(), levels.stride(0)
        paths.ancestors = ancestors.data_ptr()
        paths.ancestors_row_step, paths.ancestors_step = ancestors.stride()[:2]
        return self._processed(logits, paths)

    def _processed(self, logits: Tensor, paths: Paths) -> Tensor:
        logits = _dense(logits)
        rows, nodes, size = logits.shape
        out = torch.empty(rows, nodes, size, dtype=torch.promote_types(logits.dtype, torch.float32))
        choices = Choices(
            rows=rows,
            nodes=nodes,
            size=size,
            threads=torch.get_num_threads(),
            logits=logits.data_ptr(),
            row_step=logits.stride(0),
            step=logits.stride(1),
            out=out.data_ptr(),
        )
        processors = processors_of(self._state, self._tokens, self._length)
        self._run[logits.dtype](*map(ctypes.byref, (processors, paths, choices)))
        return out


def _dense(tensor: Tensor) -> Tensor:
    """``tensor`` with its last axis side by side in memory."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()
