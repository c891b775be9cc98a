"""Language models that are tables: the distribution of a token depends on the two before it. Thousands of rows at no
cost.

They keep their tokens in the cache's key slots, so a cache that commits wrongly shows in the distribution.
"""

import itertools

import torch

from paceline.core.cache import SlotCache
from paceline.models.base import LogitsFor, Output
from paceline.models.wrapped import DecoderOnly


class TableLM(DecoderOnly):
    """``logits`` [V, V, V]: of the next token after (before, current)."""

    max_slots = None
    num_layers = 1
    device = torch.device("cpu")

    def __init__(self, logits, max_positions=64):
        self.logits = logits
        self.vocab_size = logits.shape[-1]
        self.max_positions = max_positions

    def new_cache(self, rows, capacity):
        return SlotCache(
            num_layers=1, rows=rows, capacity=capacity, num_kv_heads=1, head_dim=1, dtype=torch.float64, device="cpu"
        )

    def __call__(self, tree, cache, *, start=0, taps=(), logits_for=LogitsFor.ALL, resume=None, last_states=None):
        length, tokens = cache.length[:, None], tree.tokens[:, start:]
        slots = (length + torch.arange(start, tree.num_nodes)).clamp(max=cache.capacity - 1)
        stored = tokens[..., None, None].double()
        cache.write(0, cache.target_rows(tree.valid[:, start:]), slots, stored, stored)
        keys = cache.read(0)[0][..., 0, 0]
        parents = tree.parents[:, start:]
        before = torch.where(parents >= 0, length + parents, length - 1).clamp(0, cache.capacity - 1)
        context = keys.gather(1, before).long().clamp(0, self.vocab_size - 1)
        context = torch.where((parents < 0) & (length == 0), 0, context)
        if logits_for is LogitsFor.NONE:
            return Output(None, {})
        logits = self.logits[context, tokens]
        if logits_for is LogitsFor.LAST:
            last = (tree.valid[:, start:].sum(-1) - 1).clamp(min=0)
            logits = logits.gather(1, last[:, None, None].expand(-1, 1, self.vocab_size))
        return Output(logits, {})


def random_table(seed, vocab=3, spread=1.2):
    """Full support, asymmetric, different after every context."""
    return torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread


def joint(distributions, before, current, length):
    """Exact distribution of the next ``length`` tokens [V ** length], ``distributions`` [V, V, V] being
    probabilities.
    """
    vocab = distributions.shape[-1]
    total = torch.ones(vocab**length, dtype=torch.float64)
    for index, sequence in enumerate(itertools.product(range(vocab), repeat=length)):
        context = [before, current]
        for token in sequence:
            total[index] *= distributions[context[-2], context[-1], token]
            context.append(token)
    return total


def index_of(sequences, vocab):
    """Cell of each sequence [B, L] in ``joint``."""
    cell = torch.zeros(sequences.shape[0], dtype=torch.int64)
    for column in sequences.T:
        cell = cell * vocab + column
    return cell


def deviation(counts, distribution):
    """G statistic of ``counts`` against ``distribution`` in standard deviations from its mean; inf if distribution
    forbids a count.
    """
    if bool((counts[distribution == 0] > 0).any()):
        return float("inf")
    keep = distribution * counts.sum() >= 5
    rest = ~keep
    observed = torch.cat((counts[keep], counts[rest].sum()[None]))
    wanted = torch.cat((distribution[keep], distribution[rest].sum()[None])) * counts.sum()
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = 2 * (observed * (observed / wanted).clamp(min=1e-300).log()).sum()
    freedom = len(observed) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5)
