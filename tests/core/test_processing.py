"""Processors at every node with its own path, against the naive reference; what rows share and what they do not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.batch import Batch
from paceline.core.noise import Philox
from paceline.core.processing import PathTokens, ProcessingState
from paceline.core.request import Processing, Request
from paceline.core.tree import Tree
from tests import options, reference
from tests.drafters.test_ngram import guessable_target
from tests.drafters.test_ngram import tiny as ngram
from tests.harness import decoder_for, request

VOCAB = 7
CPU = torch.device("cpu")
NEVER = -float("inf")

rows_of = st.lists(
    st.tuples(
        options.processing(VOCAB),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),  # prompt
        st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=3), max_size=3),  # what each step added
    ),
    min_size=1,
    max_size=3,
)


def random_logits(*shape, seed=0, dtype=torch.float64):
    return 3 * torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def padded(lists, width=None, fill=-1):
    width = max(map(len, lists), default=0) if width is None else width
    return torch.tensor([[*one, *[fill] * (width - len(one))] for one in lists], dtype=torch.int64).view(-1, width)


def sequence_of(sequences, drafted):
    """Sequences of the rows and what is drafted after them, lists [R][n] of tokens."""
    return PathTokens(
        padded(sequences, max(map(len, sequences)) + 2, 0),
        torch.tensor([len(sequence) for sequence in sequences]),
        torch.stack([padded(nodes, 3) for nodes in drafted]),
    )


def grown(state, rows):
    """Give ``state`` the rows' options and take their steps into the history, those of other rows beside them."""
    state.assign(range(len(rows)), [Processing(**asked) for asked, _, _ in rows], [prompt for _, prompt, _ in rows])
    for step in range(3):
        added = [steps[step] if step < len(steps) else [] for _, _, steps in rows]
        width = [[True] * len(tokens) + [False] * (3 - len(tokens)) for tokens in added]
        state.count(padded(added, 3, 2), torch.tensor(width))  # what is not real is a token too
    return [[token for step in steps for token in step] for _, _, steps in rows]


def close(found, wanted):
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-12)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rows=rows_of, drafted=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=3), min_size=3, max_size=9))
def test_every_node_has_the_references_scores(rows, drafted):
    state = ProcessingState(rows=len(rows), vocab_size=VOCAB, device=CPU)
    new = grown(state, rows)
    nodes = [drafted[row::3][: len(drafted) // 3] for row in range(len(rows))]
    sequences = [[*prompt, *own] for (_, prompt, _), own in zip(rows, new, strict=True)]
    logits = random_logits(len(rows), len(drafted) // 3)
    if not state.any:
        return
    found = state.apply(logits, sequence_of(sequences, nodes))
    for row, (asked, prompt, _) in enumerate(rows):
        for node, path in enumerate(nodes[row]):
            wanted = reference.process(logits[row, node].numpy(), prompt, [*new[row], *path], **asked)
            close(found[row, node], wanted)


def batch_of(requests):
    made = Batch(rows=len(requests), max_length=30, max_depth=3, vocab_size=VOCAB, noise=Philox(), device=CPU)
    made.admit(range(len(requests)), requests)
    return made


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    given=st.lists(options.processing(VOCAB), min_size=2, max_size=2),
    tokens=st.lists(st.integers(0, VOCAB - 1), min_size=14, max_size=14),
    prompts=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), min_size=2, max_size=2),
    chain=st.booleans(),
)
def test_nodes_of_a_tree_see_their_own_path_and_no_sibling(given, tokens, prompts, chain):
    batch = batch_of([request(p, max_tokens=9, processing=one) for p, one in zip(prompts, given, strict=True)])
    tokens = torch.tensor(tokens).view(2, 7)
    tokens[:, 0] = batch.root
    parents = [-1, 0, 1, 2] if chain else [-1, 0, 0, 1, 1, 2, 4]
    tokens = tokens[:, : len(parents)]
    valid = torch.ones_like(tokens, dtype=torch.bool)
    known = torch.tensor(parents).expand(2, -1)
    tree = Tree.make_chain(tokens, valid) if chain else Tree.make(tokens, known, valid, max_depth=3)
    logits = random_logits(2, len(parents))
    found = batch.process_tree(logits, tree)
    for row in range(2):
        for node in range(len(parents)):
            path, at = [], node
            while at:
                path, at = [int(tokens[row, at]), *path], parents[at]
            close(found[row, node], reference.process(logits[row, node].numpy(), prompts[row], path, **given[row]))


