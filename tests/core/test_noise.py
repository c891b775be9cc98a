"""Noise: the generator, the independence of every key field, the race, the coin, and the ledger of used keys."""

import numpy as np
import pytest
import torch

from paceline.core.noise import Key, Philox, Stream, philox, split_seed
from paceline.verifiers import VERIFIERS
from tests import reference, tiny
from tests.harness import decoder_for, family_cases, finish, request, tiny_drafter

NOISE = Philox()


def key(seed=0, position=0, stream=Stream.TARGET, step=0, node=0, stage=0, shape=()):
    def tensor(x):
        return (x if isinstance(x, torch.Tensor) else torch.tensor(x)).expand(shape or torch.as_tensor(x).shape)

    return Key(seed=tensor(seed), position=tensor(position), stream=stream, step=step, node=node, stage=stage)


@pytest.mark.parametrize(
    ("counter", "secret", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, secret, words):
    got = philox(tuple(torch.tensor(c) for c in counter), tuple(torch.tensor(k) for k in secret))
    assert tuple(int(word) for word in got) == words


def test_race_noise_equals_the_reference_for_seeds_beyond_32_bits():
    seed, position = 2**62 + 12345, 77
    words = NOISE.bits(key(seed, position), 13)
    own = -torch.log1p(-(words.double() + 0.5) * 2.0**-32)
    np.testing.assert_allclose(own.numpy(), reference.exponentials(seed, position, 13), rtol=1e-12)


def chi_square(counts, distribution):
    """Pearson's statistic in standard deviations from its mean."""
    total = counts.sum()
    keep = distribution * total >= 5
    statistic = (((counts - distribution * total) ** 2) / (distribution * total).clamp(min=1e-30))[keep].sum()
    freedom = int(keep.sum()) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


def test_words_are_uniform_in_their_high_and_low_bits():
    words = NOISE.bits(key(torch.arange(500), 3), 400).flatten()
    for shift in (0, 8, 16, 24):
        counts = torch.bincount((words >> shift) & 255, minlength=256).double()
        assert abs(chi_square(counts, torch.full((256,), 1 / 256, dtype=torch.float64))) < 5


FIELDS = ("seed", "seed_high", "position", "stream", "step", "node", "stage", "word")


@pytest.mark.parametrize("field", FIELDS)
def test_neighbouring_values_of_every_key_field_are_independent(field):
    """Pairs of words whose keys differ in one field by one fill a 16 x 16 table evenly."""
    base = dict(seed=torch.arange(20_000), position=torch.tensor(11), stream=Stream.ACCEPT, step=5, node=3, stage=1)
    other = dict(base)
    if field == "seed":
        base["seed"] = base["seed"] * 2
        other["seed"] = base["seed"] + 1
    elif field == "seed_high":
        other["seed"] = base["seed"] + (1 << 32)
    elif field == "stream":
        other["stream"] = Stream.RESIDUAL
    elif field != "word":
        other[field] = base[field] + 1
    words = NOISE.bits(key(**base, shape=(20_000,)), 8)
    again = NOISE.bits(key(**other, shape=(20_000,)), 8)
    first, second = (words[:, 0], words[:, 5]) if field == "word" else (words[:, 2], again[:, 2])
    assert not bool((first == second).all())
    table = torch.bincount((first >> 28) * 16 + (second >> 28), minlength=256).double()
    assert abs(chi_square(table, torch.full((256,), 1 / 256, dtype=torch.float64))) < 5


def test_the_targets_key_ignores_step_and_draft_node():
    decoder = decoder_for(tiny_drafter("none", None), "coupled")
    decoder.admit([request([1, 2], max_tokens=9, temperature=1.0, seed=4)], [0])
    before = decoder.batch.key(torch.tensor([[5]]), Stream.TARGET, node=7)
    decoder.step()
    after = decoder.batch.key(torch.tensor([[5]]), Stream.TARGET, node=9)
    assert torch.equal(NOISE.bits(before, 8), NOISE.bits(after, 8))
    assert not torch.equal(
        NOISE.bits(decoder.batch.key(torch.tensor([[5]]), Stream.DRAFT, node=7), 8), NOISE.bits(before, 8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_race_frequencies_equal_a_distribution_of_five(dtype):
    distribution = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0], dtype=torch.float64)
    scores = distribution.log().to(dtype).expand(200_000, 5)
    picks = NOISE.choose(scores, key(torch.arange(200_000), 9, shape=(200_000,)))
    counts = torch.bincount(picks, minlength=5).double()
    assert counts[4] == 0
    assert abs(chi_square(counts, distribution)) < 4


@pytest.mark.slow
def test_race_frequencies_equal_a_distribution_over_a_large_vocabulary():
    """V = 131,072: the heavy tokens come at their rates, and the tail shares its mass evenly."""
    size, draws = 131_072, 600
    distribution = torch.full((size,), 0.4 / (size - 3), dtype=torch.float64)
    distribution[[17, 70_000, size - 1]] = 0.2
    scores = distribution.log().float()
    picks = torch.cat(
        [NOISE.choose(scores.expand(20, -1), key(torch.arange(i, i + 20), 1, shape=(20,))) for i in range(0, draws, 20)]
    )
    heavy = torch.stack([(picks == t).sum() for t in (17, 70_000, size - 1)] + [torch.tensor(0)]).double()
    heavy[3] = draws - heavy.sum()
    assert abs(chi_square(heavy, torch.tensor([0.2, 0.2, 0.2, 0.4], dtype=torch.float64))) < 4
    tail = picks[~torch.isin(picks, torch.tensor([17, 70_000, size - 1]))]
    quarters = torch.bincount(tail * 4 // size, minlength=4).double()
    assert abs(chi_square(quarters, torch.full((4,), 0.25, dtype=torch.float64))) < 4
    assert len(tail.unique()) > 0.99 * len(tail), "coarse noise makes ties, and ties repeat tokens"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finishers_in_order_are_draws_without_replacement(dtype):
    distribution = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64)
    rows = 200_000
    order = NOISE.order(distribution.log().to(dtype).expand(rows, 5), key(torch.arange(rows), 9, shape=(rows,)), 3)
    pairs = torch.bincount(order[:, 0] * 5 + order[:, 1], minlength=25).double()
    wanted = (
        distribution[:, None] * distribution / (1 - distribution[:, None]) * (1 - torch.eye(5, dtype=torch.float64))
    )
    assert pairs[wanted.flatten() == 0].sum() == 0
    assert abs(chi_square(pairs, wanted.flatten())) < 4
    assert all(len({*row}) == 3 for row in order[:500].tolist())


def test_the_first_finisher_is_the_one_chosen_and_the_excluded_come_last():
    scores = torch.randn(300, 40, generator=torch.Generator().manual_seed(0)).masked_fill(
        torch.arange(40) >= 6, -torch.inf
    )
    seeds = key(torch.arange(300), 4, shape=(300,))
    whole = NOISE.order(scores, seeds, 40)
    assert torch.equal(whole[:, 0], NOISE.choose(scores, seeds))
    assert torch.equal(whole[:, :6].sort(-1).values, torch.arange(6).expand(300, 6))
    for count in (1, 2, 5):
        assert torch.equal(NOISE.order(scores, seeds, count), whole[:, :count])


class Scripted(Philox):
    """Every word the same."""

    def __init__(self, word):
        self.word = word

    def bits(self, key, count):
        return super().bits(key, count) * 0 + self.word


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_coin_never_accepts_zero_and_always_accepts_certainty(word, dtype):
    p, q = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=dtype), torch.tensor([0.7, 0.3, 0.2, 1.0], dtype=dtype)
    accepted = Scripted(word).coin(p, q, key(torch.arange(4), 0, shape=(4,)))
    assert accepted.tolist() == [False, True, True, True]


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_race_never_picks_an_excluded_token(word, dtype):
    scores = torch.tensor([-torch.inf, -3.0, -torch.inf], dtype=dtype)
    assert int(Scripted(word).choose(scores, key(5, 5))) == 1


