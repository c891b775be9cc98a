"""Packing and order: every token once per epoch, in an order that is a function of the step."""

import numpy as np
import pytest
import torch

from paceline.train.data.manifest import Split
from paceline.train.data.mixture import PERIOD, RowBatches
from paceline.train.data.order import Shuffle
from paceline.train.data.packing import ConcatenatedPacking, DocumentPacking, Row
from paceline.train.data.sources.documents import Tokens
from paceline.train.data.store import TokenWriter, open_split

DOCUMENTS = [[1, 2, 3, 4, 5], [6], [7, 8], list(range(10, 25)), [30, 31, 32]]


def stored(tmp_path, documents=DOCUMENTS, masks=None):
    with TokenWriter(tmp_path, dtype=np.dtype(np.uint16)) as writer:
        for number, tokens in enumerate(documents):
            learned = None if masks is None else np.asarray(masks[number], dtype=bool)
            writer.put(Split.TRAIN, Tokens(name="", tokens=np.asarray(tokens), learned=learned, origin=number))
        writer.finish([])
    found = open_split(tmp_path, Split.TRAIN)
    assert found is not None and open_split(tmp_path, Split.VALIDATION) is None
    return found


def rows_of(packing):
    return [packing.row(number) for number in range(packing.num_rows)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 17, 1000])
def test_shuffle_is_a_permutation_for_every_key(size):
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        shuffle = Shuffle(size=size, seed=seed, epoch=epoch)
        orders.append([shuffle[index] for index in range(size)])
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert size < 7 or (orders[0] != orders[1] and orders[0] != orders[2] and orders[1] != orders[2])


def test_shuffle_is_uniform():
    counts = np.zeros((8, 8))
    for epoch in range(2000):
        shuffle = Shuffle(size=8, seed=5, epoch=epoch)
        for index in range(8):
            counts[index, shuffle[index]] += 1
    statistic = float(((counts - 250) ** 2 / 250).sum())  # 49 degrees of freedom
    assert statistic < 85.4, "a fair shuffle exceeds this once in a thousand seeds"


def test_concatenated_rows_predict_every_token_once(tmp_path):
    packing = ConcatenatedPacking(stored(tmp_path), length=4, segmented=True)
    stream = [token for document in DOCUMENTS for token in document]
    rows = rows_of(packing)
    assert packing.num_rows == (len(stream) - 1) // 4
    assert [token for row in rows for token in row.tokens[1:].tolist()] == stream[1 : 1 + 4 * len(rows)]
    assert all(row.tokens[0] == stream[4 * number] for number, row in enumerate(rows))
    assert packing.num_unused == len(stream) - 1 - 4 * len(rows)


def test_no_segment_spans_two_documents_and_first_tokens_are_not_learned(tmp_path):
    which = {token: number for number, document in enumerate(DOCUMENTS) for token in document}
    first = {document[0] for document in DOCUMENTS}
    for row in rows_of(ConcatenatedPacking(stored(tmp_path), length=5, segmented=True)):
        numbers = [which[token] for token in row.tokens.tolist()]
        for one in range(6):
            for other in range(6):
                assert (numbers[one] == numbers[other]) == bool(row.segment[one] == row.segment[other])
        assert row.learned.tolist() == [token not in first for token in row.tokens.tolist()]


def test_document_packing_pads_short_and_splits_long_documents(tmp_path):
    packing = DocumentPacking(stored(tmp_path), length=6, segmented=False)
    rows = rows_of(packing)
    assert packing.num_rows == 1 + 0 + 1 + 3 + 1 and packing.num_unused == 1
    assert rows[0].tokens.tolist() == [1, 2, 3, 4, 5, 0, 0]
    assert rows[0].learned.tolist() == [False, True, True, True, True, False, False]
    assert [row.tokens.tolist() for row in rows[2:5]] == [
        list(range(10, 17)),
        list(range(16, 23)),
        [22, 23, 24, 0, 0, 0, 0],
    ]
    predicted = [
        int(t) for row in rows for t, is_learned in zip(row.tokens[1:], row.learned[1:], strict=True) if is_learned
    ]
    assert predicted == [token for document in DOCUMENTS for token in document[1:]]


@pytest.mark.parametrize("kind", [ConcatenatedPacking, DocumentPacking])
def test_rows_without_learned_tokens_are_left_out(tmp_path, kind):
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 99, size=int(size)).tolist() for size in generator.integers(1, 30, size=60)]
    masks = [(generator.random(len(document)) < 0.04).tolist() for document in documents]
    found = stored(tmp_path, documents, masks)
    packing = kind(found, length=5, segmented=False)
    assert 0 < packing.num_rows < len(packing._first)
    assert all(row.learned[1:].any() for row in rows_of(packing))
    total = sum(int(np.sum(mask[1:])) for mask in masks)
    learned = sum(int(row.learned[1:].sum()) for row in rows_of(packing))
    assert learned == total if kind is DocumentPacking else total - 5 <= learned <= total


class Numbered:
    """Rows whose tokens are their index."""

    segmented = False

    def __init__(self, count, start):
        self.num_rows, self.start = count, start

    def row(self, index):
        tokens = np.full(3, self.start + index, dtype=np.int64)
        return Row(tokens=tokens, learned=np.ones(3, bool), segment=np.zeros(3, np.int64))


def numbered(count, start=0):
    return Numbered(count, start)


def seen(batches, steps):
    """The rows in the batches of ``steps``."""
    whole = range(batches.rows)
    return [number for step in steps for number in batches.batch(step, whole).tokens[:, 0].tolist()]


def test_every_epoch_reads_every_row_once_in_another_order():
    batches = RowBatches([(numbered(12), 1.0)], rows=4, seed=3)
    first, second = seen(batches, range(3)), seen(batches, range(3, 6))
    assert sorted(first) == sorted(second) == list(range(12)) and first != second
    assert seen(batches, [5, 0]) == second[8:] + first[:4], "a function of the step alone"
    assert seen(RowBatches([(numbered(12), 1.0)], rows=4, seed=4), range(3)) != seen(batches, range(3))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_batch_is_the_same_for_any_number_of_processes(ranks):
    batches = RowBatches([(numbered(30), 1.0), (numbered(9, 100), 2.0)], rows=8, seed=1)
    size = 8 // ranks
    parts = [batches.batch(7, range(rank * size, (rank + 1) * size)) for rank in range(ranks)]
    assert torch.equal(torch.cat([part.tokens for part in parts]), batches.batch(7, range(8)).tokens)


def test_sources_have_their_shares_in_every_period():
    batches = RowBatches([(numbered(50), 3.0), (numbered(2000, 1000), 6.0), (numbered(7, 9000), 1.0)], rows=8, seed=0)
    found = np.asarray(seen(batches, range(3 * PERIOD // 8)))
    for period in np.split(found, 3):
        shares = [np.mean(period < 1000), np.mean((period >= 1000) & (period < 9000)), np.mean(period >= 9000)]
        assert np.allclose(shares, [0.3, 0.6, 0.1], atol=1 / PERIOD)
    counts = np.unique(found[found < 1000], return_counts=True)[1]
    assert len(counts) == 50 and counts.max() - counts.min() <= 1
    counts = np.unique(found[(found >= 1000) & (found < 9000)], return_counts=True)[1]
    assert counts.max() == 1


def test_smallest_share_is_one_row():
    batches = RowBatches([(numbered(5), 1e-9), (numbered(5, 100), 1.0)], rows=PERIOD, seed=0)
    assert sum(token < 100 for token in seen(batches, [0])) == 1
