"""Tests whether a model is batch-invariant: a token's logits are bitwise equal whatever is computed beside it.

Most models are not, since matrix libraries choose the order of a sum by the number of rows. B rows, V vocabulary.
"""

import torch
from torch import Tensor

from paceline.core.tree import Tree
from paceline.models.base import LM, max_sequence_length

LENGTH = 40  # tokens of the test sequences
SEED = 20260102


@torch.inference_mode()
def find_batch_dependence(lm: LM, *, rows: int, num_nodes: int) -> str | None:
    """What a token's logits depend on beside its own sequence, in words; None if the model is batch-invariant.

    One sequence is read token by token, in chains of up to ``num_nodes`` whose ends are rejected, at once, in a batch
    of ``rows`` and in a cache of another capacity. Logits are compared bitwise.
    """
    length = min(LENGTH, max_sequence_length(lm, num_nodes=num_nodes))
    generator = torch.Generator().manual_seed(SEED)
    sequences = torch.randint(lm.vocab_size, (max(2, rows), length), generator=generator).to(lm.device)
    own = sequences[:1]
    capacity = length + num_nodes
    alone = _read(lm, own, [1] * length, capacity)
    for size in sorted({2, num_nodes}):
        if not torch.equal(alone, _read(lm, own, _chunks(length, size), capacity, drafted=size)):
            return f"the {size - 1} tokens drafted beside it"
    if not torch.equal(alone, _read(lm, own, [length], capacity)):
        return "the prompt that it is read with"
    if not torch.equal(alone, _read(lm, sequences, [1] * length, capacity)[:1]):
        return f"the {len(sequences) - 1} other rows of its batch"
    if lm.max_slots is None and not torch.equal(alone, _read(lm, own, [1] * length, 2 * capacity)):
        return "the capacity of the cache"
    return None


def _chunks(length: int, size: int) -> list[int]:
    """Chunk sizes that cycle from 1 to ``size``."""
    chunks: list[int] = []
    while sum(chunks) < length:
        chunks.append(min(len(chunks) % size + 1, length - sum(chunks)))
    return chunks


def _read(lm: LM, sequences: Tensor, chunks: list[int], capacity: int, drafted: int = 0) -> Tensor:
    """Logits [B, T, V] of ``sequences`` read in ``chunks``, each of them the accepted part of ``drafted`` nodes."""
    cache = lm.new_cache(len(sequences), capacity).view()
    pieces, at = [], 0
    for count in chunks:
        tokens = sequences[:, at : at + count]
        rejected = max(0, drafted - count)
        nodes = torch.nn.functional.pad(tokens, (0, rejected))
        logits = lm(Tree.make_chain(nodes, torch.ones_like(nodes, dtype=torch.bool)), cache).logits
        assert logits is not None
        pieces.append(logits[:, :count])
        cache.commit(torch.full((len(sequences),), count, device=sequences.device))
        at += count
    return torch.cat(pieces, dim=1)
