"""Estimates the memory of rows before anything is allocated."""

from collections.abc import Sequence

import torch

from paceline.drafters.base import Drafter
from paceline.models.base import LM
from paceline.models.memory import free_memory

WORKING_COPIES = 3  # of the logits: raw logits, processed scores, probabilities
GIB = 1 << 30


def row_bytes(target: LM, drafter: Drafter, *, max_length: int, num_draft_tokens: int) -> int:
    """Bytes per row: both caches with what they keep of contexts, the sequence, and the logits of a step."""
    nodes = drafter.max_nodes(num_draft_tokens)
    caches = (max_length + nodes) * (target.slot_bytes + drafter.slot_bytes)
    caches += target.context_bytes + drafter.context_bytes
    return caches + 8 * max_length + WORKING_COPIES * nodes * target.vocab_size * torch.float32.itemsize


def extra_bytes(target: LM, drafter: Drafter, *, max_length: int, num_draft_tokens: int) -> int:
    """Bytes of caches that the drafter takes once, whatever the number of rows."""
    return drafter.num_extra_rows * (max_length + drafter.max_nodes(num_draft_tokens)) * target.slot_bytes


def check_memory(
    target: LM, drafter: Drafter, *, rows: int, max_length: int, num_draft_tokens: int, weights: int
) -> None:
    """Raise ValueError, naming the number of rows that would fit, if ``rows`` exceed the device's free memory."""
    each = row_bytes(target, drafter, max_length=max_length, num_draft_tokens=num_draft_tokens)
    extra = extra_bytes(target, drafter, max_length=max_length, num_draft_tokens=num_draft_tokens)
    free = free_memory(target.device)
    if rows * each + extra <= free:
        return
    fitting = max(0, free - extra) // each
    way_out = f"lower batch_size to {fitting}" if fitting else "lower max_tokens or shorten the prompts"
    raise ValueError(
        f"weights {_gib(weights)} (loaded) + cache {_gib(rows * each + extra)} for {rows} rows of {max_length} tokens "
        f"exceed the memory, of which {_gib(free)} is free: {way_out}"
    )


def fitting_rows(target: LM, drafter: Drafter, *, max_length: int, num_draft_tokens: int, most: int) -> int:
    """The number of rows that fit into half of the free memory, from 1 to ``most``."""
    each = row_bytes(target, drafter, max_length=max_length, num_draft_tokens=num_draft_tokens)
    extra = extra_bytes(target, drafter, max_length=max_length, num_draft_tokens=num_draft_tokens)
    return max(1, min(most, (free_memory(target.device) // 2 - extra) // each))


def weight_bytes(models: Sequence[torch.nn.Module]) -> int:
    """Bytes of all parameters; shared storage counts once."""
    return sum({p.data_ptr(): p.nbytes for m in models for p in m.parameters()}.values())


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