@pytest.mark.parametrize("word", [3 << 20, 3 << 29, 15 << 28])
@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 2**10), (torch.float64, 1)])
def test_words_that_differ_in_single_precision_decide_differently(word, dtype, step):
    """A uniform in half precision, as of models, would take thousands of words for one."""
    at, one = torch.tensor([word * 2.0**-32], dtype=dtype), torch.ones(1, dtype=dtype)
    node = key(torch.arange(1), 0, shape=(1,))
    assert Scripted(word - step).coin(at, one, node).tolist() == [True]
    assert Scripted(word).coin(at, one, node).tolist() == [False]
    for order in ([word - step, word], [word, word - step]):
        winner = Scripted(torch.tensor(order)).choose(torch.zeros(1, 2, dtype=dtype), node)
        assert winner.tolist() == [order.index(word - step)]


@pytest.mark.parametrize(("word", "drawn"), [(0, 1), (2**31, 3), (2**32 - 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_never_meets_a_token_without_weight(word, drawn, dtype):
    weights = torch.tensor([[0.0, 0.6, 0.0, 1.3, 0.0]], dtype=dtype)
    assert Scripted(word).draw(weights, key(torch.arange(1), 0, shape=(1,))).tolist() == [drawn]


def test_a_draw_has_the_distribution_of_its_weights():
    weights = torch.tensor([0.5, 0.0, 3.0, 1.5])
    drawn = NOISE.draw(weights.expand(200_000, 4), key(torch.arange(200_000), 3, Stream.RESIDUAL, shape=(200_000,)))
    shares = torch.bincount(drawn, minlength=4) / 200_000
    wanted = weights / weights.sum()
    assert bool(((shares - wanted).abs() <= 4 * (wanted * (1 - wanted) / 200_000).sqrt()).all())


def test_entries_with_one_key_run_one_race():
    scores = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(2))
    at = torch.tensor([[0, 1, 1, 2, 0], [0, 2, 1, 1, 1], [2, 2, 0, 0, 1]])
    positions = torch.arange(9).reshape(3, 3)
    apart = NOISE.choose(scores, key(positions.gather(1, at), 4, shape=(3, 5)))
    assert torch.equal(NOISE.choose_at(scores, key(positions, 4, shape=(3, 3)), at), apart)


def test_a_coin_lands_at_its_rate():
    p, q = torch.full((200_000,), 0.18), torch.full((200_000,), 0.6)
    heads = NOISE.coin(p, q, key(torch.arange(200_000), 2, stream=Stream.ACCEPT, shape=(200_000,))).double().mean()
    assert abs(float(heads) - 0.3) < 4 * (0.21 / 200_000) ** 0.5


class Ledger(Philox):
    """Writes down every key that is consumed."""

    def __init__(self):
        self.used = []

    def bits(self, key, count):
        fields = torch.broadcast_tensors(*(torch.as_tensor(x) for x in (key.seed, key.position, key.step, key.node)))
        rows = torch.stack([field.flatten() for field in fields], dim=1).tolist()
        self.used.extend((int(key.stream), key.stage, *row) for row in rows)
        return super().bits(key, count)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("drafter", "verifier"), family_cases())
def test_no_own_noise_is_consumed_twice(drafter, verifier):
    """Positions that are drafted again, siblings and neighbours included."""
    noise = Ledger()
    decoder = decoder_for(tiny_drafter(drafter, tiny.target()[1]), verifier, k=3, rows=3, parts=dict(noise=noise))
    prompts = [[5, 9, 2], [1], [17, 4, 33, 17, 4]]
    requests = [request(p, max_tokens=30, temperature=1.0, seed=split_seed(7, i)) for i, p in enumerate(prompts)]
    decoder.admit(requests, range(3))
    finish(decoder, rows=[0, 1, 2], prompts=prompts)
    own = [entry for entry in noise.used if entry[0] != Stream.TARGET]
    assert len(own) == len(set(own))
    found = VERIFIERS.find(verifier)
    if found.lossless and not found.same_tokens:
        assert {entry[0] for entry in own} >= {Stream.RESIDUAL} | ({Stream.ACCEPT} if drafter != "none" else set())
    for entry in noise.used:
        if entry[0] == Stream.TARGET:
            assert entry[1] == 0 and entry[4:] == (0, 0)


def test_a_split_seed_keeps_the_first_and_separates_the_rest():
    seeds = [split_seed(7, i) for i in range(1000)] + [split_seed(8, i) for i in range(1000)]
    assert seeds[0] == 7 and len(set(seeds)) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)
