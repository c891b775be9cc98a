"""Whether a model gives a token the same logits, bit for bit, in any company. The model itself is asked.

Matrix libraries add up in other orders for other numbers of rows, so most models do not. B rows, V vocabulary.
"""

import torch
from torch import Tensor

from paceline.core.tree import Tree
from paceline.models.base import LM, max_sequence_length

LENGTH = 40  # tokens of the texts that are tried
SEED = 20260102


@torch.inference_mode()
def find_batch_dependence(lm: LM, *, rows: int, num_nodes: int) -> str | None:
    """On what a token's logits depend beside its own text, in words; None where on nothing that was tried.

    One text is read token by token, in chains of up to ``num_nodes`` whose ends are refused, at once, in a batch of
    ``rows`` and in a cache of another capacity. Equality is of all bits.
    """
    length = min(LENGTH, max_sequence_length(lm, num_nodes=num_nodes))
    generator = torch.Generator().manual_seed(SEED)
    texts = torch.randint(lm.vocab_size, (max(2, rows), length), generator=generator).to(lm.device)
    own = texts[:1]
    capacity = length + num_nodes
    alone = _read(lm, own, [1] * length, capacity)
    for size in sorted({2, num_nodes}):
        if not torch.equal(alone, _read(lm, own, _chunks(length, size), capacity, drafted=size)):
            return f"the {size - 1} tokens drafted beside it"
    if not torch.equal(alone, _read(lm, own, [length], capacity)):
        return "the prompt that it is read with"
    if not torch.equal(alone, _read(lm, texts, [1] * length, capacity)[:1]):
        return f"the {len(texts) - 1} other rows of its batch"
    if lm.max_slots is None and not torch.equal(alone, _read(lm, own, [1] * length, 2 * capacity)):
        return "the capacity of the cache"
    return None


def _chunks(length: int, size: int) -> list[int]:
    """Steps of all lengths from 1 to ``size`` in turn."""
    chunks: list[int] = []
    while sum(chunks) < length:
        chunks.append(min(len(chunks) % size + 1, length - sum(chunks)))
    return chunks


def _read(lm: LM, texts: Tensor, chunks: list[int], capacity: int, drafted: int = 0) -> Tensor:
    """Logits [B, T, V] of ``texts`` read in ``chunks``, each of them the accepted part of ``drafted`` nodes."""
    cache = lm.new_cache(len(texts), capacity).view()
    pieces, at = [], 0
    for count in chunks:
        tokens = texts[:, at : at + count]
        refused = max(0, drafted - count)
        nodes = torch.nn.functional.pad(tokens, (0, refused))
        logits = lm(Tree.make_chain(nodes, torch.ones_like(nodes, dtype=torch.bool)), cache).logits
        assert logits is not None
        pieces.append(logits[:, :count])
        cache.commit(torch.full((len(texts),), count, device=texts.device))
        at += count
    return torch.cat(pieces, dim=1)
