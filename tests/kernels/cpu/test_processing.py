"""The kernel processes logits as plain operations do, bit for bit, whatever rows ask for and whatever was drafted."""

import random

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.noise import Philox
from paceline.core.ops import TensorOps
from paceline.core.request import Processing, Request
from paceline.core.scores import Scores
from paceline.core.tree import Outcome, Tree
from paceline.kernels.cpu.ops import CpuOps

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROWS, VOCAB, LENGTH = 5, 37, 60
BANNED = -float("inf")

KINDS = {
    "bias": Processing(bias=(((3,), 2.5), ((3,), -0.25), ((7,), BANNED), ((36,), 1e-3), ((99,), 4.0))),
    "allowed": Processing(allowed=(1, 4, 5, 99), bias=(((4,), 1.5), ((6,), 9.0))),
    "nothing allowed": Processing(allowed=(5,), bias=(((5,), BANNED),)),
    "sequences": Processing(bias=(((1, 2), BANNED), ((2, 1), 0.75), ((3, 1), 0.3), ((1, 2, 1), 1.1), ((1, 99), 2.0))),
    "repetition": Processing(repetition_penalty=1.3),
    "praise of repetition": Processing(repetition_penalty=0.7),
    "frequency": Processing(frequency_penalty=0.37),
    "presence": Processing(presence_penalty=-0.61),
    "no pairs": Processing(no_repeat_ngram=2),
    "no triples": Processing(no_repeat_ngram=3),
    "no token twice": Processing(no_repeat_ngram=1),
    "late": Processing(late=((3, 2), (4, 50), (99, 50))),
    "everything": Processing(
        bias=(((3,), 2.5), ((1, 2), -1.5), ((1, 3), BANNED), ((0, 1, 2), 0.7)),
        allowed=tuple(range(1, 30)),
        repetition_penalty=1.17,
        frequency_penalty=0.31,
        presence_penalty=0.13,
        no_repeat_ngram=4,
        late=((5, 9),),
    ),
    "none": Processing(),
}
PARENTS = {
    "root": (-1,),
    "chain": (-1, 0, 1, 2, 3),
    "siblings": (-1, 0, 0, 1, 1, 2, 3, 3),
    "late branch": (-1, 0, 1, 1, 3, 3),
}


