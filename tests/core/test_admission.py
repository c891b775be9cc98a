"""Rows that begin anew: what the host knows of it, what the cache copies, and which tokens wait for min_tokens."""

import pytest
import torch

from paceline.core.admission import Admission, Prefix
from paceline.core.batch import Batch, Finish
from paceline.core.cache import SlotCache
from paceline.core.noise import Philox
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.scores import Scores
from paceline.core.tree import Outcome, Tree

CPU = torch.device("cpu")


def admission(rows, prefixes, lengths):
    return Admission(
        rows=rows,
        requests=[Request(tokens=[0] * length, max_tokens=1) for length in lengths],
        prefixes=[Prefix(row=row, length=n) for row, n in prefixes],
        device=CPU,
    )


BOUNDS = {
    # rows, prefixes, lengths -> longest forked, whether anything moves, unread at most
    "nothing shared": (([2, 0], [(2, 0), (0, 0)], [5, 9]), (0, False, 8)),
    "own past": (([1], [(1, 4)], [6]), (4, False, 1)),
    "another row": (([1], [(0, 4)], [5]), (4, True, 0)),
    "one of two": (([1, 2], [(1, 0), (0, 7)], [4, 9]), (7, True, 3)),
    "an empty prefix of another row": (([1], [(0, 0)], [3]), (0, False, 2)),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_bounds_are_known_on_the_host(case):
    given, wanted = BOUNDS[case]
    made = admission(*given)
    assert (made.max_prefix_length, made.moves, made.unread) == wanted
    assert made.known.tolist() == [length - 1 for length in given[2]]


def numbered(rows=4, capacity=6, layers=2):
    """Every slot has a value that says where it was, keys and values apart."""
    cache = SlotCache(
        num_layers=layers, rows=rows, capacity=capacity, num_kv_heads=1, head_dim=1, dtype=torch.float64, device=CPU
    )
    layer, row, slot = torch.meshgrid(
        torch.arange(layers), torch.arange(rows + 1), torch.arange(capacity), indexing="ij"
    )
    cache.keys.copy_((100 * layer + 10 * row + slot)[..., None, None])
    cache.values.copy_(-cache.keys)
    cache.length.copy_(torch.arange(1, rows + 1))
    return cache


def begin(cache, rows, prefixes):
    """Rows begin with prefixes; the slots, as they were and as they are, without the row that nobody reads."""
    before = cache.keys.clone()
    made = admission(rows, prefixes, [9] * len(rows))
    view = cache.begin(made)
    assert torch.equal(cache.values, -cache.keys), "values go where keys go"
    assert view.length.tolist() == made.prefix_length.tolist()
    return before, cache.keys


def test_forked_slots_are_the_sources_own_in_every_layer():
    before, after = begin(numbered(), [3, 0], [(2, 3), (1, 2)])
    for layer in range(2):
        assert torch.equal(after[layer, 3, :3], before[layer, 2, :3])
        assert torch.equal(after[layer, 0, :2], before[layer, 1, :2])


def test_rows_that_are_not_admitted_keep_everything():
    cache = numbered()
    before, after = begin(cache, [3, 0], [(2, 3), (1, 2)])
    assert torch.equal(after[:, 1:3], before[:, 1:3])
    assert cache.length.tolist() == [2, 2, 3, 3]


def test_rows_may_be_exchanged():
    before, after = begin(numbered(), [0, 1, 2], [(1, 2), (2, 3), (0, 1)])
    for row, (source, length) in enumerate([(1, 2), (2, 3), (0, 1)]):
        assert torch.equal(after[:, row, :length], before[:, source, :length])


def test_a_rows_own_past_is_not_touched():
    cache = numbered()
    before, after = begin(cache, [2, 1], [(2, 2), (1, 0)])
    assert torch.equal(after, before)
    assert cache.length.tolist() == [1, 0, 2, 4]


def test_a_prefix_longer_than_the_capacity_copies_what_there_is():
    """A draft model's cache may be shorter than the target's, whose prefix is asked for."""
    cache = numbered()
    cache.length[0] = 4
    before = cache.keys.clone()
    view = cache.begin(admission([3], [(0, 50)], [60]))
    assert torch.equal(cache.keys[:, 3], before[:, 0]) and view.length.tolist() == [4]


def batch(*requests, rows=None):
    made = Batch(rows=rows or len(requests), max_length=30, max_depth=3, vocab_size=9, noise=Philox(), device=CPU)
    made.admit(range(len(requests)), requests)
    return made


def after(rows, counts):
    """Nodes behind these numbers of drafted tokens, all of them token 1, in every row."""
    drafted = torch.where(torch.arange(max(counts)) < torch.tensor(counts)[:, None], 1, -1)
    return drafted.expand(rows, -1, -1)


def banned(made, counts, vocab=9):
    """Tokens of each row that are banned after each of these numbers of drafted tokens."""
    allowed = made.process(torch.zeros(made.rows, len(counts), vocab), after(made.rows, counts))
    return [
        [(allowed[row, at] == -torch.inf).nonzero()[:, 0].tolist() for at in range(len(counts))]
        for row in range(made.rows)
    ]


def test_stop_tokens_wait_for_min_tokens_and_no_longer():
    made = batch(
        Request(tokens=[1, 2, 3], max_tokens=9, min_tokens=2, stop_tokens=[4, 7]),
        Request(tokens=[1], max_tokens=9, min_tokens=5, stop_tokens=[0]),
        Request(tokens=[1], max_tokens=9, stop_tokens=[5]),
        Request(tokens=[1], max_tokens=9, min_tokens=9),
    )
    found = banned(made, [0, 1, 2, 4, 5])
    assert found[0] == [[4, 7], [4, 7], [], [], []], "two tokens come first"
    assert found[1] == [[0], [0], [0], [0], []]
    assert found[2] == found[3] == [[]] * 5


def test_stop_tokens_beyond_the_vocabulary_ban_nothing():
    made = batch(Request(tokens=[1], max_tokens=9, min_tokens=3, stop_tokens=[9, 500, 8]))
    assert banned(made, [0]) == [[[8]]]


def test_a_row_of_its_own_max_tokens_counts_from_its_own_prompt_after_reuse():
    made = batch(Request(tokens=[1] * 9, max_tokens=9, min_tokens=6, stop_tokens=[4]), rows=1)
    made.admit([0], [Request(tokens=[2, 2], max_tokens=3, min_tokens=1, stop_tokens=[5])])
    assert banned(made, [0, 1, 2]) == [[[5], [], []]]
    made.admit([0], [Request(tokens=[2, 2], max_tokens=3, stop_tokens=[5])])
    logits = torch.zeros(1, 1, 9)
    assert made.process(logits, after(1, [0])) is logits, "no work where nobody asks"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_picks_and_scores_never_name_a_banned_token(temperature):
    sampling = Sampling(temperature=temperature)
    made = batch(Request(tokens=[1], max_tokens=9, min_tokens=2, stop_tokens=[3], sampling=sampling))
    logits = torch.full((1, 3, 9), -50.0, dtype=torch.float64)
    logits[..., 3] = 50.0
    logits, position = made.process(logits, after(1, [0, 1, 2])), torch.tensor([[1, 2, 3]])
    assert (made.pick(logits, position) == 3).tolist() == [[False, False, True]]
    assert (made.warp(logits).softmax(-1)[..., 3] > 0).tolist() == [[False, False, True]]


def test_a_released_row_outputs_nothing_until_it_is_given_away():
    made = batch(Request(tokens=[1, 2], max_tokens=9), Request(tokens=[3], max_tokens=9))
    made.release([0])
    tree = Tree.make_chain(made.root[:, None], made.active[:, None])
    outcome = Outcome(
        path=torch.zeros(2, 0, dtype=torch.int64), num_committed=torch.tensor([1, 1]), next=torch.tensor([5, 6])
    )
    assert made.extend(tree, outcome, Scores.of(torch.zeros(2, 1, 9))).num_committed.tolist() == [0, 1]
    assert made.length.tolist() == [2, 2] and made.finish.tolist() == [Finish.RUNNING] * 2
    assert made.requests[0] is None


REFUSED = {
    "more than max_tokens": (dict(max_tokens=4, min_tokens=5), "min_tokens=5: give a count from 0 to max_tokens=4"),
    "negative": (dict(max_tokens=4, min_tokens=-1), "min_tokens=-1: give a count from 0 to max_tokens=4"),
    "negative logprobs": (dict(max_tokens=4, logprobs=-1), "logprobs=-1: give 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_requests_out_of_range_are_refused(case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        Request(tokens=[1], **options)
