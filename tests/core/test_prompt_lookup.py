"""Prompt lookup copies what the rule says, by a search that shares no code with it."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.batch import Batch
from paceline.core.ops import TensorOps
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.request import Request

CPU = torch.device("cpu")
DEPTH, LENGTH = 5, 40
NGRAMS = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (6, 2)]  # max_ngram, min_ngram
RULES = [dict(first=first, wrap=wrap, crop=crop) for first, wrap, crop in product((False, True), repeat=3)]
ROWS = 8


def sequences(generator):
    """Of every kind, a row each: random, with many repeats, periodic, all alike, of one token, shorter than n-grams."""

    def drawn(count, vocab):
        return torch.randint(0, vocab, (count,), generator=generator).tolist()

    period = int(torch.randint(1, 7, (), generator=generator))
    return [
        drawn(33, 60),
        drawn(30, 2),
        drawn(24, 4),
        [at % period for at in range(21)],
        [7] * 12,
        drawn(1, 3),
        drawn(2, 2),
        drawn(int(torch.randint(1, 34, (), generator=generator)), 3),
    ]


def batch_of(tokens, ops, *, max_tokens=6, num_draft=None, planned=None, released=(), stops=None):
    """A batch of these sequences; ``num_draft``, ``planned`` and ``stops``, their stop tokens, are by row."""
    batch = Batch(rows=len(tokens), max_length=LENGTH, max_depth=DEPTH, vocab_size=64, ops=ops, device=CPU)
    drafts = num_draft or [None] * len(tokens)
    requests = [
        Request(tokens=one, max_tokens=max_tokens, num_draft_tokens=most, stop_tokens=stop)
        for one, most, stop in zip(tokens, drafts, stops or [()] * len(tokens), strict=True)
    ]
    batch.tokens.fill_(7)  # what a former occupant left
    batch.stop.fill_(7)
    batch.admit(range(len(tokens)), requests)
    if released:
        batch.release(released)
    batch.plan(planned)
    return batch


def options_of(generator):
    """Limits of every kind, which differ by row."""

    def draw(low, high):
        return torch.randint(low, high, (ROWS,), generator=generator).tolist()

    return dict(
        max_tokens=int(torch.randint(1, 7, (), generator=generator)),
        num_draft=draw(0, DEPTH + 1),
        planned=tuple(draw(0, DEPTH + 1)) if int(torch.randint(0, 2, (), generator=generator)) else None,
        released=[row for row, gone in enumerate(draw(0, 4)) if gone == 0],
        stops=[sorted({*draw(0, 7)[:count]}) for count in draw(0, 4)],
    )


def expected_draft(tokens, options, count, stops=()):
    """At most ``count`` tokens that ``options`` copy after ``tokens``, whose stop tokens are ``stops``."""
    for size in range(min(options.max_ngram, len(tokens) - 1), options.min_ngram - 1, -1):
        starts = [start for start in range(len(tokens) - size) if tokens[start : start + size] == tokens[-size:]]
        if starts:
            after = (starts[0] if options.first else starts[-1]) + size
            copied = tokens[after:]
            while options.wrap and len(copied) < count:
                copied = copied + tokens[after:]
            ends = [at for at, token in enumerate(copied) if options.crop and token in stops]
            return copied[: min([count, *ends])]
    return []


def assert_expected(batch, tokens, options):
    """The chains of ``batch`` are those of a plain search; returns the number of drafted tokens."""
    drafted = 0
    chain, valid = batch.ngram_chain(DEPTH, options)
    for row, sequence in enumerate(tokens):
        active, room = bool(batch.active[row]), int(batch.draft_room[row])
        stops = batch.requests[row].stop_tokens if active else ()
        draft = expected_draft(sequence, options, room if active else 0, stops)
        assert chain[row].tolist() == [sequence[-1], *draft, *[0] * (DEPTH - len(draft))], row
        assert valid[row].tolist() == [active, *[at < len(draft) for at in range(DEPTH)]], row
        drafted += len(draft)
    return drafted


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("max_ngram", "min_ngram"), NGRAMS)
def test_chains_are_those_of_a_plain_search(max_ngram, min_ngram, rules, seed):
    generator = torch.Generator().manual_seed(seed)
    options, drafted = NgramOptions(max_ngram=max_ngram, min_ngram=min_ngram, **rules), 0
    for _ in range(4):
        tokens, limits = sequences(generator), options_of(generator)
        drafted += assert_expected(batch_of(tokens, TensorOps(), **limits), tokens, options)
    assert drafted


tokens = st.integers(0, 3)
ngram_options = st.tuples(st.integers(1, 6), st.integers(0, 5), st.sampled_from(RULES)).map(
    lambda drawn: NgramOptions(max_ngram=drawn[0], min_ngram=max(1, drawn[0] - drawn[1]), **drawn[2])
)
ragged = st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=30), st.sets(tokens, max_size=2)), min_size=1)


@settings(max_examples=200, deadline=None)
@given(rows=ragged.filter(lambda rows: len(rows) <= ROWS), options=ngram_options)
def test_chains_of_any_batch_are_those_of_a_plain_search(rows, options):
    sequences = [sequence for sequence, _ in rows]
    batch = batch_of(sequences, TensorOps(), stops=[sorted(stops) for _, stops in rows])
    assert_expected(batch, sequences, options)
