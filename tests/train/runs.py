"""A corpus that can be learned."""

import numpy as np

from tests import tiny


def corpus(seed, count=2000):
    """Tokens with something to learn: each is a fixed function of the one before, mostly."""
    generator = np.random.default_rng(seed)
    tokens = [1]
    while len(tokens) < count:
        surprise = generator.random() < 0.1
        tokens.append(int(generator.integers(tiny.VOCAB)) if surprise else (tokens[-1] * 7 + 3) % tiny.VOCAB)
    return np.asarray(tokens, dtype=np.uint16)
