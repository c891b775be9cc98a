"""Statistics of a window's output that say whether it is good enough, as transformers computes them.

They are of the target's own probabilities; a draft has no part in them. T tokens, V vocabulary.
"""

import zlib
from collections.abc import Sequence
from math import log2

import torch
from torch import Tensor

Tokens = Sequence[int]


def compression_ratio(tokens: Tokens, vocab_size: int) -> float:
    """Bytes of the token ids over their bytes after zlib: high where an output repeats itself."""
    width = int(log2(vocab_size) / 8) + 1
    raw = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(raw) / len(zlib.compress(raw))


def token_logprob(scores: Tensor, token: int, temperature: float) -> float:
    """Log-probability of ``token`` by ``scores`` [V], which are after processors, ``temperature`` and filters.

    The temperature is undone; tokens that were masked or filtered have no probability.
    """
    return float((scores.float() * (temperature if temperature > 0 else 1.0)).log_softmax(-1)[token])


def mean_logprob(logprobs: Sequence[float]) -> float:
    """Mean over a window's tokens, the one that ends it among them."""
    return sum(logprobs) / len(logprobs)


def probability(logits: Tensor, token: int) -> float:
    """Of ``token`` by the model's own ``logits`` [V]."""
    return float(torch.softmax(logits.float(), dim=-1)[token])
