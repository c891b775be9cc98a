"""Log-probabilities of a step's tokens by the CPU kernel, for the rows that request them.

R rows, N nodes, D depth of the tree, V vocabulary, n most likely tokens.
"""

import ctypes
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.logprobs import StepLogprobs
from paceline.core.tree import Outcome
from paceline.kernels.cpu.sampling import NAMES, load_functions, sampling_options_of
from paceline.kernels.cpu.structs import LogitsBatch, LogprobQuery


@final
class KernelLogprobs:
    """Computes the log-probabilities of ``batch``. Raises KernelError if the kernel cannot be built."""

    def __init__(self, batch: Batch) -> None:
        self._run = load_functions("logprobs")
        self._batch = batch
        self._options = sampling_options_of(batch.sampling)

    def step(self, outcome: Outcome, logits: Tensor, processed: Tensor) -> StepLogprobs:
        """For the tokens of ``outcome``, already appended; ``logits`` and ``processed`` [R, N, V]."""
        num_top = torch.tensor([-1 if count is None else count for count in self._batch.num_logprobs])
        path, num = _row_major(outcome.path), outcome.num_committed.contiguous()
        size = min(int(num_top.max()), logits.shape[-1])
        raw = self._logprobs(False, logits, path, num, num_top, size)
        final = self._logprobs(True, processed, path, num, num_top, size)
        return StepLogprobs(
            raw=raw[0],
            processed=final[0],
            raw_tokens=raw[1],
            raw_top=raw[2],
            processed_tokens=final[1],
            processed_top=final[2],
        )

    def _logprobs(
        self, warped: bool, logits: Tensor, path: Tensor, num: Tensor, num_top: Tensor, top: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the tokens [R, D + 1], the most likely tokens [R, D + 1, n] and theirs."""
        logits = _row_major(logits if logits.dtype in NAMES else logits.float())
        rows, nodes, size = logits.shape
        depth, sequences = path.shape[1] + 1, self._batch.tokens
        wide = torch.promote_types(logits.dtype, torch.float32)
        own = torch.full((rows, depth), -torch.inf, dtype=wide)
        best = torch.full((rows, depth, top), -torch.inf, dtype=wide)
        tokens = torch.zeros(rows, depth, top, dtype=torch.int64)
        batch = LogitsBatch(
            rows=rows,
            nodes=nodes,
            size=size,
            threads=torch.get_num_threads(),
            logits=logits.data_ptr(),
            row_step=logits.stride(0),
            step=logits.stride(1),
        )
        query = LogprobQuery(
            depth=depth,
            top=top,
            width=sequences.stride(0),
            num_top=num_top.data_ptr(),
            num=num.data_ptr(),
            length=self._batch.length.data_ptr(),
            tokens=sequences.data_ptr(),
            path=path.data_ptr(),
            path_step=path.stride(0),
            own=own.data_ptr(),
            best=best.data_ptr(),
            best_tokens=tokens.data_ptr(),
        )
        options = ctypes.byref(self._options) if warped else None
        self._run[logits.dtype](options, ctypes.byref(batch), ctypes.byref(query))
        return own, tokens, best


def _row_major(tensor: Tensor) -> Tensor:
    """``tensor`` with a last axis of stride 1."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()
