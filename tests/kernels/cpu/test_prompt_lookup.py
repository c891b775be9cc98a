"""Prompt lookup by the kernel equals that by tensor operations."""

import pytest
import torch
from hypothesis import given, settings

from paceline.core.ops import TensorOps
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.request import MAX_STOP_TOKENS
from paceline.kernels.cpu.ops import CpuOps
from tests.core.test_prompt_lookup import (
    DEPTH,
    NGRAMS,
    ROWS,
    RULES,
    batch_of,
    ngram_options,
    options_of,
    ragged,
    sequences,
)


def both(tokens, depth, options, **limits):
    """Tokens and validity by either."""
    made = (batch_of(tokens, ops, **limits) for ops in (TensorOps(), CpuOps()))
    return [batch.ngram_chain(depth, options) for batch in made]


def assert_equal(plain, kernel):
    for one, other in zip(plain, kernel, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("max_ngram", "min_ngram"), NGRAMS)
def test_chains_match_torch(max_ngram, min_ngram, rules, seed):
    generator = torch.Generator().manual_seed(seed)
    options = NgramOptions(max_ngram=max_ngram, min_ngram=min_ngram, **rules)
    for depth in (1, 2, DEPTH, DEPTH):
        assert_equal(*both(sequences(generator), depth, options, **options_of(generator)))


@settings(max_examples=200, deadline=None)
@given(rows=ragged, options=ngram_options)
def test_chains_of_any_batch_match_torch(rows, options):
    stops = [sorted(stops) for _, stops in rows]
    assert_equal(*both([sequence for sequence, _ in rows], DEPTH, options, stops=stops))


@pytest.mark.parametrize("length", range(1, 9))
def test_chains_of_every_short_sequence_match_torch(length):
    short = torch.cartesian_prod(*[torch.arange(2)] * length).reshape(-1, length).tolist()
    for max_ngram, min_ngram in NGRAMS:
        for first in (False, True):
            options = NgramOptions(max_ngram=max_ngram, min_ngram=min_ngram, first=first)
            plain, kernel = both(short, DEPTH, options)
            assert_equal(plain, kernel)
            assert bool(kernel[1][:, 1:].any()) == (length > min_ngram)


def test_every_stop_token_ends_drafts():
    """The last of as many as there can be, too."""
    stops = [*range(10, 10 + MAX_STOP_TOKENS - 1), 3]
    plain, kernel = both([[1, 2, 3, 4, 1]], DEPTH, NgramOptions(crop=True), stops=[stops])
    assert_equal(plain, kernel)
    assert kernel[1].tolist() == [[True, True, *[False] * (DEPTH - 1)]]


def test_rows_that_may_not_draft_have_the_root_alone():
    generator = torch.Generator().manual_seed(0)
    tokens = [[5, 6] * 4 for _ in range(ROWS)]
    for limits in (dict(planned=(0,) * ROWS), dict(num_draft=[0] * ROWS), dict(max_tokens=1)):
        assert_equal(*(chains := both(tokens, DEPTH, NgramOptions(), **limits)))
        assert chains[1][1].tolist() == [[True, *[False] * DEPTH]] * ROWS
    released = torch.randperm(ROWS, generator=generator)[:3].tolist()
    _, (_, valid) = both(tokens, DEPTH, NgramOptions(), released=released)
    assert valid.sum(-1).tolist() == [0 if row in released else 1 + DEPTH for row in range(ROWS)]
