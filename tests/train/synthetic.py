"""A learnable corpus, and batches with few learned tokens in some rows."""

import dataclasses

import numpy as np
import torch

from tests import tiny


def corpus(seed, count=2000):
    """Tokens of which nine in ten are a fixed function of the token before."""
    generator = np.random.default_rng(seed)
    tokens = [1]
    while len(tokens) < count:
        surprise = generator.random() < 0.1
        tokens.append(int(generator.integers(tiny.VOCAB)) if surprise else (tokens[-1] * 7 + 3) % tiny.VOCAB)
    return np.asarray(tokens, dtype=np.uint16)


class Masked:
    """Batches whose rows have different numbers of learned tokens, a function of row and step."""

    def __init__(self, batches):
        self.batches, self.rows = batches, batches.rows

    def batch(self, step, rows):
        found = self.batches.batch(step, rows)
        learned = [
            torch.rand(found.tokens.shape[1], generator=torch.Generator().manual_seed(100 * step + row)) < (row + 1) / 5
            for row in rows
        ]
        return dataclasses.replace(found, learned=torch.stack(learned))
