"""The joint distribution of several tokens through the real step, by a G-test over many rows, and acceptance in
closed form. For verifiers that do not promise the tokens of plain decoding, tests/distributions enumerates it.
"""

import pytest
import torch

from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.drafters.model import ModelDrafter
from paceline.verifiers import VERIFIERS
from tests.harness import decoder_for, request
from tests.tables import TableLM, deviation, index_of, joint, random_table

pytestmark = pytest.mark.one_in(11)

ROWS = 40_000
LENGTH = 4
PROMPT = [2, 1]
BOUND = 5.0  # standard deviations


class Guess(StatelessDrafter):
    """A fixed choice that depends on the root: tests the one-hot case of every verifier."""

    draws = frozenset({Draw.FIXED})

    def propose(self, batch, plan):
        root = batch.root[:, None]
        drafts = torch.ones(batch.rows, plan.num_draft_tokens, dtype=torch.int64)
        drafts[:, :1] = (root + 1) % 3
        room = torch.arange(plan.num_draft_tokens) < batch.draft_room[:, None]
        valid = torch.cat((batch.active[:, None], room & batch.active[:, None]), dim=1)
        return Tree.make_chain(torch.cat((root, drafts), dim=1), valid)


def sample(target, drafter, verifier, *, k, seed=0, caps=False, rows=ROWS, **options):
    """Sequences [rows, LENGTH] of one prompt under independent seeds, and the decoder."""
    decoder = decoder_for(drafter, verifier, target=target, k=k, rows=rows, max_length=len(PROMPT) + LENGTH)
    decoder.admit(
        [
            request(
                PROMPT, max_tokens=LENGTH, seed=seed + row, num_draft_tokens=row % (k + 1) if caps else None, **options
            )
            for row in range(rows)
        ],
        range(rows),
    )
    for _ in range(LENGTH):
        decoder.step()
        assert bool((decoder.cache.length == decoder.batch.length - 1).all())
    assert not bool(decoder.batch.active.any())
    return decoder.batch.tokens[:, len(PROMPT) : len(PROMPT) + LENGTH], decoder


def warped(table, temperature=1.0, top_k=0):
    scores = table / temperature
    if top_k:
        scores = scores.masked_fill(scores < scores.topk(top_k, dim=-1).values[..., -1:], -torch.inf)
    return scores.softmax(-1)


MAKERS = {"model": lambda: ModelDrafter(lm=TableLM(random_table(2))), "fixed": Guess}
LOSSLESS = [name for name in VERIFIERS.builtin if VERIFIERS.find(name).lossless]
PAIRS = [
    (drafter, name)
    for name in LOSSLESS
    for drafter, make in MAKERS.items()
    if make().draws & set(VERIFIERS.find(name).wants)
]
SOON = {(1, "plain", "fixed"), (1, "plain", "model"), (2, "warped", "fixed")}  # the others take minutes
OPTIONS = {"plain": {}, "warped": dict(temperature=0.6, top_k=2)}


@pytest.mark.parametrize(
    ("k", "options", "drafter", "verifier"),
    [
        pytest.param(k, name, *pair, marks=[] if (k, name, pair[0]) in SOON else [pytest.mark.slow])
        for k in (1, 2)
        for name in sorted(OPTIONS)
        for pair in PAIRS
        if VERIFIERS.find(pair[1]).same_tokens
    ],
)
def test_joint_distribution_over_several_steps_is_the_targets(drafter, verifier, k, options):
    table = random_table(1)
    instance = MAKERS[drafter]()
    choice = {"temperature": 1.0, **OPTIONS[options]}
    sequences, decoder = sample(TableLM(table), instance, verifier, k=k, seed=10**6 * k, caps=k == 2, **choice)
    distribution = joint(warped(table, choice["temperature"], choice.get("top_k", 0)), *PROMPT, LENGTH)
    counts = torch.bincount(index_of(sequences, 3), minlength=len(distribution)).double()
    assert abs(deviation(counts, distribution)) < BOUND
    summary = decoder.stats.summary()
    assert all(accepted > 0.05 * drafted for accepted, drafted in zip(summary.accepted, summary.drafted, strict=True))


@pytest.mark.slow
def test_a_wrong_distribution_would_be_seen():
    """The power of the test above: a total variation of 0.02 in one conditional distribution shows."""
    table = random_table(1)
    distribution = joint(warped(table), *PROMPT, LENGTH)
    sequences, _ = sample(TableLM(table), Guess(), "coupled", k=1, seed=3, temperature=1.0)
    counts = torch.bincount(index_of(sequences, 3), minlength=len(distribution)).double()
    probs = warped(table)
    probs[2, 1] += torch.tensor([0.02, -0.02, 0.0])
    assert abs(deviation(counts, joint(probs, *PROMPT, LENGTH))) > 2 * BOUND


def one_step(drafter, verifier, table, seed):
    """Share of the rows that accept the first draft token after the prompt."""
    decoder = decoder_for(drafter, verifier, target=TableLM(table), k=1, rows=ROWS, max_length=len(PROMPT) + LENGTH)
    decoder.admit(
        [request(PROMPT, max_tokens=LENGTH, seed=seed + r, temperature=1.0) for r in range(ROWS)], range(ROWS)
    )
    decoder.step()
    return float(decoder.stats.accepted[:, 0].double().mean())


@pytest.mark.parametrize("verifier", [verifier for drafter, verifier in PAIRS if drafter == "fixed"])
def test_a_fixed_choice_is_accepted_with_the_targets_probability(verifier):
    p = random_table(1)
    chance = float(p.softmax(-1)[2, 1, 2])  # Guess proposes root + 1
    rate = one_step(Guess(), verifier, p, seed=5)
    assert abs(rate - chance) < 4 * (chance * (1 - chance) / ROWS) ** 0.5


@pytest.mark.slow
def test_shared_noise_accepts_as_often_as_the_race_allows():
    """P(match) = sum_x 1 / sum_y max(p_y / p_x, q_y / q_x) (2408.07978)."""
    p, q = random_table(1), random_table(2)
    rate = one_step(ModelDrafter(lm=TableLM(q)), "coupled", p, seed=0)
    a, b = p.softmax(-1)[2, 1], q.softmax(-1)[2, 1]
    ratio = torch.maximum(a[None, :] / a[:, None], b[None, :] / b[:, None]).sum(-1)
    match = float((1 / ratio).sum())
    assert abs(rate - match) < 4 * (match * (1 - match) / ROWS) ** 0.5
    assert match > float((a * b).sum()), "independent draws would match less often"


@pytest.mark.parametrize("verifier", VERIFIERS.builtin)
def test_zero_probability_tokens_never_appear_and_equal_distributions_always_pass(verifier):
    table, options = random_table(4), dict(k=2, rows=8000, temperature=1.0)
    table[..., 1] = -torch.inf
    sequences, _ = sample(TableLM(table), ModelDrafter(lm=TableLM(random_table(5))), verifier, **options)
    assert not bool((sequences == 1).any())
    # their drafts are accepted by what they are, not by their distribution
    if verifier not in ("match", "lossy_typical"):
        _, decoder = sample(TableLM(table), ModelDrafter(lm=TableLM(table)), verifier, **options)
        assert decoder.stats.summary().acceptance_rate == 1.0
