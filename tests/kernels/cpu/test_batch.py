"""The kernel ends steps as plain operations do, whatever was drafted and decided."""

from dataclasses import replace

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.noise import Philox
from paceline.core.ops import TensorOps
from paceline.core.request import Processing, Request
from paceline.core.sampling import Sampling
from paceline.core.scores import Scores
from paceline.core.stats import Stats
from paceline.core.tree import NoDraft, Outcome, Tree
from paceline.engine.runner import ops_for
from paceline.kernels.cpu.compile import KernelError
from paceline.kernels.cpu.ops import CpuOps

CPU = torch.device("cpu")
ROWS, VOCAB, LENGTH, DEPTH = 7, 5, 24, 4
BATCH = ("tokens", "length", "limit", "steps", "finish", "active", "report")
COUNTERS = ("steps", "emitted", "drafted", "accepted")
SHAPES = {
    "root": (-1,),
    "chain": (-1, 0, 1, 2),
    "siblings": (-1, 0, 0, 1, 1, 2),
    "late": (-1, 0, 1, 1, 3, 3),
}


def batches(generator):
    """The same texts twice: rows that stop, that are near their limit, that do not draft, that are idle."""
    requests = [
        Request(
            tokens=[1] * int(torch.randint(1, 6, (), generator=generator)),
            max_tokens=int(torch.randint(1, 12, (), generator=generator)),
            sampling=Sampling(seed=row),
            stop_tokens=[3] if row % 2 else [],
            num_draft_tokens=0 if row == 4 else None,
            processing=Processing(presence_penalty=0.1) if row % 3 else Processing(),
        )
        for row in range(ROWS)
    ]
    made = []
    for ops in (TensorOps(), CpuOps()):
        batch = Batch(
            rows=ROWS, max_length=LENGTH, max_depth=DEPTH, vocab_size=VOCAB, noise=Philox(), ops=ops, device=CPU
        )
        batch.admit(range(ROWS), requests)
        batch.release([5])
        made.append(batch)
    return made


def decision(shape, batch, generator):
    """A draft of random tokens, some of it not valid, and an outcome that keeps a random path of it."""
    nodes = len(SHAPES[shape])
    parents = torch.tensor(SHAPES[shape]).expand(ROWS, nodes)
    tokens = torch.randint(0, VOCAB, (ROWS, nodes), generator=generator)
    valid = torch.rand(ROWS, nodes, generator=generator) < 0.8
    valid[:, 0] = batch.active
    for node in range(1, nodes):
        valid[:, node] &= valid[:, SHAPES[shape][node]]
    tree = Tree.make(tokens, parents, valid, max_depth=max(depths(shape)), origin=1, no_draft_reason=NoDraft.NO_MATCH)
    leaf = [int(torch.randint(0, nodes, (), generator=generator)) for _ in range(ROWS)]
    paths = [path_to(shape, at) for at in leaf]
    width = tree.max_depth
    path = torch.tensor([[*path, *[-1] * (width - len(path))] for path in paths], dtype=torch.int64).reshape(
        ROWS, width
    )
    num = torch.tensor([len(path) + 1 for path in paths])
    return tree, Outcome(path=path, num_committed=num, next=torch.randint(0, VOCAB, (ROWS,), generator=generator))


def depths(shape):
    return [len(path_to(shape, node)) for node in range(len(SHAPES[shape]))]


def odd_scores(tree, generator):
    """Logits of a few tokens, of which some are not finite."""
    logits = torch.randn(ROWS, tree.num_nodes, 3, generator=generator)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])[torch.randint(3, logits.shape, generator=generator)]
    return Scores.of(torch.where(torch.rand(logits.shape, generator=generator) < 0.05, odd, logits))


def path_to(shape, node):
    return [] if node == 0 else [*path_to(shape, SHAPES[shape][node]), node]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", SHAPES)
