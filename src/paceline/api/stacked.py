"""Outputs of different lengths as one tensor, with a mask that comes from the lengths.

N outputs, T tokens of the longest.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.api.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedOutputs:
    """Outputs side by side. Which tokens are an output's own is told by ``mask``, never by their ids."""

    token_ids: Tensor  # [N, T] int64
    mask: Tensor  # [N, T] bool
    lengths: Tensor  # [N] int64


def stack_outputs(results: Sequence[Result], *, pad_id: int, strip: Collection[int] = ()) -> StackedOutputs:
    """The tokens of ``results``, filled up with ``pad_id``, which may be any id. Outputs that end with a token of
    ``strip`` (none: all are kept), such as ``Loaded.eos``, lose that one. Raises ValueError for no results.
    """
    if not results:
        raise ValueError("no results: give at least one output to stack")
    outputs = [
        list(result.token_ids[:-1] if result.token_ids and result.token_ids[-1] in strip else result.token_ids)
        for result in results
    ]
    lengths = torch.tensor([len(output) for output in outputs])
    rows = [torch.tensor(output, dtype=torch.int64) for output in outputs]
    token_ids = pad_sequence(rows, batch_first=True, padding_value=pad_id)
    mask = torch.arange(token_ids.shape[1]) < lengths[:, None]
    return StackedOutputs(token_ids=token_ids, mask=mask, lengths=lengths)
