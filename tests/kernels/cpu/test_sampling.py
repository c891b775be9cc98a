"""The kernel's choices are those of plain operations: the same tokens kept, the same winners, the same law."""

import itertools

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.noise import Philox
from paceline.core.ops import TensorOps
from paceline.core.request import Request
from paceline.core.sampling import FilterOrder, Sampling
from paceline.core.tree import Tree
from paceline.kernels.cpu.noise import KernelNoise
from paceline.kernels.cpu.ops import CpuOps
from tests.distributions.gtest import g_test, tail

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 5, 64, 65, 1000, 4096, 32000)
FILTERS = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for top_k, top_p, min_p in itertools.product((0, 1, 7, 60, 900, 10**6), (1.0, 0.95, 0.4, 1e-7), (0.0, 0.02, 1.0))
]
SOME = FILTERS[:: len(FILTERS) // 9]
ORDERS = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p, "order": FilterOrder.VLLM}
    for top_k, top_p, min_p in itertools.product((0, 7, 60), (1.0, 0.8, 0.3), (0.0, 0.02, 0.2, 1.0))
]
LISTS = [
    {"typical_p": typical_p, "epsilon_cutoff": epsilon, "eta_cutoff": eta, **given}
    for typical_p, epsilon, eta, given in itertools.product(
        (1.0, 0.9, 0.3, 1e-6), (0.0, 3e-4, 0.02), (0.0, 2e-3, 0.5), ({}, {"top_k": 50}, {"min_p": 0.01, "top_p": 0.9})
    )
]


def batches(options, *, requests=None, noise=None):
    """The same rows twice: by plain operations, and by the kernel."""
    asked = requests or [Request(tokens=[1], max_tokens=50, sampling=option) for option in options]
    made = []
    for ops in (TensorOps(), CpuOps()):
        batch = Batch(
            rows=len(asked),
            max_length=100,
            max_depth=3,
            vocab_size=32000,
            noise=noise or Philox(),
            ops=ops,
            device=CPU,
        )
        batch.admit(range(len(asked)), asked)
        made.append(batch)
    return made


def logits_of(rows, nodes, size, dtype, *, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(rows, nodes, size, generator=generator, dtype=torch.float64)).to(dtype)


def places(rows, nodes):
    return torch.arange(nodes) + 3 * torch.arange(rows)[:, None] + 1


def assert_same(options, logits, position=None):
    """The same scores and the same tokens."""
    position = places(*logits.shape[:2]) if position is None else position
    plain, ours = batches(options)
    torch.testing.assert_close(ours.warp(logits), plain.warp(logits), rtol=0, atol=0)
    assert torch.equal(ours.pick(logits, position), plain.pick(logits, position))
    assert torch.equal(ours.argmax(logits), plain.argmax(logits))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("filters", [FILTERS, ORDERS, LISTS], ids=["usual", "min-p first", "lists"])
def test_every_filter_keeps_what_plain_operations_keep(filters, dtype, size):
    some = filters if size < 9999 else filters[:: len(filters) // 9]
    options = [Sampling(temperature=0.8, seed=seed, **given) for seed, given in enumerate(some)]
    plain, ours = batches(options)
    logits = logits_of(len(options), 1, size, dtype)
    wanted, got = plain.warp(logits), ours.warp(logits)
    assert got.dtype == wanted.dtype
    both = (wanted > -torch.inf) & (got > -torch.inf)
    assert torch.equal(wanted[both], got[both])
    differ = (wanted != got).sum(-1)
    if dtype is torch.float64:
        assert not differ.any()
    else:  # sums of float32 are rounded, here and there in other places
        assert differ.max() <= max(1, size // 8000) and (differ > 0).sum() <= 2


@pytest.mark.parametrize("size", [131_072])
def test_a_large_vocabulary(size):
    options = [
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=1.3, top_p=0.9, seed=2),
        Sampling(temperature=1, top_k=40),
    ]
    assert_same(options, logits_of(3, 1, size, torch.float64))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 20.0, 1e3])
