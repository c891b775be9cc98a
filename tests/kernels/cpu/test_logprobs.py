"""Log-probabilities by the kernel are those of plain operations, for every row that asks and no other."""

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.ops import TensorOps
from paceline.core.request import Processing, Request
from paceline.core.sampling import FilterOrder, Sampling
from paceline.core.scores import Scores
from paceline.core.tree import Outcome, Tree
from paceline.kernels.cpu.ops import CpuOps

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
PENALTIES = Processing(repetition_penalty=1.5, bias=(((3,), -float("inf")), ((4,), 2.0)))
ROWS = (  # sampling, processing, how many of the likeliest
    (Sampling(), Processing(), 3),
    (Sampling(temperature=0.7), Processing(), 0),
    (Sampling(temperature=1.0), PENALTIES, 7),
    (Sampling(temperature=1.3, top_p=0.8, min_p=0.01), Processing(), 5),
    (Sampling(temperature=1.3, top_k=2), PENALTIES, 5),
    (Sampling(temperature=1.3), Processing(), None),
    (Sampling(temperature=0.9, typical_p=0.5, eta_cutoff=0.01), PENALTIES, 4),
    (Sampling(temperature=0.9, top_p=0.5, min_p=0.2, order=FilterOrder.VLLM), Processing(), 2),
    (Sampling(), PENALTIES, 20_000),
)
SHAPES = {"root": (-1,), "chain": (-1, 0, 1, 2), "branches": (-1, 0, 0, 1, 2, 2)}


def decided(ops, shape, logits):
    """What a batch by ``ops`` records of a step that accepts as much as it can; rows end at different places."""
    vocab = logits.shape[-1]
    batch = Batch(rows=len(ROWS), max_length=30, max_depth=4, vocab_size=vocab, ops=ops, device=CPU)
    requests = [
        Request(
            tokens=[1, 2, 4],
            max_tokens=1 + row % 5,
            sampling=sampling,
            processing=processing,
            logprobs=None if asked is None else asked,
        )
        for row, (sampling, processing, asked) in enumerate(ROWS)
    ]
    batch.admit(range(len(ROWS)), requests)
    parents = SHAPES[shape]
    tokens = torch.randint(0, 6, (len(ROWS), len(parents)), generator=torch.Generator().manual_seed(1))
    valid = torch.ones_like(tokens, dtype=torch.bool)
    paths = {"root": [], "chain": [1, 2, 3], "branches": [2, 4]}
    tree = Tree.make(tokens, torch.tensor(parents).expand_as(tokens), valid, max_depth=len(paths[shape]))
    outcome = Outcome(
        path=torch.tensor(paths[shape], dtype=torch.int64).expand(len(ROWS), -1),
        num_committed=torch.full((len(ROWS),), len(paths[shape]) + 1),
        next=torch.full((len(ROWS),), 5),
    )
    processed = batch.process_tree(logits, tree)
    ended = batch.extend(tree, outcome, Scores(logits=processed, raw_logits=logits))
    return batch.step_logprobs.read(batch.num_logprobs, ended.num_committed.tolist())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("vocab", [9, 300, 5000])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logprobs_match_torch(dtype, shape, vocab):
    generator = torch.Generator().manual_seed(vocab)
    logits = (2 * torch.randn(len(ROWS), len(SHAPES[shape]), vocab, generator=generator, dtype=torch.float64)).to(dtype)
    logits = logits + torch.arange(vocab).to(dtype) * (0 if dtype is torch.bfloat16 else 1e-5)  # no ties
    wanted, got = decided(TensorOps(), shape, logits), decided(CpuOps(), shape, logits)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype is not torch.float64 else {"rtol": 1e-12, "atol": 1e-12}
    for (_, _, asked), plain, ours in zip(ROWS, wanted, got, strict=True):
        assert len(plain) == len(ours) and (asked is not None or not ours)
        for one, two in zip(plain, ours, strict=True):
            torch.testing.assert_close([two.raw, two.processed], [one.raw, one.processed], **close)
            for tops, others in ((one.top_raw, two.top_raw), (one.top_processed, two.top_processed)):
                assert len(tops) == len(others)
                torch.testing.assert_close([value for _, value in others], [value for _, value in tops], **close)
                if dtype is torch.float64:
                    assert [token for token, _ in others] == [token for token, _ in tops]


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_threads(threads):
    logits = torch.randn(len(ROWS), 4, 9000, generator=torch.Generator().manual_seed(2))
    wanted = decided(CpuOps(), "chain", logits)
    torch.set_num_threads(threads)
    try:
        assert decided(CpuOps(), "chain", logits) == wanted
    finally:
        torch.set_num_threads(1)


def test_tied_logprobs_are_ordered_by_token_id():
    logits = torch.zeros(len(ROWS), 1, 1200)
    logits[..., [700, 30, 1100]] = 2.0
    top = decided(CpuOps(), "root", logits)[3][0]
    assert [token for token, _ in top.top_raw] == [30, 700, 1100, 0, 1]


def test_nonfinite_logits_give_nan_logprobs():
    logits = torch.zeros(len(ROWS), 1, 50)
    logits[..., 7] = torch.nan
    one = decided(CpuOps(), "root", logits)[2][0]
    assert one.raw != one.raw and one.top_raw == ()
