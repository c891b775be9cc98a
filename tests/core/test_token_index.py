"""The index by the kernel library finds and drafts what the plain one does, in constant time and little memory."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.token_index import MAX_OCCURRENCES, PlainTokenIndex, SuffixOptions, draft_from_plain
from paceline.kernels.cpu.token_index import KernelSuffixDrafts, KernelTokenIndex

K = 12
tokens = st.integers(0, 3)
sequences = st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=12)
options = st.builds(
    SuffixOptions,
    min_match=st.integers(1, 5),
    max_match=st.sampled_from([5, 6, 64]),
    factor=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    offset=st.sampled_from([0.0, 1.0, 5.0]),
    min_prob=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    branches=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(sequences=sequences, kept=sequences, options=options, limit=st.integers(5, 80))
def test_kernel_drafts_what_the_plain_index_drafts(sequences, kept, options, limit):
    drafts = KernelSuffixDrafts(rows=1, width=K, options=options)
    plain, kernel = (PlainTokenIndex(), PlainTokenIndex()), (KernelTokenIndex(), KernelTokenIndex())
    for output in kept:
        for _, store in (plain, kernel):
            store.append(output)
            store.end_sequence()
            store.keep(limit)
    assert plain[1].size == kernel[1].size <= max(limit, 0)
    for added in sequences:
        plain[0].append(added)
        wanted = draft_from_plain(*plain, most=K, options=options)
        [found] = drafts.draft([kernel[0]], [kernel[1]], [added], [K])
        assert replace(found, probs=()) == replace(wanted, probs=())
        assert found.probs == pytest.approx(wanted.probs)
        assert found.score == pytest.approx(wanted.score)


@settings(max_examples=200, deadline=None)
@given(sequences=sequences, context=st.lists(tokens, max_size=9), limit=st.integers(1, MAX_OCCURRENCES))
def test_kernel_finds_what_the_plain_index_finds(sequences, context, limit):
    plain, kernel = PlainTokenIndex(), KernelTokenIndex()
    for index in (plain, kernel):
        for sequence in sequences:
            index.append(sequence)
            index.end_sequence()
    for least in (1, 3, 6):
        wanted = plain.find(context, min_match=least, max_match=8, limit=limit)
        assert kernel.find(context, min_match=least, max_match=8, limit=limit) == wanted


def test_memory_for_each_token():
    index = KernelTokenIndex()
    for start in range(0, 100_000, 500):
        index.append([(start + at) * 7919 % 30011 for at in range(500)])
        index.end_sequence()
    assert index.bytes < 50 * index.size
    index.keep(10_000)
    for _ in range(100):  # what is forgotten gives its memory to what comes
        index.append(range(500))
        index.end_sequence()
        index.keep(10_000)
    assert index.bytes < 50 * 100_200 and index.size <= 10_000