def ours(scores, sequence, num_prompt, **given):
    """``scores`` [1, V] after one row's processors."""
    state = ProcessingState(rows=1, vocab_size=VOCAB, device=CPU)
    state.assign([0], [Processing(**given)], [sequence[:num_prompt]])
    state.count(torch.tensor([sequence[num_prompt:]]), torch.ones(1, len(sequence) - num_prompt, dtype=torch.bool))
    return state.apply(scores[:, None], sequence_of([sequence], [[[]]]))[:, 0]


SEQUENCES = ([1, 2, 5, 1], [2, 1, 4, 2, 1], [3, 3, 3, 3])
HEAVY = dict(
    bias=(((3,), -2.0), ((1, 2), 3.0), ((2, 1, 4), NEVER), ((5, 1, 0), 1.0)),
    allowed=(0, 1, 2, 3, 4),
    repetition_penalty=1.5,
    frequency_penalty=0.5,
    presence_penalty=0.25,
    no_repeat_ngram=2,
    late=((4, 3), (2, 9)),
)
LIGHT = {
    "bias": dict(bias=(((3,), -2.0),)),
    "sequence": dict(bias=(((1, 2), 3.0),)),
    "allowed": dict(allowed=(1, 4, 5)),
    "repetition": dict(repetition_penalty=1.5),
    "frequency": dict(frequency_penalty=0.5),
    "presence": dict(presence_penalty=0.25),
    "bigrams": dict(no_repeat_ngram=2),
    "late": dict(late=((4, 3),)),
    "nothing": {},
}


def row_of(state, row, given):
    """What processing makes of one row with sequence, prompt and path."""
    logits = random_logits(3, 2)
    found = state.apply(logits, sequence_of(SEQUENCES, [[[], [1, 2]]] * 3))[row]
    for node, path in enumerate(([], [1, 2])):
        close(found[node], reference.process(logits[row, node].numpy(), SEQUENCES[row], path, **given))
    return found


@pytest.mark.parametrize("name", LIGHT)
def test_what_a_row_asks_for_later_leaves_running_rows_as_they_are(name):
    """Tensors are made, widened and lengthened under them."""
    state = ProcessingState(rows=3, vocab_size=VOCAB, device=CPU)
    state.assign([1], [Processing(**LIGHT[name])], [SEQUENCES[1]])
    before = row_of(state, 1, LIGHT[name])
    for row, bias in ((0, HEAVY["bias"]), (2, (*HEAVY["bias"], *(((1,) * n + (2,), 0.5) for n in range(1, 9))))):
        state.assign([row], [Processing(**{**HEAVY, "bias": bias, "late": ((1, 1),) * len(bias)})], [SEQUENCES[row]])
        assert torch.equal(row_of(state, 1, LIGHT[name]), before)


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("released", [True, False])
def test_a_slot_keeps_nothing_of_its_former_output(name, released):
    state = ProcessingState(rows=3, vocab_size=VOCAB, device=CPU)
    state.assign(range(3), [Processing(**HEAVY)] * 3, SEQUENCES)
    state.count(torch.full((3, 2), 5), torch.ones(3, 2, dtype=torch.bool))
    if released:
        state.release([1])
    state.assign([1], [Processing(**LIGHT[name])], [SEQUENCES[1]])
    row_of(state, 1, LIGHT[name])


def test_released_rows_ask_for_nothing():
    state = ProcessingState(rows=2, vocab_size=VOCAB, device=CPU)
    assert not state.any
    state.assign([1], [Processing(**HEAVY)], [SEQUENCES[1]])
    assert state.any
    flags = state.flags
    state.release([1])
    assert not state.any and state.flags != flags


def test_tokens_beyond_the_vocabulary_do_nothing():
    given = dict(
        bias=(((VOCAB,), 3.0), ((VOCAB + 5, 1), 3.0), ((1, VOCAB), NEVER)), late=((VOCAB, 4),), allowed=(0, VOCAB)
    )
    scores = random_logits(1)
    found = ours(scores, [2, 1], 1, **given)
    assert found[0, 0] == scores[0, 0] and bool((found[0, 1:] == NEVER).all())


@pytest.mark.parametrize("given", [dict(allowed=(VOCAB,)), dict(bias=tuple(((t,), NEVER) for t in range(VOCAB)))])
def test_token_0_is_certain_where_none_is_left(given):
    found = ours(random_logits(1), [2, 1], 1, **given)
    assert found[0].tolist() == [0.0] + [NEVER] * (VOCAB - 1)


