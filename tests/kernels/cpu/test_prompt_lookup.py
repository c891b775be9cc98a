"""Prompt lookup by the kernel equals that by tensor operations."""

import pytest
import torch

from paceline.core.ops import TensorOps
from paceline.kernels.cpu.ops import CpuOps
from tests.core.test_prompt_lookup import DEPTH, NGRAMS, ROWS, batch_of, options_of, sequences


def both(tokens, depth, max_ngram, min_ngram, **options):
    """Tokens and validity by either."""
    made = (batch_of(tokens, ops, **options) for ops in (TensorOps(), CpuOps()))
    return [batch.ngram_chain(depth, max_ngram=max_ngram, min_ngram=min_ngram) for batch in made]


def assert_equal(plain, kernel):
    for one, other in zip(plain, kernel, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("max_ngram", "min_ngram"), NGRAMS)
def test_chains_match_torch(max_ngram, min_ngram, seed):
    generator = torch.Generator().manual_seed(seed)
    for depth in (1, 2, DEPTH, DEPTH):
        assert_equal(*both(sequences(generator), depth, max_ngram, min_ngram, **options_of(generator)))


@pytest.mark.parametrize("length", range(1, 9))
def test_chains_of_every_short_sequence_match_torch(length):
    short = torch.cartesian_prod(*[torch.arange(2)] * length).reshape(-1, length).tolist()
    for max_ngram, min_ngram in NGRAMS:
        plain, kernel = both(short, DEPTH, max_ngram, min_ngram)
        assert_equal(plain, kernel)
        assert bool(kernel[1][:, 1:].any()) == (length > min_ngram)


def test_rows_that_may_not_draft_have_the_root_alone():
    generator = torch.Generator().manual_seed(0)
    tokens = [[5, 6] * 4 for _ in range(ROWS)]
    for options in (dict(planned=(0,) * ROWS), dict(num_draft=[0] * ROWS), dict(max_tokens=1)):
        assert_equal(*(chains := both(tokens, DEPTH, 3, 1, **options)))
        assert chains[1][1].tolist() == [[True, *[False] * DEPTH]] * ROWS
    released = torch.randperm(ROWS, generator=generator)[:3].tolist()
    _, (_, valid) = both(tokens, DEPTH, 3, 1, released=released)
    assert valid.sum(-1).tolist() == [0 if row in released else 1 + DEPTH for row in range(ROWS)]
