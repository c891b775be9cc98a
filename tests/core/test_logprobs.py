"""Log-probabilities of chosen tokens: what is looked up, where in a tree, and what each row gets of it."""

import torch

from paceline.core.batch import Batch
from paceline.core.logprobs import gather_logprobs
from paceline.core.noise import Philox
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.scores import Scores
from paceline.core.tree import Outcome, Tree
from paceline.models.base import Output
from tests.drafters.test_none import tiny as no_drafter
from tests.harness import decoder_for, request

VOCAB = 7


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_values_are_log_softmax_of_raw_and_of_processed_scores():
    logits, scores = random(2, 3), random(2, 3, seed=1)
    scores[0, 0, 2:] = -torch.inf
    tokens = torch.tensor([[1, 0, 6], [3, 3, 2]])
    found = gather_logprobs(logits, scores, tokens, 4)
    torch.testing.assert_close(found.raw, logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0])
    torch.testing.assert_close(found.processed, scores.log_softmax(-1).gather(-1, tokens[..., None])[..., 0])
    rows = found.read([4, 2], [3, 1])
    assert [len(row) for row in rows] == [3, 1]
    distribution = logits[0, 1].log_softmax(-1).tolist()
    assert rows[0][1].top_raw == tuple(sorted(enumerate(distribution), key=lambda pair: -pair[1])[:4])
    assert {token for token, _ in rows[0][0].top_processed} == {0, 1}, "what cannot be chosen is not listed"
    assert len(rows[1][0].top_raw) == len(rows[1][0].top_processed) == 2


def test_rows_get_what_they_asked_for_and_no_more():
    found = gather_logprobs(random(4, 2), random(4, 2, seed=1), torch.zeros(4, 2, dtype=torch.int64), VOCAB)
    rows = found.read([None, 0, 3, VOCAB], [2, 2, 0, 1])
    assert [len(row) for row in rows] == [0, 2, 0, 1]
    assert rows[1][0].top_raw == rows[1][1].top_processed == ()
    assert len(rows[3][0].top_raw) == VOCAB


def test_half_precision_is_widened_before_the_softmax():
    logits = random(1, 1, dtype=torch.bfloat16)
    found = gather_logprobs(logits, logits, torch.tensor([[2]]), 1)
    assert found.raw.dtype is torch.float32
    torch.testing.assert_close(found.raw[0, 0], logits.float().log_softmax(-1)[0, 0, 2])


def batch(num_logprobs=2, max_tokens=9):
    made = Batch(rows=2, max_length=20, max_depth=3, vocab_size=VOCAB, noise=Philox(), device=torch.device("cpu"))
    sampling = Sampling(temperature=0.5)
    made.admit(
        [0, 1],
        [
            Request(tokens=[1, 2], max_tokens=max_tokens, sampling=sampling, logprobs=num_logprobs),
            Request(tokens=[4], max_tokens=max_tokens, sampling=sampling),
        ],
    )
    return made


def extended(made, tree, path, count, following, scores=None):
    outcome = Outcome(
        path=torch.tensor(path, dtype=torch.int64), num_committed=torch.tensor(count), next=torch.tensor(following)
    )
    return made.extend(tree, outcome, scores or Scores.of(random(*tree.tokens.shape)))


def test_each_tokens_distribution_is_that_after_the_node_before_it():
    """On a tree that branches: root 0 with children 1 and 2, and 3 below 1; the path is 0, 1, 3."""
    made = batch()
    tree = Tree.make(
        torch.tensor([[2, 5, 6, 3], [4, 1, 1, 1]]),
        torch.tensor([[-1, 0, 0, 1]] * 2),
        torch.ones(2, 4, dtype=torch.bool),
        max_depth=2,
    )
    logits = random(2, 4)
    extended(made, tree, [[1, 3], [-1, -1]], [3, 1], [0, 6], Scores.of(logits))
    rows = made.step_logprobs.read([2, None], [3, 1])
    wanted = [logits[0, 0].log_softmax(-1)[5], logits[0, 1].log_softmax(-1)[3], logits[0, 3].log_softmax(-1)[0]]
    torch.testing.assert_close([one.raw for one in rows[0]], [float(value) for value in wanted])
    processed = [(logits[0, node] / 0.5).log_softmax(-1)[token] for node, token in ((0, 5), (1, 3), (3, 0))]
    torch.testing.assert_close([one.processed for one in rows[0]], [float(value) for value in processed])
    assert rows[1] == []


def test_an_output_cut_by_its_limit_has_the_logprobs_of_the_tokens_left():
    made = batch(max_tokens=2)
    tree = Tree.make_chain(torch.tensor([[2, 5, 3, 6]] * 2), torch.ones(2, 4, dtype=torch.bool))
    logits = random(2, 4)
    outcome = extended(made, tree, [[1, 2, 3]] * 2, [4, 4], [0, 0], Scores.of(logits))
    assert outcome.num_committed.tolist() == [2, 2]
    [row, _] = made.step_logprobs.read([0, None], [2, 2])
    wanted = [float(logits[0, 0].log_softmax(-1)[5]), float(logits[0, 1].log_softmax(-1)[3])]
    torch.testing.assert_close([one.raw for one in row], wanted)


def test_nothing_is_looked_up_where_no_row_asks():
    made = batch(num_logprobs=None)
    tree = Tree.make_chain(torch.tensor([[2], [4]]), torch.ones(2, 1, dtype=torch.bool))
    extended(made, tree, [[], []], [1, 1], [0, 6])
    assert made.step_logprobs is None
    made.admit([0], [Request(tokens=[1], max_tokens=4, logprobs=0)])
    extended(made, tree, [[], []], [1, 1], [0, 6])
    assert made.step_logprobs is not None
    made.release([0])
    extended(made, tree, [[], []], [1, 1], [0, 6])
    assert made.step_logprobs is None


def test_logprobs_are_looked_up_after_the_step_has_decided():
    """They take part in no decision: the step gives the same tokens with and without."""
    plain = decoder_for(no_drafter(None), "coupled")
    asked = decoder_for(no_drafter(None), "coupled")
    plain.admit([request([5, 9], max_tokens=8, temperature=1.0)], [0])
    one = request([5, 9], max_tokens=8, temperature=1.0)
    asked.admit([Request(tokens=one.tokens, max_tokens=8, sampling=one.sampling, logprobs=3)], [0])
    for _ in range(8):
        plain.step(), asked.step()
        assert plain.results().tokens == asked.results().tokens
        assert len(asked.results().logprobs[0]) == 1 and plain.results().logprobs == [[]]


def test_outputs_of_models_are_left_as_they_are():
    logits = random(1, 1)
    output = Output(logits.clone(), {})
    gather_logprobs(output.logits, output.logits, torch.tensor([[0]]), 1)
    assert torch.equal(output.logits, logits)


def test_more_likeliest_tokens_than_the_vocabulary_has_are_those_it_has():
    logits = random(1, 2)
    found = gather_logprobs(logits, logits, torch.tensor([[0, 1]]), 20)
    [row] = found.read([20], [2])
    for at, one in enumerate(row):
        assert [token for token, _ in one.top_raw] == logits[0, at].argsort(descending=True).tolist()
        assert len(one.top_raw) == logits.shape[-1]