def test_without_processors_logits_stay_the_same_tensor():
    batch = batch_of([request([1, 2]), request([3], temperature=1.0)])
    logits = random_logits(2, 1, dtype=torch.bfloat16)
    assert batch.process(logits, torch.full((2, 1, 0), -1)) is logits


@pytest.mark.parametrize("name", [name for name in LIGHT if name != "nothing"])
def test_rows_without_processors_keep_their_logits_beside_rows_with_them(name):
    batch = batch_of([request([1, 2]), request([1, 2, 1], processing=LIGHT[name]), request([6], temperature=1.0)])
    logits = random_logits(3, 2)
    found = batch.process(logits, torch.tensor([[[-1, -1], [1, 2]]] * 3))
    assert torch.equal(found[[0, 2]], logits[[0, 2]]) and not torch.equal(found[1], logits[1])


def test_half_precision_is_widened():
    batch = batch_of([request([1, 2], processing=LIGHT["repetition"])])
    logits = random_logits(1, 1, dtype=torch.bfloat16)
    found = batch.process(logits, torch.full((1, 1, 0), -1))
    assert found.dtype is torch.float32
    exact = reference.process(logits[0, 0].double().numpy(), [1, 2], [], **LIGHT["repetition"])
    np.testing.assert_allclose(found[0, 0].numpy(), exact, rtol=1e-6)


def test_stop_tokens_wait_for_their_minimum_beside_what_waits_anyway():
    asked = Request(
        tokens=[1], max_tokens=9, stop_tokens=[4, 2], min_tokens=3, processing=Processing(late=((0, 1), (2, 5)))
    )
    assert asked.processors.late == ((0, 1), (2, 5), (4, 3), (2, 3))
    assert Request(tokens=[1], max_tokens=9, stop_tokens=[4]).processors == Processing()


def test_history_holds_what_was_committed_and_nothing_else():
    """Through steps that accept, refuse and clip drafts, in rows that end and are given to other sequences."""
    _, target = guessable_target()
    counted = dict(frequency_penalty=0.05)
    asked = [
        request([5, 9, 5, 9, 5], max_tokens=20, processing=counted),
        request([8] * 4, max_tokens=9, processing=counted),
        request([3, 1, 4, 1], max_tokens=17, processing=counted, stop_tokens=list(range(0, 16))[:8]),
    ]
    decoder = decoder_for(ngram(target), "coupled", target=target, k=3, rows=3)
    decoder.admit(asked, range(3))
    batch, queue, lengths = decoder.batch, list(asked), set()
    held = dict(enumerate(asked))
    while held:
        decoder.step()
        report = decoder.results()
        lengths |= set(report.num_accepted)
        for row, now in list(held.items()):
            new = batch.tokens[row, len(now.tokens) : batch.length[row]]
            counts = batch.processing.counts[row, :-1].tolist()
            assert counts == torch.bincount(new, minlength=target.vocab_size).tolist()
            seen = batch.processing.in_prompt[row, :-1].nonzero()[:, 0].tolist()
            assert seen == sorted(set(now.tokens))
            if not batch.active[row]:
                del held[row]
                if queue:
                    held[row] = queue.pop()
                    decoder.admit([held[row]], [row])
    assert {0, 3} < lengths, "drafts are refused, kept in part and whole"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (dict(repetition_penalty=0.0), "repetition_penalty=0.0"),
        (dict(repetition_penalty=float("inf")), "repetition_penalty=inf"),
        (dict(repetition_penalty=float("nan")), "repetition_penalty=nan"),
        (dict(frequency_penalty=float("nan")), "frequency_penalty=nan"),
        (dict(presence_penalty=float("inf")), "presence_penalty=inf"),
        (dict(no_repeat_ngram=-1), "no_repeat_ngram=-1"),
        (dict(bias=(((), 1.0),)), r"bias of \[\]"),
        (dict(bias=(((1, -1), 1.0),)), r"bias of \[1, -1\]"),
        (dict(bias=(((1,), float("inf")),)), r"bias of \[1\]: inf"),
        (dict(bias=(((1,), float("nan")),)), r"bias of \[1\]: nan"),
        (dict(allowed=()), r"allowed=\[\]"),
        (dict(allowed=(2, -3)), r"allowed=\[2, -3\]"),
        (dict(late=((-1, 2),)), "late="),
        (dict(late=((1, -2),)), "late="),
    ],
)
def test_values_out_of_range_are_refused_by_name(given, named):
    with pytest.raises(ValueError, match=named):
        Processing(**given)