def batches(options, *, vocab=VOCAB, length=LENGTH, seed=0, alphabet=4):
    """The same texts twice, of few different tokens; by plain operations, and by the kernel."""
    draw = random.Random(seed)
    requests = [
        Request(
            tokens=[draw.randrange(alphabet) for _ in range(draw.randint(1, length // 2))],
            max_tokens=length // 2 - 5,
            processing=option,
        )
        for option in options
    ]
    made = []
    for ops in (TensorOps(), CpuOps()):
        batch = Batch(
            rows=len(options), max_length=length, max_depth=6, vocab_size=vocab, noise=Philox(), ops=ops, device=CPU
        )
        batch.admit(range(len(options)), requests)
        made.append(batch)
    return made


def logits_of(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def tree_of(shape, rows, *, seed=0, alphabet=4):
    parents = PARENTS[shape]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, alphabet, (rows, len(parents)), generator=generator)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    if all(parent == node - 1 for node, parent in enumerate(parents)):
        return Tree.make_chain(tokens, valid)
    return Tree.make(tokens, torch.tensor(parents).expand_as(tokens), valid, max_depth=4)


def grow(batch, *, seed=0, num=3, alphabet=4):
    """A step that appends ``num`` tokens to every row."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, alphabet, (batch.rows, num), generator=generator)
    tree = Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))
    path = torch.arange(1, num).expand(batch.rows, -1)
    outcome = Outcome(path=path, num_committed=torch.full((batch.rows,), num), next=tokens[:, 0])
    batch.extend(tree, outcome, Scores.of(torch.zeros(batch.rows, num, alphabet)))


def assert_same(got, wanted):
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", PARENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_option_alone_at_every_node(kind, shape, dtype):
    plain, ours = batches([KINDS[kind]] * ROWS, seed=1)
    tree, changed = tree_of(shape, ROWS), False
    for step in range(4):
        logits = logits_of(ROWS, len(PARENTS[shape]), VOCAB, dtype=dtype, seed=step)
        wanted = plain.process_tree(logits, tree)
        assert_same(ours.process_tree(logits, tree), wanted)
        changed |= not torch.equal(wanted, logits.to(wanted.dtype))
        for batch in (plain, ours):
            grow(batch, seed=step)
        assert torch.equal(plain.tokens[:, :-1], ours.tokens[:, :-1])
    assert changed == (kind != "none"), "an option that changes nothing shows nothing"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_different_options(seed, dtype):
    draw = random.Random(seed)
    options = draw.sample(list(KINDS.values()), 8)
    plain, ours = batches(options, seed=seed)
    for step in range(3):
        for shape in PARENTS:
            logits = logits_of(8, len(PARENTS[shape]), VOCAB, dtype=dtype, seed=seed)
            tree = tree_of(shape, 8, seed=seed + step)
            assert_same(ours.process_tree(logits, tree), plain.process_tree(logits, tree))
        for batch in (plain, ours):
            grow(batch, seed=seed + step)
    if plain.processing.any_counts:
        assert torch.equal(plain.processing.counts[:, :-1], ours.processing.counts[:, :-1])
    for batch in (plain, ours):  # what the next text must not see
        batch.release([0, 3])
        batch.admit([3], [Request(tokens=[1, 2, 3], max_tokens=8, processing=KINDS["everything"])])
    logits, tree = logits_of(8, 8, VOCAB, dtype=dtype), tree_of("siblings", 8)
    assert_same(ours.process_tree(logits, tree), plain.process_tree(logits, tree))


@pytest.mark.parametrize("width", [0, 1, 5])
def test_paths_of_different_lengths(width):
    plain, ours = batches([KINDS["everything"], KINDS["no pairs"], KINDS["none"], KINDS["sequences"]])
    drafted = torch.randint(0, 4, (4, 3, width), generator=torch.Generator().manual_seed(2))
    for node in range(3):
        drafted[node, node, node + 1 :] = -1
    logits = logits_of(4, 3, VOCAB, dtype=torch.float32)
    assert_same(ours.process(logits, drafted), plain.process(logits, drafted))
    apart = drafted.transpose(1, 2).contiguous().transpose(1, 2)
    assert_same(
        ours.process(logits.transpose(0, 1).contiguous().transpose(0, 1), apart), plain.process(logits, drafted)
    )


def test_odd_logits():
    """Infinities and what is no number go through as plain operations take them."""
    plain, ours = batches(list(KINDS.values()))
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e30])
    logits = odd[torch.randint(0, 6, (len(KINDS), 5, VOCAB), generator=torch.Generator().manual_seed(0))]
    logits[:, 3] = -torch.inf
    logits[:, 4] = torch.nan
    tree = tree_of("chain", len(KINDS))
    for dtype in DTYPES:
        assert_same(ours.process_tree(logits.to(dtype), tree), plain.process_tree(logits.to(dtype), tree))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_vocabularies_long_texts_and_threads(dtype):
    options = [KINDS["everything"], KINDS["repetition"], KINDS["no triples"], KINDS["none"]]
    plain, ours = batches(options, vocab=20_011, length=600, alphabet=150)
    tree = tree_of("siblings", 4, alphabet=150)
    for step in range(5):
        for batch in (plain, ours):
            grow(batch, seed=step, num=5, alphabet=150)
    logits = logits_of(4, 8, 20_011, dtype=dtype)
    wanted = plain.process_tree(logits, tree)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            assert_same(ours.process_tree(logits, tree), wanted)
        finally:
            torch.set_num_threads(1)


def test_a_row_alone_is_as_in_a_batch():
    _, ours = batches(list(KINDS.values()), seed=3)
    logits, tree = logits_of(len(KINDS), 8, VOCAB, dtype=torch.float32), tree_of("siblings", len(KINDS))
    together = ours.process_tree(logits, tree)
    for row, option in enumerate(KINDS.values()):
        alone = Batch(rows=1, max_length=LENGTH, max_depth=6, vocab_size=VOCAB, ops=CpuOps(), device=CPU)
        asked = ours.requests[row]
        alone.admit([0], [Request(tokens=asked.tokens, max_tokens=9, processing=option)])
        one = Tree.make(tree.tokens[row : row + 1], tree.parents[row : row + 1], tree.valid[row : row + 1], max_depth=4)
        assert_same(alone.process_tree(logits[row : row + 1], one), together[row : row + 1].to(torch.float32))


def test_rows_without_processors_are_left_as_they_are():
    _, ours = batches([Processing()] * 3)
    logits = logits_of(3, 5, VOCAB, dtype=torch.bfloat16)
    assert ours.process_tree(logits, tree_of("chain", 3)) is logits


def test_other_sizes_are_left_to_plain_operations():
    _, ours = batches([KINDS["everything"]] * 2)
    tree = tree_of("chain", 2)
    with pytest.raises(RuntimeError):
        ours.process_tree(logits_of(2, 5, VOCAB + 1, dtype=torch.float32), tree)