@pytest.mark.parametrize("size", [5, 700, 5000])
def test_flat_distributions_and_sharp_ones(size, spread):
    options = [
        Sampling(),
        *(Sampling(temperature=t, top_p=p, seed=3) for t in (0.3, 1.0, 2.5) for p in (0.2, 0.9, 0.999, 1.0)),
        *(Sampling(temperature=t, min_p=0.3, top_p=0.7, order=FilterOrder.VLLM, seed=3) for t in (0.3, 2.5)),
        *(Sampling(temperature=t, seed=3, **given) for t in (0.3, 2.5) for given in LISTS[1::7]),
    ]
    assert_same(options, logits_of(len(options), 2, size, torch.float64, spread=spread))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_at_the_boundary_are_all_kept(dtype):
    logits = torch.full((4, 1, 600), -4.0, dtype=dtype)
    logits[..., 100:400:3] = 2.0
    logits[..., 77] = logits[..., 590] = 3.0
    options = [Sampling(temperature=1, top_k=3), Sampling(temperature=1, top_p=0.3), Sampling(temperature=1, min_p=0.3)]
    plain, ours = batches([*options, Sampling(temperature=1, top_k=2)])
    kept = (ours.warp(logits) > -torch.inf).sum(-1)[:, 0]
    assert kept.tolist() == [102, 102, 102, 2]
    assert torch.equal(plain.warp(logits), ours.warp(logits))


def one(size, at):
    scores = torch.full((size,), -torch.inf, dtype=torch.float64)
    scores[at] = -3.0
    return scores


ODD = {
    "all but one excluded": one(300, 299),
    "everything excluded": torch.full((300,), -torch.inf, dtype=torch.float64),
    "all the same": torch.zeros(300, dtype=torch.float64),
    "infinite": torch.linspace(-5, 5, 300, dtype=torch.float64).index_fill(0, torch.tensor([40, 90]), torch.inf),
    "no number": torch.linspace(-5, 5, 300, dtype=torch.float64).index_fill(0, torch.tensor([41, 91]), torch.nan),
    "far apart": torch.tensor([-1e30, 0.0, 1e30, -1e300, 5.0] * 60, dtype=torch.float64),
    "beyond what differences hold": torch.tensor([-1.7e308, 1.7e308, 0.0] * 100, dtype=torch.float64),
    "either zero": torch.tensor([-0.0, 0.0] * 150, dtype=torch.float64),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"top_p": 0.9},
        {"top_k": 3},
        {"min_p": 0.1},
        {"typical_p": 0.8},
        {"epsilon_cutoff": 0.1},
        {"eta_cutoff": 0.1},
    ],
    ids=str,
)
def test_odd_logits_are_chosen_from_as_plainly(name, given):
    if "typical_p" in given and name in ("infinite", "no number"):
        pytest.skip("what is no law has no entropy")
    logits = ODD[name].expand(2, 3, -1)
    plain, ours = batches([Sampling(), Sampling(temperature=1, **given)])
    position = places(2, 3)
    assert torch.equal(ours.pick(logits, position), plain.pick(logits, position))
    assert torch.equal(ours.argmax(logits), plain.argmax(logits))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float64, 0), (torch.float32, 1e-4), (torch.bfloat16, 1e-4), (torch.float16, 1e-4)]
)
@pytest.mark.parametrize("size", [33, 4096])
def test_thousands_of_picks_are_the_plain_ones(dtype, share, size):
    given = ({}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.05}, {"top_k": 300, "top_p": 0.8}, *LISTS[1::40])
    options = [Sampling(temperature=1 + 0.1 * seed, seed=seed * 10**17, **each) for seed, each in enumerate(given)]
    plain, ours = batches(options, noise=Philox(KernelNoise()))
    nodes = 60 if size > 1000 else 1000
    different = 0
    for repeat in range(4):
        logits = logits_of(len(options), nodes, size, dtype, seed=repeat)
        position = places(len(options), nodes) + repeat * 5_000_000_000
        different += int((plain.pick(logits, position) != ours.pick(logits, position)).sum())
    assert different <= share * 4 * len(options) * nodes


def test_picks_follow_their_distribution():
    """Counts of tokens over many positions, for each way the kernel goes through the runners."""
    logits = logits_of(1, 1, 48, torch.float32, seed=4, spread=1.5)
    chances = []
    for given in ({}, {"top_p": 0.9}, {"top_k": 6}, {"top_p": 0.5, "min_p": 0.1}, {"typical_p": 0.7}):
        _, ours = batches([Sampling(temperature=0.9, seed=11, **given)])
        position = torch.arange(40_000)[None]
        counts = ours.pick(logits.expand(1, 40_000, 48), position)[0].bincount(minlength=48)
        distribution = ours.warp(logits)[0, 0].double().softmax(-1)
        chances.append(tail(*g_test(counts, distribution)))
    assert min(chances) > 1e-3, chances


