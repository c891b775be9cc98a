"""Branching trees through the same step: commits that move slots, on rows that advance at their own rates."""

import pytest
import torch

from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.models.prefill import prefill
from tests import tiny
from tests.harness import decoder_for, expected, finish, request

PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6])
DEPTH = 3


class Soothsayer(StatelessDrafter):
    """Binary trees of depth 3 around the known future: at each level one child may be right, in either place."""

    draws = frozenset({Draw.FIXED})
    branches = True

    def __init__(self, futures):
        self.futures = futures  # per row: prompt and continuation
        self.round = 0

    def max_nodes(self, num_draft_tokens):
        return 15

    def propose(self, batch, plan):
        self.round += 1
        parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]]).expand(batch.rows, -1)
        depth = [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]
        tokens, valid = torch.zeros(batch.rows, 15, dtype=torch.int64), torch.ones(batch.rows, 15, dtype=torch.bool)
        tokens[:, 0] = batch.root
        for row, future in enumerate(self.futures):
            known = int(batch.length[row])
            for node in range(1, 15):
                at = known + depth[node] - 1
                truth = future[at] if at < len(future) else 0
                right = (node + self.round + row) % 2 == 0 and (self.round * 7 + row * 3 + depth[node]) % 5 != 0
                tokens[row, node] = truth if right else (truth + 1 + node) % tiny.VOCAB
                valid[row, node] = batch.active[row] and (node + row) % 11 != 10
        for node in range(1, 15):
            valid[:, node] &= valid[torch.arange(batch.rows), parents[:, node]]
        valid[:, 0] = batch.active
        return Tree.make(tokens, parents, valid, max_depth=DEPTH)


def decode(requests):
    futures = [[*r.tokens, *expected(r)] for r in requests]
    decoder = decoder_for(Soothsayer(futures), "coupled", k=DEPTH, rows=len(requests))
    decoder.admit(requests, range(len(requests)))
    return decoder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tree_output_equals_the_reference_with_every_accepted_length(temperature):
    requests = [request(p, max_tokens=40, temperature=temperature, seed=i) for i, p in enumerate(PROMPTS)]
    decoder = decode(requests)
    result = finish(decoder, rows=list(range(len(PROMPTS))), prompts=PROMPTS)
    assert result.texts == [expected(r) for r in requests]
    assert {accepted for report in result.reports for accepted in report.num_accepted} == set(range(DEPTH + 1))
    assert {bonus for report in result.reports for bonus in report.bonus} == {True, False}
    assert result.summary.mean_acceptance_length > 2


def test_the_committed_cache_equals_a_fresh_prefill_after_every_step():
    requests = [request(p, max_tokens=24) for p in PROMPTS]
    decoder = decode(requests)
    _, target = tiny.target()
    while bool(decoder.batch.active.any()):
        decoder.step()
        length = decoder.cache.length
        fresh = target.new_cache(len(PROMPTS), decoder.cache.capacity).view()
        prefill(target, fresh, decoder.batch.tokens, length, int(length.max()), ())
        for layer in range(target.num_layers):
            for store, again in zip(decoder.cache.read(layer), fresh.read(layer), strict=True):
                for row in range(len(PROMPTS)):
                    torch.testing.assert_close(store[row, : length[row]], again[row, : length[row]])
