"""The index by the kernel library finds and drafts what the plain one does, in constant time and little memory."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import token_index
from paceline.core.token_index import LONG, MAX_OCCURRENCES, PlainTokenIndex, SuffixOptions, draft_from_plain
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
    max_depth=st.sampled_from([None, 6, 7, 12, 100]),
)


@settings(max_examples=300, deadline=None)
@given(
    sequences=sequences,
    kept=sequences,
    options=options,
    limit=st.integers(5, 80),
    most=st.none() | st.integers(1, 9),
)
def test_kernel_drafts_what_the_plain_index_drafts(sequences, kept, options, limit, most):
    drafts = KernelSuffixDrafts(rows=1, width=K, options=options)
    plain, kernel = (PlainTokenIndex(), PlainTokenIndex()), (KernelTokenIndex(), KernelTokenIndex())
    for output in kept:
        for _, store in (plain, kernel):
            store.append(output)
            store.end_sequence()
            store.keep(limit, most)
        assert plain[1].size == kernel[1].size
    assert plain[1].size == kernel[1].size <= max(limit, 0)
    for added in sequences:
        plain[0].append(added)
        wanted = draft_from_plain(*plain, most=K, options=options)
        [found] = drafts.draft([kernel[0]], [kernel[1]], [added], [K])
        assert replace(found, probs=()) == replace(wanted, probs=())
        assert found.probs == pytest.approx(wanted.probs)
        assert found.score == pytest.approx(wanted.score)


def draft_of_a_tree(outputs, context, options):
    """Of a suffix tree of depth ``options.max_depth`` the path that promises most, and how much: of every length of
    match, as many tokens as that length and the depth allow, each the one that most often comes next.
    """
    best = 0.0
    latest_first = [(output, end) for output in reversed(outputs) for end in range(len(output), 0, -1)]
    for size in range(options.min_match, min(len(context) + 1, options.max_depth)):
        members = [
            (output, end) for output, end in latest_first if end >= size and output[end - size : end] == context[-size:]
        ]
        room = min(K, int(options.factor * size + options.offset + 1e-9), options.max_depth - size)
        prob, score = 1.0, 0.0
        for _ in range(room):
            counts = Counter(output[end] for output, end in members if end < len(output))
            if not counts:
                break
            [(token, count)] = counts.most_common(1)
            prob *= count / len(members)
            if prob < options.min_prob:
                break
            members = [(output, end + 1) for output, end in members if end < len(output) and output[end] == token]
            score += prob
        best = max(best, score)
    return best


@settings(max_examples=300, deadline=None)
@given(
    outputs=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=2),
    context=st.lists(st.integers(0, 1), min_size=4, max_size=20),
    depth=st.integers(5, 20),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    min_prob=st.sampled_from([0.1, 0.5]),
)
def test_a_depth_limits_drafts_as_that_of_a_suffix_tree(outputs, context, depth, factor, min_prob):
    options = SuffixOptions(min_match=LONG, max_match=depth - 1, factor=factor, min_prob=min_prob, max_depth=depth)
    store = PlainTokenIndex()
    for output in outputs:
        store.append(output)
        store.end_sequence()
    found = token_index._best_draft(store, context[-options.max_match :], False, K, options)
    assert found.score == pytest.approx(draft_of_a_tree(outputs, context, options))
    assert len(found.tokens) + options.min_match <= depth


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
