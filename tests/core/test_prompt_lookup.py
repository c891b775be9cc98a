"""Prompt lookup copies what the rule says, by a search that shares no code with it."""

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.ops import TensorOps
from paceline.core.request import Request

CPU = torch.device("cpu")
DEPTH, LENGTH = 5, 40
NGRAMS = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (6, 2)]  # max_ngram, min_ngram
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


def batch_of(tokens, ops, *, max_tokens=6, num_draft=None, planned=None, released=()):
    """A batch of these sequences; ``num_draft`` and ``planned`` are by row."""
    batch = Batch(rows=len(tokens), max_length=LENGTH, max_depth=DEPTH, vocab_size=64, ops=ops, device=CPU)
    drafts = num_draft or [None] * len(tokens)
    requests = [
        Request(tokens=one, max_tokens=max_tokens, num_draft_tokens=most)
        for one, most in zip(tokens, drafts, strict=True)
    ]
    batch.tokens.fill_(7)  # what a former occupant left
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
    )


def expected_draft(tokens, max_ngram, min_ngram, count):
    """At most ``count`` tokens after the latest of the longest matches."""
    for size in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                grown = list(tokens)
                for _ in range(count):
                    grown.append(grown[start + size + len(grown) - len(tokens)])
                return grown[len(tokens) :]
    return []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("max_ngram", "min_ngram"), NGRAMS)
def test_chains_are_those_of_a_plain_search(max_ngram, min_ngram, seed):
    generator = torch.Generator().manual_seed(seed)
    drafted = 0
    for _ in range(4):
        tokens, options = sequences(generator), options_of(generator)
        batch = batch_of(tokens, TensorOps(), **options)
        chain, valid = batch.ngram_chain(DEPTH, max_ngram=max_ngram, min_ngram=min_ngram)
        for row, sequence in enumerate(tokens):
            active, room = bool(batch.active[row]), int(batch.draft_room[row])
            draft = expected_draft(sequence, max_ngram, min_ngram, room if active else 0)
            assert chain[row].tolist() == [sequence[-1], *draft, *[0] * (DEPTH - len(draft))], row
            assert valid[row].tolist() == [active, *[at < len(draft) for at in range(DEPTH)]], row
            drafted += len(draft)
    assert drafted
