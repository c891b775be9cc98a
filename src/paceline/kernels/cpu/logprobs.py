"""Log-probabilities of what a step decided, by the kernel: for the rows that ask and the tokens there are, no others.

R rows, N nodes, D depth of the tree, V vocabulary, n likeliest tokens.
"""

import ctypes
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.logprobs import StepLogprobs
from paceline.core.tree import Outcome
from paceline.kernels.cpu.sampling import NAMES, sampling_options_of, prepared
from paceline.kernels.cpu.structs import Choices, Lookups


@final
class KernelLogprobs:
    """Looks up log-probabilities for ``batch``. Raises KernelError where the kernel cannot be built."""

    def __init__(self, batch: Batch) -> None:
        self._run = prepared("look_up")
        self._batch = batch
        self._options = sampling_options_of(batch.sampling)

    def step(self, outcome: Outcome, logits: Tensor, processed: Tensor) -> StepLogprobs:
        """Of the tokens that ``outcome``, already appended, decided from [R, N, V] both."""
        asked = torch.tensor([-1 if count is None else count for count in self._batch.num_logprobs])
        path, num = _dense(outcome.path), outcome.num_committed.contiguous()
        size = min(int(asked.max()), logits.shape[-1])
        raw = self._look_up(False, logits, path, num, asked, size)
        law = self._look_up(True, processed, path, num, asked, size)
        return StepLogprobs(
            raw=raw[0],
            processed=law[0],
            raw_tokens=raw[1],
            raw_top=raw[2],
            processed_tokens=law[1],
            processed_top=law[2],
        )

    def _look_up(
        self, warped: bool, logits: Tensor, path: Tensor, num: Tensor, asked: Tensor, top: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities [R, D + 1], of the likeliest tokens [R, D + 1, n], and those."""
        logits = _dense(logits if logits.dtype in NAMES else logits.float())
        rows, nodes, size = logits.shape
        depth, text = path.shape[1] + 1, self._batch.tokens
        wide = torch.promote_types(logits.dtype, torch.float32)
        own = torch.full((rows, depth), -torch.inf, dtype=wide)
        best = torch.full((rows, depth, top), -torch.inf, dtype=wide)
        tokens = torch.zeros(rows, depth, top, dtype=torch.int64)
        choices = Choices(
            rows=rows,
            nodes=nodes,
            size=size,
            threads=torch.get_num_threads(),
            logits=logits.data_ptr(),
            row_step=logits.stride(0),
            step=logits.stride(1),
        )
        lookups = Lookups(
            depth=depth,
            top=top,
            width=text.stride(0),
            asked=asked.data_ptr(),
            num=num.data_ptr(),
            length=self._batch.length.data_ptr(),
            tokens=text.data_ptr(),
            path=path.data_ptr(),
            path_step=path.stride(0),
            own=own.data_ptr(),
            best=best.data_ptr(),
            best_tokens=tokens.data_ptr(),
        )
        options = ctypes.byref(self._options) if warped else None
        self._run[logits.dtype](options, ctypes.byref(choices), ctypes.byref(lookups))
        return own, tokens, best


def _dense(tensor: Tensor) -> Tensor:
    """``tensor`` with its last axis side by side in memory."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()