def test_the_distribution_of_a_long_race_has_no_seam():
    """Equal runners win equally often in every block and lane, whether they are listed or run among all."""
    size, draws = 4096, 60_000
    logits = torch.zeros(1, 1, size)
    logits[..., ::8] = 12.0  # with top-p a list of these; without, a race of all
    for given in ({}, {"top_p": 0.9}):
        _, ours = batches([Sampling(temperature=1, seed=5, **given)])
        picked = torch.cat(
            [
                ours.pick(logits.expand(1, 5000, size), torch.arange(at, at + 5000)[None])
                for at in range(0, draws, 5000)
            ],
            1,
        )[0]
        counts = picked.bincount(minlength=size)[::8]
        assert counts.sum() >= 0.999 * draws
        for cells in (counts.reshape(8, -1).sum(1), counts.reshape(-1, 8).sum(0)):
            assert tail(*g_test(cells, torch.full((8,), 1 / 8, dtype=torch.float64))) > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_entry_alone_is_as_in_a_batch_and_threads_change_nothing(dtype):
    options = [
        Sampling(temperature=t, top_p=p, top_k=k, seed=9)
        for t, p, k in ((0.7, 0.95, 0), (1, 1, 0), (0, 1, 0), (1, 1, 64))
    ]
    _, ours = batches(options)
    logits, position = logits_of(4, 3, 12_345, dtype), places(4, 3)
    wanted, scores = ours.pick(logits, position), ours.warp(logits)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            assert torch.equal(ours.pick(logits, position), wanted)
            assert torch.equal(ours.warp(logits), scores)
        finally:
            torch.set_num_threads(1)
    for row, node in itertools.product(range(4), range(3)):
        _, alone = batches([options[row]])
        entry = logits[row : row + 1, node : node + 1], position[row : row + 1, node : node + 1]
        assert torch.equal(alone.pick(*entry)[0, 0], wanted[row, node])
        assert torch.equal(alone.warp(entry[0])[0, 0], scores[row, node])


def test_strides_of_logits_and_positions_are_followed():
    options = [Sampling(temperature=1, top_p=0.9, seed=1), Sampling(), Sampling(temperature=0.5, seed=3)]
    logits = logits_of(3, 4, 90, torch.float32)
    assert_same(options, logits[:, ::2], places(3, 4)[:, ::2])
    assert_same(options, logits[:, 1:, 5:70], torch.tensor([[7]]).expand(3, 3))
    assert_same(options, logits.transpose(1, 2)[..., :2].transpose(1, 2))
    assert_same(options, logits.transpose(1, 2), places(3, 90))
    assert_same(options, logits, torch.tensor([[7], [8], [9]]))
    assert_same(options, logits[:, :1].expand(3, 5, 90))
    assert_same(options, logits.half())


def test_picks_of_a_tree_use_the_depth_of_its_nodes():
    options = [Sampling(temperature=1, seed=4), Sampling(temperature=0.8, top_p=0.9, seed=5), Sampling()]
    plain, ours = batches(options)
    parents = torch.tensor([-1, 0, 0, 1, 1, 2]).expand(3, 6)
    tree = Tree.make(torch.zeros(3, 6, dtype=torch.int64), parents, torch.ones(3, 6, dtype=torch.bool), max_depth=2)
    logits = logits_of(3, 6, 300, torch.float64)
    assert torch.equal(ours.picks(tree, logits), plain.picks(tree, logits))
    same = ours.picks(tree, logits[:, :1].expand(3, 6, 300))
    assert torch.equal(same[:, 1], same[:, 2]) and torch.equal(same[:, 3], same[:, 5])


def test_noise_of_another_kind_chooses_by_itself():
    class Last(Philox):
        def choose(self, scores, key):
            return torch.full(scores.shape[:-1], scores.shape[-1] - 1)

    _, ours = batches([Sampling(temperature=1)], noise=Last())
    assert ours.pick(logits_of(1, 2, 9, torch.float32), places(1, 2)).tolist() == [[8, 8]]
