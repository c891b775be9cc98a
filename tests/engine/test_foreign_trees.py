"""What drafters that are not Paceline's own may not propose, and what it costs: their drafts, never a token."""

import logging
from dataclasses import replace

import pytest
import torch

from paceline.api import SamplingParams
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.engine.readers import AsyncReader
from tests import tiny
from tests.api.engines import LONG, engine, read_by
from tests.harness import decoder_for, expected, planned_step, request

VOCAB = tiny.target()[1].vocab_size
PROMPTS = [[5, 9, 2], LONG, [8] * 6]


class Spoiled(StatelessDrafter):
    """Proposes what ``spoil`` makes of another drafter's tree, but for the first steps."""

    def __init__(self, inner, spoil):
        self.inner, self.spoil, self.left = inner, spoil, 2
        self.draws, self.branches, self.origins = inner.draws, inner.branches, inner.origins
        self.max_nodes = inner.max_nodes

    def propose(self, batch, plan):
        tree = self.inner.propose(batch, plan)
        self.left -= 1
        return tree if self.left >= 0 else self.spoil(tree)


def with_column(name, column, value):
    def spoil(tree):
        changed = getattr(tree, name).clone()
        changed[:, column] = value
        return replace(tree, **{name: changed})

    return spoil


def grown(tree):
    """More nodes than the drafter announced."""
    tokens = torch.zeros(len(tree.tokens), tree.num_nodes + 3, dtype=torch.int64)
    return Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))


SPOILS = {
    "a large token": (with_column("tokens", -1, 10_000_000), "outside the target's vocabulary"),
    "the first token beyond": (with_column("tokens", -1, VOCAB), "outside the target's vocabulary"),
    "a negative token": (with_column("tokens", 1, -1), "outside the target's vocabulary"),
    "shifted tokens": (lambda tree: replace(tree, tokens=(tree.tokens + 1) % VOCAB), "column 0 of tokens is not"),
    "no root": (with_column("valid", 0, False), "column 0 of valid not"),
    "a parent behind": (with_column("parents", 1, 2), "are not those of one tree"),
    "a parent far away": (with_column("parents", 2, 10**6), "are not those of one tree"),
    "a depth far away": (with_column("depth", -1, 10**6), "are not those of one tree"),
    "ancestors of others": (lambda tree: replace(tree, ancestors=tree.ancestors.transpose(1, 2)), "one tree"),
    "an orphan": (
        lambda tree: replace(with_column("valid", -1, True)(tree), parents=tree.parents.clamp(max=0)),
        "are not those of one tree",
    ),
    "a draw it does not announce": (with_column("draw", 1, int(Draw.SHARED)), "draw, source or origin"),
    "a distribution that is not there": (with_column("source", 1, 7), "draw, source or origin"),
    "an origin that is not there": (with_column("origin", 1, 3), "draw, source or origin"),
    "a tensor": (lambda tree: tree.tokens, "propose gave a Tensor"),
    "another type": (lambda tree: replace(tree, tokens=tree.tokens.int()), "tokens is [3, 4] of torch.int32"),
    "a row less": (lambda tree: replace(tree, valid=tree.valid[1:]), "valid is [2, 4]"),
    "more nodes": (grown, "N from 1 to 4"),
    "a tree in place of a chain": (lambda tree: replace(tree, chain=False), "the tree is no chain"),
    "too deep": (lambda tree: replace(tree, max_depth=9), "max_depth=9"),
}


def check(drafter, message, caplog, *, verifier="coupled", temperature=0.0):
    made = engine(drafter, verifier, batch_size=3)
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=3)
    with caplog.at_level(logging.ERROR, logger="paceline"):
        results = made.generate(PROMPTS, params)
    if verifier == "coupled":
        for result in results:
            options = dict(max_tokens=20, temperature=temperature, seed=result.seed)
            assert list(result.tokens) == expected(request(list(result.prompt_tokens), **options))
    (record,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert record.startswith("Spoiled failed, decoding goes on without drafts: DraftError: ") and message in record
    assert message in str(made.runner.drafter_error)
    assert results[0].stats.no_draft["the drafter failed"] > 5


@pytest.mark.parametrize("name", SPOILS)
def test_a_broken_chain_costs_its_drafts_and_is_named(name, caplog):
    spoil, message = SPOILS[name]
    check(Spoiled(NgramDrafter(), spoil), message, caplog)


@pytest.mark.parametrize("name", ["a large token", "a parent behind", "a tensor"])
def test_results_that_are_read_late_change_nothing(name, caplog, monkeypatch):
    read_by(monkeypatch, AsyncReader)
    spoil, message = SPOILS[name]
    check(Spoiled(NgramDrafter(), spoil), message, caplog, temperature=1.0)


@pytest.mark.parametrize("name", ["a large token", "shifted tokens", "ancestors of others", "a depth far away"])
def test_a_broken_tree_costs_its_drafts_and_is_named(name, caplog):
    spoil, message = SPOILS[name]
    check(Spoiled(Branching(), spoil), message, caplog)


class Branching(StatelessDrafter):
    """Two tokens after the root, and one after the first of them."""

    draws, branches = frozenset({Draw.FIXED}), True

    def propose(self, batch, plan):
        tokens = torch.stack((batch.root, *(torch.full_like(batch.root, token) for token in (3, 4, 5))), dim=1)
        parents = torch.tensor([-1, 0, 0, 1]).expand(len(tokens), 4)
        return Tree.make(tokens, parents, batch.active[:, None].expand(-1, 4), max_depth=2)


@pytest.mark.parametrize("value", [float("nan"), -0.1, 0.5])
def test_distributions_that_are_none_are_refused(value, caplog):
    class Drawing(StatelessDrafter):
        draws = frozenset({Draw.IID})

        def propose(self, batch, plan):
            tokens, valid = batch.begin_chain(1)
            probs = torch.full((len(tokens), 1, VOCAB), 1 / VOCAB)
            tokens[:, 1] = torch.randint(VOCAB, (len(tokens),))
            return Tree.make_chain(tokens, valid, draw=Draw.IID, probs=probs)

    check(
        Spoiled(Drawing(), with_column("probs", 0, value)),
        "are no distribution",
        caplog,
        verifier="rejection",
        temperature=1.0,
    )


def test_right_trees_pass_and_no_row_is_drafted_for_beyond_its_limit():
    greedy = Spoiled(NgramDrafter(), lambda tree: replace(tree, valid=tree.valid[:, :1] & (tree.tokens >= 0)))
    decoder = decoder_for(greedy, "coupled", rows=3, k=3)
    asked = [
        request(prompt, max_tokens=20, num_draft_tokens=most) for prompt, most in zip(PROMPTS, (0, 1, 3), strict=True)
    ]
    decoder.admit(asked, range(3))
    while bool(decoder.batch.active.any()):
        planned_step(decoder, StepPlan(3))
    assert decoder.guard.error() is None
    drafted = [[count > 0 for count in decoder.stats.summary([row]).drafted] for row in range(3)]
    assert drafted == [[False] * 3, [True, False, False], [True] * 3]
    for row, one in enumerate(asked):
        start = len(one.tokens)
        assert decoder.batch.tokens[row, start : start + 20].tolist() == expected(one)
    assert decoder.stats.summary([2]).accepted[0] > 0