def test_extend_matches_torch_sequences_reports_and_counts(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    plain, ours = batches(generator)
    counts = [Stats(ROWS, DEPTH, CPU, ops) for ops in (TensorOps(), CpuOps())]
    for _ in range(5):
        tree, outcome = decision(shape, plain, generator)
        for batch in (plain, ours):
            batch.early_stop.notes.copy_(torch.arange(ROWS) + 1)
        scores = odd_scores(tree, generator)
        ends = [batch.extend(tree, outcome, scores) for batch in (plain, ours)]
        assert torch.equal(plain.failed, ours.failed)
        assert torch.equal(ends[0].num_committed, ends[1].num_committed)
        for name in BATCH:
            one, other = getattr(plain, name), getattr(ours, name)
            if name == "tokens":  # the last column takes what must change nothing
                one, other = one[:, :-1], other[:, :-1]
            assert torch.equal(one, other), name
        assert ours.report[:, 6].tolist() == [*range(1, ROWS + 1)]
        assert not plain.early_stop.notes.any() and not ours.early_stop.notes.any(), "notes that are reported twice"
        assert torch.equal(plain.processing.counts[:, :-1], ours.processing.counts[:, :-1])
        for stats, end in zip(counts, ends, strict=True):
            stats.record(tree, end)
        for name in COUNTERS:
            assert torch.equal(getattr(counts[0], name), getattr(counts[1], name)), name


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_match_finds_the_path_that_torch_finds(shape, chain):
    generator = torch.Generator().manual_seed(len(shape))
    plain, ours = batches(generator)
    lengths = torch.zeros(len(SHAPES[shape]) + 1, dtype=torch.int64)
    for _ in range(40):
        tree = decision(shape, plain, generator)[0]
        tree = replace(tree, tokens=tree.tokens % 2)
        if chain:
            tree = Tree.make_chain(tree.tokens, tree.valid.cumprod(1).bool())
        picks = torch.randint(0, 2, tree.tokens.shape, generator=generator)
        one, other = (batch.match(tree, picks) for batch in (plain, ours))
        for name in ("path", "num_committed", "next", "picks"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        lengths += torch.bincount(other.num_committed - 1, minlength=len(lengths))
    assert (lengths[: tree.max_depth + 1] > 0).all(), "some length that was never matched"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_queue_of_states_matches_torch(shape, dtype):
    generator = torch.Generator().manual_seed(len(shape))
    batch = batches(generator)[0]
    queues = [torch.zeros(ROWS, 31, 7, dtype=dtype) for _ in range(2)]
    counts = [torch.zeros(ROWS, dtype=torch.int64) for _ in range(2)]
    for turn in range(4):
        tree, outcome = decision(shape, batch, generator)
        nodes = torch.randn(ROWS, tree.num_nodes, 9, generator=generator).to(dtype)
        states = [nodes[..., :3], nodes[..., 5:]] if turn % 2 else [nodes[:, :, 1:8].contiguous()]
        path = None if tree.chain else outcome.path
        num = outcome.num_committed.clamp(max=tree.num_nodes)
        first = torch.minimum(torch.arange(ROWS) % 3, num) if turn < 2 else None
        for ops, queue, count in zip((TensorOps(), CpuOps()), queues, counts, strict=True):
            ops.queue_states(states, path, first, num, queue, count)
    assert torch.equal(*counts) and counts[0].min() > 0
    for row, count in enumerate(counts[0].tolist()):
        assert torch.equal(*(queue[row, :count] for queue in queues))
        assert queues[0][row, :count].any(-1).all()


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_last_states_match_torch(shape, count):
    generator = torch.Generator().manual_seed(count)
    batch = batches(generator)[0]
    kept = [torch.randn(ROWS, count, 6, generator=generator).bfloat16()]
    kept.append(kept[0].clone())
    for _ in range(6):
        tree, outcome = decision(shape, batch, generator)
        states = torch.randn(ROWS, tree.num_nodes, 9, generator=generator).bfloat16()[..., 2:8]
        num = torch.where(torch.arange(ROWS) == 2, 0, outcome.num_committed)
        before = kept[0].clone()
        for path in (outcome.path, None):
            for ops, own in zip((TensorOps(), CpuOps()), kept, strict=True):
                ops.keep_last(states, path, num, own)
            assert torch.equal(*kept)
        assert torch.equal(kept[0][2], before[2]) and not torch.equal(kept[0], before)


def test_falls_back_to_torch_without_a_compiler(monkeypatch):
    def fail():
        raise KernelError("no C++ compiler")

    assert isinstance(ops_for(CPU), CpuOps)
    monkeypatch.setattr("paceline.engine.runner.CpuOps", fail)
    assert isinstance(ops_for(CPU), TensorOps)


@pytest.mark.parametrize("longest", [None, 1, 3, 5])
@pytest.mark.parametrize("depth", [1, 2, DEPTH])
def test_begin_chain_matches_torch(depth, longest):
    generator = torch.Generator().manual_seed(depth)
    rooms = set()
    for _ in range(20):
        plain, kernel = (batch.begin_chain(depth, longest=longest) for batch in batches(generator))
        for one, other in zip(plain, kernel, strict=True):
            assert torch.equal(one, other) and one.dtype == other.dtype
        assert torch.equal(kernel[0][:, 0], torch.ones(ROWS, dtype=torch.int64)) and not bool(kernel[0][:, 1:].any())
        assert not bool(kernel[1][5].any()), "a row that is idle"
        rooms |= set(kernel[1].sum(-1).tolist())
    assert rooms >= {0, 1, 2}
